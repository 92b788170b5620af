"""Kept by async_save from save to save, for each process group, and the order of its saves.

A stager (_by_engine.py), and for saves that it does not take a thread, memory and a gloo group. Threads
and memory are kept until `close`. The gloo groups and the stagers' channels stay: making one needs all
ranks, and each rank closes for itself.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch.distributed as dist

from varve._forks import leave_to_parent
from varve.torch._coordinator import make_gloo_group
from varve.torch.dcp._by_engine import close_stagers
from varve.torch.dcp._copy import StateCopier
from varve.torch.dcp._errors import Group

#: Seconds that ranks wait for each other when they make their group, as in `varve.torch.save`.
_TIMEOUT = 1800.0

#: Copies that may exist at once; a call that would make one more waits for the oldest save.
_MAX_IN_FLIGHT = 2


class Executor:
    """The saves of one process group: a thread, a gloo group and the memory of copies."""

    def __init__(self, process_group: dist.ProcessGroup | None, alone: bool) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="varve-dcp-save")
        self.copier = StateCopier()
        self.room = threading.Semaphore(_MAX_IN_FLIGHT)
        self.group = None if alone else _group_of(process_group)


#: By world (the default group object; None where this process saves alone) and process group.
_executors: dict[Any, Executor] = {}

#: The gloo groups of the executors, likewise.
_groups: dict[Any, dist.ProcessGroup] = {}

#: The newest save, likewise: by which way it is made, and its future as long as it is under way.
_newest: dict[Any, tuple[str, weakref.ref[Future[Any]]]] = {}


def _in_child() -> None:
    """Forgets executors and groups in a forked child, which has not their threads."""
    leave_to_parent(_executors, _groups, _newest)


os.register_at_fork(after_in_child=_in_child)


def _key(world: Any, process_group: dist.ProcessGroup | None) -> Any:
    return (world, process_group if process_group is not None else world)


def _group_of(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns the gloo group of the ranks of a group. The first call is collective."""
    world = dist.group.WORLD
    for other in [other for other in _groups if other[0] is not world]:
        del _groups[other]  # Of a world that has ended.
    key = _key(world, process_group)
    if key not in _groups:
        _groups[key] = make_gloo_group(process_group, _TIMEOUT)
    return _groups[key]


def executor_of(process_group: dist.ProcessGroup | None, alone: bool) -> Executor:
    """Returns the executor of a group. The first call makes it and is collective."""
    world = None if alone else dist.group.WORLD
    key = _key(world, process_group)
    for other in [other for other in _executors if other[0] is not None and not alone]:
        if other[0] is not world:
            # Of a world that has ended. Its thread ends when its saves have.
            _executors.pop(other).thread.shutdown(wait=False)
    if key not in _executors:
        _executors[key] = Executor(process_group, alone)
    return _executors[key]


def in_turn(group: Group, way: str, begin: Callable[[], Any]) -> Any:
    """Begins a save and returns what `begin` does; its future, or a response with that.

    Saves that go one way are made one after the other. One that goes another way than the save before
    waits here until that has ended: so all are made in the order of the calls.
    """
    world = None if group.alone else dist.group.WORLD
    for other in [other for other in _newest if other[0] is not None and world is not None]:
        if other[0] is not world:
            del _newest[other]  # Of a world that has ended.
    key = _key(world, group.process_group)
    earlier_way, earlier = _newest.get(key, (way, None))
    save = None if earlier is None or earlier_way == way else earlier()
    if save is not None:
        wait([save])
    made = begin()
    upload = getattr(made, "upload_completion", made)
    _newest[key] = way, weakref.ref(upload)
    return made


def close() -> None:
    """Waits for the saves of `async_save` under way, and gives back the memory and threads they use.

    May be called again, and `async_save` after it: that takes memory and threads anew. The end of the
    interpreter does the same. Each rank calls it for itself, in any order and also when other ranks do
    not: connections between ranks are kept. The saves that it waits for end when all ranks have written
    their part, which they do in the background. Stagers of the caller's stay open: the caller closes
    them.

    Threads: not while another thread is in `async_save`, nor from a callback of a save.
    """
    while _executors:
        _, executor = _executors.popitem()
        executor.thread.shutdown()
    close_stagers()


atexit.register(close)
