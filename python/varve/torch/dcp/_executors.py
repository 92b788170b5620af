"""Kept by async_save from save to save, for each process group: a thread, memory and a gloo group.

Threads and memory are kept until `close`. The gloo groups stay: making one needs all ranks, and each rank
closes for itself.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist

from varve.torch._coordinator import make_gloo_group
from varve.torch.dcp._by_engine import close_stagers
from varve.torch.dcp._copy import StateCopier

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


def _in_child() -> None:
    """Threads do not come along into a forked child, nor do groups."""
    _executors.clear()
    _groups.clear()


os.register_at_fork(after_in_child=_in_child)


def _key(world: Any, process_group: dist.ProcessGroup | None) -> Any:
    return (world, process_group if process_group is not None else world)


def _group_of(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The gloo group of the ranks of a group. Collective when it is asked for the first time."""
    world = dist.group.WORLD
    for other in [other for other in _groups if other[0] is not world]:
        del _groups[other]  # Of a world that has ended.
    key = _key(world, process_group)
    if key not in _groups:
        _groups[key] = make_gloo_group(process_group, _TIMEOUT)
    return _groups[key]


def executor_of(process_group: dist.ProcessGroup | None, alone: bool) -> Executor:
    """The executor of a group, made when it is asked for the first time; that is collective."""
    world = None if alone else dist.group.WORLD
    key = _key(world, process_group)
    for other in [other for other in _executors if other[0] is not None and not alone]:
        if other[0] is not world:
            # Of a world that has ended. Its thread ends when its saves have.
            _executors.pop(other).thread.shutdown(wait=False)
    if key not in _executors:
        _executors[key] = Executor(process_group, alone)
    return _executors[key]


def close() -> None:
    """Waits for the saves of `async_save` under way, and gives back the memory and threads they use.

    May be called again, and `async_save` after it: that takes memory and threads anew. The end of the
    interpreter does the same. Each rank calls it for itself, but the saves that it waits for end only
    when the other ranks write their part. Stagers of the caller's stay open: the caller closes them.

    Threads: not while another thread is in `async_save`, nor from a callback of a save.
    """
    while _executors:
        _, executor = _executors.popitem()
        executor.thread.shutdown()
    close_stagers()


atexit.register(close)
