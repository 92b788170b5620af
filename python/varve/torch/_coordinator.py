"""The ranks of a process group as the engine's Coordinator, over a channel of their own.

There is one channel for each set of ranks (_channel.py), kept from call to call, and one more for
each stager: messages of asynchronous saves have an order of their own, and go on when the job has
ended torch's groups.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from varve import _arguments
from varve._forks import leave_to_parent
from varve.errors import PreconditionError, UnavailableError
from varve.torch._addresses import Address
from varve.torch._channel import Channel
from varve.torch._waiting import INTERRUPTED

#: Seconds between the first two looks for rank 0's address, and between later ones of 1,024 ranks.
_FIRST_LOOK = 0.002
_LOOK = 0.2

#: Rank 0's answer may come when it has waited out the time limit for a third rank.
_ANSWER_GRACE = 10.0

#: Seconds in which messages leave at the end of a call. They leave later too, with the next call.
_FLUSH = 5.0


class _Alone:
    """The type of `ALONE`."""


#: Given as a process group: this process saves or loads alone, and no other rank of the job makes the
#: call. Frameworks call their checkpoint plugins on rank 0 only.
ALONE = _Alone()


class _Group:
    """A set of ranks of one world: how many calls this process has made there, and the channel."""

    def __init__(self) -> None:
        self.calls = 0
        self.channel: Channel | None = None
        self.lock = threading.Lock()  # Held during a call.
        self.owner = 0  # The thread that holds it.

    def release(self) -> None:
        """Ends the call's hold of the lock."""
        self.owner = 0
        self.lock.release()


#: By (world, ranks). The world is the default group object: a job that tears torch.distributed down
#: and sets it up again starts afresh, as its new ranks do.
_groups: dict[Any, _Group] = {}


def _group_of(ranks: tuple[int, ...]) -> _Group:
    world = dist.group.WORLD
    for key in [key for key in _groups if key[0] is not world]:
        ended = _groups.pop(key)  # Of a world that has ended.
        if ended.channel is not None:
            ended.channel.close()
    return _groups.setdefault((world, ranks), _Group())


class TorchCoordinator:
    """A Coordinator over a channel. Used by one thread at a time.

    Attributes:
        rank: Of this process in the group.
        size: How many ranks the group has.
        lost: True when a message did not come: the ranks may be out of step.
    """

    def __init__(self, channel: Channel, group: _Group | None = None) -> None:
        self.rank = channel.rank
        self.size = channel.size
        self.lost = False
        self._channel = channel
        self._group = group

    def send(self, to: int, message: bytes, timeout: float) -> None:
        """Sends a message to rank `to`; it is on its way when this returns."""
        try:
            self._channel.send(to, message)
        except UnavailableError:
            self.lost = True
            raise

    def receive(self, source: int, timeout: float) -> bytes:
        """Returns the next message from rank `source`. Raises UnavailableError."""
        try:
            return self._channel.receive(source, timeout)
        except UnavailableError:
            self.lost = True
            raise

    def interrupt(self) -> None:
        """Ends the waits of this rank. Threads: called while another one waits."""
        self._channel.interrupt(f"rank {self.rank} {INTERRUPTED}")

    def report(self, note: str) -> None:
        """Sends the ranks that wait for this one how far it is. Threads: any."""
        self._channel.report(note)

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the call. With an error, the ranks that still wait for this one learn of it."""
        why = "" if error is None else _reason(error)
        cause = None
        if isinstance(error, UnavailableError):
            if self._channel.cause is not None:  # The engine has it from rank 0, and names that.
                error.rank = self._channel.cause
            cause = error.rank
        try:
            self._channel.end(why, cause)
            self._channel.flush(_FLUSH)
        finally:
            if self._group is not None:
                self._group.release()
                self._group = None

    def flush(self, seconds: float) -> bool:
        """Waits until all sent messages have left; returns False where some have not."""
        return self._channel.flush(seconds)

    def hang_up(self) -> None:
        """Closes the channel. Only of a background, of which no call is left."""
        self._channel.close()

    def share(self, message: bytes, timeout: float) -> bytes:
        """Returns rank 0's message, on every rank, when all are there. Collective."""
        return self._gathered(b"", lambda _: message, timeout)

    def all_true(self, mine: bool, timeout: float) -> bool:
        """Returns True, on every rank, where `mine` is true on all of them. Collective."""
        answers = self._gathered(
            b"y" if mine else b"", lambda theirs: b"y" if mine and all(theirs) else b"", timeout
        )
        return bool(answers)

    def gather(self, mine: bytes, timeout: float) -> list[bytes]:
        """Returns every rank's message, on every rank, by rank. Collective."""

        def joined(theirs: list[bytes]) -> bytes:
            return b"".join(len(one).to_bytes(8, "little") + one for one in (mine, *theirs))

        rest = self._gathered(mine, joined, timeout)
        messages: list[bytes] = []
        while rest:
            size = int.from_bytes(rest[:8], "little")
            messages.append(rest[8 : 8 + size])
            rest = rest[8 + size :]
        return messages

    def _gathered(
        self, mine: bytes, answer: Callable[[list[bytes]], bytes], timeout: float
    ) -> bytes:
        """Returns, on every rank, rank 0's `answer` to the messages of the other ranks."""
        if self.rank != 0:
            self.send(0, mine, timeout)
            return self.receive(0, timeout + _ANSWER_GRACE)
        until = time.monotonic() + timeout
        received: list[bytes] = []
        missing: dict[int, str] = {}
        causes: set[int] = set()
        late: set[int | None] = set()
        for rank in range(1, self.size):
            try:
                received.append(self.receive(rank, max(until - time.monotonic(), 0.0)))
            except UnavailableError as error:
                missing[rank] = f"rank {rank}: {error}"
                late.add(error.errno)
                causes.add(rank if error.rank is None else error.rank)
        if missing:
            raise UnavailableError(
                f"{self._channel.what}: {'; '.join(missing.values())}",
                rank=min(causes),
                errno=late.pop() if len(late) == 1 else None,
            )
        message = answer(received)
        for rank in range(1, self.size):
            self.send(rank, message, timeout)
        return message


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return str(error) or type(error).__name__


def make_coordinator(process_group: Any, timeout: float, what: str) -> TorchCoordinator | None:
    """Enters a call of the ranks of a group, or of all ranks when torch.distributed is initialised.

    `what` names the call and is the same on all ranks. The caller ends it with `close`. None means a
    single process, as for `ALONE`. Waits while another thread of this process is in a call of the same ranks, and
    until rank 0 can be reached.

    Raises:
        PreconditionError: This rank is not in the group.
        UnavailableError: Rank 0 did not come within `timeout` seconds.
    """
    timeout = _arguments.seconds("timeout", timeout)
    if process_group is ALONE:
        return None
    if not dist.is_available() or not dist.is_initialized():
        if process_group is not None:
            raise PreconditionError(
                "a process_group was given, but torch.distributed is not set up"
            )
        return None
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise PreconditionError("this rank is not in the given process_group")
    if dist.get_world_size(process_group) == 1:
        return None
    whole = process_group if process_group is not None else dist.group.WORLD
    ranks = tuple(dist.get_process_group_ranks(whole))
    group = _group_of(ranks)
    until = time.monotonic() + timeout
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
        group.calls += 1
        if group.channel is None:
            group.channel = Channel(dist.get_rank(whole), len(ranks))
        _enter(group.channel, group.calls, what, ranks, until, timeout)
    except BaseException as error:
        group.release()
        if isinstance(error, UnavailableError):
            raise UnavailableError(
                f"{what}: {error}", rank=error.rank, errno=error.errno
            ) from error
        raise
    return TorchCoordinator(group.channel, group)


def _enter(
    channel: Channel, number: int, what: str, ranks: tuple[int, ...], until: float, timeout: float
) -> None:
    """Enters a call; where that fails, the others learn of it with the next one."""
    try:
        key = f"varve/channel/{_digest(ranks)}"
        if channel.rank == 0:
            if channel.address is None:
                _store().set(key, channel.listen().encode())
        elif not channel.connected:
            _reach(channel, key, until, timeout)
        channel.begin(number, what, timeout)
    except BaseException as error:
        channel.skip(number, what, _reason(error))
        raise


@contextlib.contextmanager
def collective(process_group: Any, timeout: float, what: str) -> Iterator[TorchCoordinator | None]:
    """A call of the ranks of a group, from its beginning to its end; see `make_coordinator`."""
    coordinator = make_coordinator(process_group, timeout, what)
    try:
        yield coordinator
    except BaseException as error:
        if coordinator is not None:
            coordinator.close(error)
        raise
    if coordinator is not None:
        coordinator.close()


def tell_past(process_group: Any, name: str) -> None:
    """Tells the ranks of a group that this one makes no call before the one of a name; see Channel."""
    if not dist.is_available() or not dist.is_initialized():
        return
    whole = process_group if process_group is not None else dist.group.WORLD
    group = _group_of(tuple(dist.get_process_group_ranks(whole)))
    if group.channel is None or not group.lock.acquire(blocking=False):
        return
    try:
        group.channel.tell_past(name)
    finally:
        group.lock.release()


def name_of(verb: str, path: Any) -> str:
    """Returns a call's name, the same on all ranks: it holds the path's last component alone.

    Raises nothing, also for an object that is no path: the call itself reports that.
    """
    try:
        return f"{verb} {os.path.basename(os.path.abspath(os.fsdecode(path)))}"
    except (TypeError, ValueError):
        return f"{verb} {_arguments.shown(path)}"


def make_background(
    process_group: Any, timeout: float, owner: str = "a stager"
) -> TorchCoordinator | None:
    """Returns a coordinator for the background of a stager, over a channel of its own. Collective.

    Lives until it is closed, also when torch.distributed has ended. None means a single process.
    """
    what = f"make {owner}"
    with collective(process_group, timeout, what) as coordinator:
        return background_in(coordinator, what, timeout)


def background_in(coordinator: Any, what: str, timeout: float) -> TorchCoordinator | None:
    """Returns the same, made in the call `what` that the ranks are in."""
    if coordinator is None:
        return None
    channel = Channel(coordinator.rank, coordinator.size)
    try:
        _connect_all(channel, coordinator, what, timeout)
    except BaseException:
        channel.close()
        raise
    channel.begin(1, "save in the background", timeout)
    return TorchCoordinator(channel)


def _connect_all(
    channel: Channel, coordinator: TorchCoordinator, what: str, timeout: float
) -> None:
    """Connects all ranks to a new channel; raises on all of them where one cannot.

    Returns when rank 0 has accepted all connections. Before, the first rank that was ready could close
    its end: rank 0's, which would refuse the others.
    """
    published = channel.listen().encode() if channel.rank == 0 else b""
    published = coordinator.share(published, timeout)
    until = time.monotonic() + timeout
    problem = ""
    if channel.rank != 0:
        try:
            channel.connect(Address.decode(published), until)
        except OSError as error:
            problem = f"rank 0 cannot be reached: {error}"

    def accepted(theirs: list[bytes]) -> bytes:
        found = {rank: text.decode() for rank, text in enumerate(theirs, 1) if text}
        if not found:
            found = channel.accept_all(until)
        return "; ".join(f"rank {rank}: {text}" for rank, text in found.items()).encode()

    problems = coordinator._gathered(problem.encode(), accepted, timeout).decode()
    if problems:
        raise UnavailableError(f"{what}: {problems}")


def make_gloo_group(process_group: Any, timeout: float) -> Any:
    """Returns a gloo group of the same ranks, registered with torch.distributed. Collective.

    Torch's own way names a group after a count that is local to a rank; ranks that belong to different
    numbers of groups would wait for each other without end. Here rank 0 names it.
    """
    with collective(process_group, timeout, "make a group for saves") as coordinator:
        if coordinator is None:
            return None
        rank = coordinator.rank
        name = coordinator.share(f"varve-{os.urandom(8).hex()}".encode(), timeout).decode()
    c10d = dist.distributed_c10d
    ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        rank,
        ranks,
        dist.Backend("gloo"),
        _store(),
        group_name=name,  # type: ignore[arg-type]
        timeout=c10d.default_pg_timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


def _digest(ranks: tuple[int, ...]) -> str:
    """Short, whatever the number of ranks: a key of TCPStore has at most 8 KiB."""
    return hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:32]


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _reach(channel: Channel, key: str, until: float, timeout: float) -> None:
    """Connects to rank 0, at the address that the store has under `key`.

    Asks the store again and again, rather than waiting in it: a wait blocks the job's own
    connection to the store for other threads, and blocks Ctrl-C; a connection of one's own takes
    TCPStore up to 5 s to accept (torch 2.13). The more ranks ask, the more seldom each does.
    """
    store = _store()
    pause = _FIRST_LOOK
    longest = _LOOK * max(channel.size / 1024, 1.0)
    while True:
        problem = f"rank 0: did not come before the deadline of {timeout:g} s"
        if store.check([key]):
            address = Address.decode(store.get(key))
            try:
                channel.connect(address, until)
                return
            except OSError as error:
                problem = (
                    f"rank 0: cannot be reached at {address}: {error} (GLOO_SOCKET_IFNAME names the "
                    "network interface that rank 0 is reached by)"
                )
        left = until - time.monotonic()
        if left <= 0:
            raise UnavailableError(problem, rank=0)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)


# The channels of a forked child are its parent's.
os.register_at_fork(after_in_child=lambda: leave_to_parent(_groups))
