"""The calls of the ranks of a process group, over channels of the engine's.

There is one channel for each set of ranks (src/coordinate/channel/channel_state.cc is the account), kept from
call to call, and one more for each stager: messages of asynchronous saves have an order of their own, and
go on when the job has ended torch's groups. From Python they have the job's store, which the ranks find
each other by, and Ctrl-C.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from varve import _arguments
from varve._core import Channel, Coordinator
from varve._forks import leave_to_parent
from varve.errors import PreconditionError, UnavailableError

#: Seconds after which a rank that waits for others says so; the intervals double from there.
FIRST_NOTICE = 30.0

#: Seconds in which messages leave at the end of a call. They leave later too, with the next call.
_FLUSH = 5.0

#: The name of a background's one call, for the log.
_SAVE = "save in the background"


class _Alone:
    """The type of `ALONE`."""


#: Given as a process group: this process saves or loads alone, and no other rank of the job makes the
#: call. Frameworks call their checkpoint plugins on rank 0 only.
ALONE = _Alone()


class _Group:
    """A set of ranks of one world, and the channel."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.channel = Channel(ranks.index(dist.get_rank()), len(ranks), FIRST_NOTICE)
        self.lock = threading.Lock()  # Held during a call.
        self.owner = 0  # The thread that holds it.
        # Short, whatever the number of ranks: a key of TCPStore has at most 8 KiB.
        digest = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:32]
        self.key = f"varve/channel/{digest}"


#: By (world, ranks). The world is the default group object: a job that tears torch.distributed down
#: and sets it up again starts afresh, as its new ranks do.
_groups: dict[Any, _Group] = {}


def _group_of(process_group: Any) -> _Group:
    world = dist.group.WORLD
    for key in [key for key in _groups if key[0] is not world]:
        _groups.pop(key).channel.hang_up()  # Of a world that has ended.
    ranks = tuple(dist.get_process_group_ranks(process_group or world))
    if (world, ranks) not in _groups:
        _groups.setdefault((world, ranks), _Group(ranks))
    return _groups[world, ranks]


def _look_up(key: str) -> Any:
    store = job_store()
    return store.get(key) if store.check([key]) else None


def _publish(key: str, value: bytes) -> None:
    job_store().set(key, value)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted (Ctrl-C)"
    return str(error) or type(error).__name__


@contextlib.contextmanager
def collective(process_group: Any, timeout: float, what: str) -> Iterator[Channel | None]:
    """A call of the ranks of a group, or of all ranks when torch.distributed is initialised.

    `what` names the call and is the same on all ranks. Yields None for a single process, as for `ALONE`.
    Waits while another thread of this process is in a call of the same ranks, and until rank 0 can be
    reached. An error of the block is sent to the ranks that still wait for this one.

    Raises:
        PreconditionError: This rank is not in the group.
        UnavailableError: Rank 0 did not come within `timeout` seconds.
    """
    timeout = _arguments.seconds("timeout", timeout)
    if not _has_others(process_group):
        yield None
        return
    group = _group_of(process_group)
    until = time.monotonic() + timeout
    with _held(group, timeout, what):
        channel = group.channel
        with left_in_order(channel):
            left = until - time.monotonic()
            channel.enter(what, timeout, left, group.key, _look_up, _publish)
            yield channel


@contextlib.contextmanager
def left_in_order(channel: Channel) -> Iterator[None]:
    """Leaves the call of a channel; an error of the block is sent to the ranks that still wait for this one."""
    try:
        yield
    except BaseException as error:
        cause = None
        if isinstance(error, UnavailableError):
            if channel.cause is not None:  # The engine has it from rank 0, and names that.
                error.rank = channel.cause
            cause = error.rank
        channel.leave(_reason(error), cause)
        channel.flush(_FLUSH)
        raise
    channel.leave("", None)
    channel.flush(_FLUSH)


def _has_others(process_group: Any) -> bool:
    """Returns False for a process that makes the call alone."""
    if process_group is ALONE:
        return False
    if not dist.is_available() or not dist.is_initialized():
        if process_group is not None:
            raise PreconditionError(
                "a process_group was given, but torch.distributed is not set up"
            )
        return False
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise PreconditionError("this rank is not in the given process_group")
    return dist.get_world_size(process_group) > 1


@contextlib.contextmanager
def _held(group: _Group, timeout: float, what: str) -> Iterator[None]:
    if group.owner == threading.get_ident():
        raise PreconditionError(
            f"{what}: this thread is in another call of the same ranks, as when a signal's handler "
            "saves; let the handler set a flag, and save when the call has returned"
        )
    if not group.lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
        raise UnavailableError(
            f"{what}: another thread of this rank has not ended its save or load within "
            f"{timeout:g} s"
        )
    try:
        group.owner = threading.get_ident()
        yield
    finally:
        group.owner = 0
        group.lock.release()


def tell_past(process_group: Any, name: str) -> None:
    """Tells the ranks of a group that this one makes no call before the one of a name; see Channel."""
    if not dist.is_available() or not dist.is_initialized():
        return
    group = _group_of(process_group)
    if group.lock.acquire(blocking=False):
        try:
            group.channel.tell_past(name)
        finally:
            group.lock.release()


def name_of(verb: str, path: Any) -> str:
    """Returns a call's name, the same on all ranks: it holds the path's last component alone.

    Raises nothing, also for an object that is no path: the call itself reports that.
    """
    try:
        name = os.fsdecode(path)
        return f"{verb} {os.path.basename(os.path.abspath(name))}"
    except (TypeError, ValueError):
        return f"{verb} {_arguments.shown(path)}"
    except OSError:  # The working directory was removed, here if not on other ranks.
        return f"{verb} {os.path.basename(os.path.normpath(name))}"


def make_background(
    process_group: Any, timeout: float, owner: str = "a stager", name: str = _SAVE
) -> Channel | None:
    """Returns a channel of its own for the background of a stager. Collective.

    Lives until it is closed, also when torch.distributed has ended. None means a single process. A wait in
    it is logged under `name`.
    """
    with collective(process_group, timeout, f"make {owner}") as channel:
        return background_in(channel, timeout, name)


def background_in(ranks: Coordinator | None, timeout: float, name: str = _SAVE) -> Channel | None:
    """Returns the same, made in the call that the ranks are in."""
    return ranks.background(timeout, name) if isinstance(ranks, Channel) else None


def job_store() -> Any:
    """Returns the store of the job; torch has no public name for it, up to 2.13."""
    return dist.distributed_c10d._get_default_store()


# The channels of a forked child are its parent's.
os.register_at_fork(after_in_child=lambda: leave_to_parent(_groups))
