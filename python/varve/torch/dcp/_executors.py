"""Kept by async_save from save to save, for each process group, and the order of its saves.

A stager (_by_engine.py), and for saves that it does not take a thread and memory. Threads and memory are
kept until `close`. The stagers' channels stay: making one needs all ranks, and each rank closes for itself.
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
from varve.torch.dcp._by_engine import close_stagers
from varve.torch.dcp._copy import StateCopier
from varve.torch.dcp._ranks import Group

#: Copies that may exist at once; a call that would make one more waits for the oldest save.
_MAX_IN_FLIGHT = 2


class Executor:
    """The saves of one process group: a thread and the memory of copies."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="varve-dcp-save")
        self.copier = StateCopier()
        self.room = threading.Semaphore(_MAX_IN_FLIGHT)


#: By world (the default group object; None where this process saves alone) and process group.
_executors: dict[Any, Executor] = {}

#: The newest save, likewise: by which way it is made, and its future as long as it is under way.
_newest: dict[Any, tuple[str, weakref.ref[Future[Any]]]] = {}


def _in_child() -> None:
    """Forgets executors in a forked child, which has not their threads."""
    leave_to_parent(_executors, _newest)


os.register_at_fork(after_in_child=_in_child)


def _key(group: Group) -> Any:
    """Returns (world, process group); forgets saves of worlds that have ended."""
    if group.alone:
        return None, group.process_group
    world = dist.group.WORLD
    tables: tuple[dict[Any, Any], ...] = (_executors, _newest)
    for kept in tables:
        for key in [key for key in kept if key[0] not in (None, world)]:
            ended: Any = kept.pop(key)
            if isinstance(ended, Executor):
                ended.thread.shutdown(wait=False)  # It ends when its saves have.
    return world, group.process_group if group.process_group is not None else world


def executor_of(group: Group) -> Executor:
    """Returns the executor of a group."""
    key = _key(group)
    if key not in _executors:
        _executors[key] = Executor()
    return _executors[key]


def in_turn(group: Group, way: str, begin: Callable[[], Any]) -> Any:
    """Begins a save and returns what `begin` does; its future, or a response with that.

    Saves that go one way are made one after the other. One that goes another way than the save before
    waits here until that has ended: so all are made in the order of the calls.
    """
    key = _key(group)
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
