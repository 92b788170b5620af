"""The ranks of one save or load, and the steps that they take together, over the engine's channel.

A step is: every rank does its part, the coordinator makes of all parts a reply for each rank. Where a part
or the joining fails, on whatever rank, all ranks raise one CheckpointException that has the exceptions of
all ranks that failed. The messages are pickles. They come from ranks of this job, whose channel has a token.

Names are compared before the first step: ranks whose calls have different names, because some have missed a
call, fail or wait as in `varve.torch.save` (src/coordinate/channel/channel_state.cc). A save in the background has a
channel of its own, which is made in a call of its ranks.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import WRAPPED_EXCEPTION, CheckpointException

from varve._core import Channel
from varve._warn import warn
from varve.errors import Error, InvalidArgumentError, UnavailableError
from varve.torch._coordinator import (
    ALONE,
    collective,
    left_in_order,
    make_background,
    name_of,
)
from varve.torch.dcp._errors import checkpoint_error, from_engine, portable, wrapped
from varve.torch.dcp._events import FILE

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Seconds that a rank waits for each message of the others, as in `varve.torch.save`.
TIMEOUT = 1800.0


class Group:
    """The ranks that save or load together.

    Attributes:
        process_group: As in the call.
        alone: This process saves or loads without others.
        rank: Within the group, as torch numbers failures.
        size: Number of ranks.
        storage: The class of a storage of the caller's, which names the call: what it has for a path may
            differ between ranks. Empty for those of this package.
    """

    def __init__(self, process_group: dist.ProcessGroup | None, no_dist: bool) -> None:
        self.process_group = process_group
        available = dist.is_available() and dist.is_initialized()
        if not available and not no_dist:
            warn(
                "torch.distributed is not initialized: this process saves or loads alone",
                UserWarning,
                through=FILE,
            )
        self.alone = no_dist or not available
        self.rank = 0 if self.alone else dist.get_rank(process_group)
        self.size = 1 if self.alone else dist.get_world_size(process_group)
        self.storage = ""
        self._in_background = False
        self._channel: Channel | None = None

    def in_background(self, what: str) -> Group:
        """Returns the same ranks for one call on another thread, which ends with `close`. Collective.

        They have no process group any more: the caller may end it before the save.
        """
        made = copy.copy(self)
        made._in_background = True
        made.process_group = None
        failure: BaseException | None = None
        if not self.alone:
            owner = f"a channel for {self._call_of(what)}"
            try:
                made._channel = make_background(self.process_group, TIMEOUT, owner)
            except Error as error:
                failure = from_engine(what, "wait", error, self.rank, self.rank)
        if failure is not None:
            raise failure from failure.__cause__
        return made

    def close(self) -> None:
        """Ends the channel of a call in the background: ranks that still wait for this one fail."""
        if self._channel is not None:
            self._channel.hang_up()

    def _call_of(self, what: str, part: str = "") -> str:
        """Returns the call that "save PATH" is, the same on all ranks; loads differ in their part alone."""
        verb, _, path = what.partition(" ")
        if verb == "load":
            return f"load {part}".rstrip()
        return f"save by {self.storage}" if self.storage else name_of(verb, path)

    @contextlib.contextmanager
    def entered(self, what: str, part: str = "") -> Iterator[Channel | None]:
        """Enters the call of a name."""
        if not self._in_background:
            ranks = ALONE if self.alone else self.process_group
            with collective(ranks, TIMEOUT, self._call_of(what, part)) as channel:
                yield channel
            return
        if self._channel is None:
            yield None
            return
        try:
            with left_in_order(self._channel):
                yield self._channel
        finally:
            self._channel.hang_up()


class Ranks:
    """The ranks while they are in a call.

    Attributes:
        rank: This one; 0 where it is alone.
        size: Number of ranks.
        is_coordinator: This rank joins the parts.
    """

    def __init__(self, channel: Channel | None, coordinator: int = 0) -> None:
        self._channel = channel
        self._coordinator = coordinator
        self.rank = 0 if channel is None else channel.rank
        self.size = 1 if channel is None else channel.size
        self.is_coordinator = channel is None or self.rank == coordinator

    def combine(
        self, step: str, part: Callable[[], _T], join: Callable[[list[_T]], list[_R]]
    ) -> _R:
        """Takes a step: `join` makes of the parts of all ranks the reply to each, on the coordinator.

        Raises CheckpointException, with the name of the step, on all ranks.
        """
        reply: Any = None
        packed: list[bytes] | None = None
        parts = self._gathered(self._attempt(part))
        if parts is not None:
            failures = {rank: one.failure for rank, one in enumerate(parts) if one.failure}
            if not failures:
                joined = self._attempt(lambda: self._packed(join([one.value for one in parts])))
                if joined.failure:
                    failures[self.rank] = joined.failure
                else:
                    reply, packed = joined.value
            if failures:
                reply, packed = self._packed([CheckpointException(step, failures)] * self.size)
        if self._channel is not None:
            reply = self._scattered(reply, packed)
        if isinstance(reply, CheckpointException):
            raise reply
        made: _R = reply
        return made

    def each(self, step: str, part: Callable[[], _T]) -> _T:
        """Takes a step whose parts are not joined; returns this rank's."""
        made: list[_T] = []
        self.combine(step, lambda: made.append(part()), lambda parts: parts)
        return made[0]

    def _attempt(self, part: Callable[[], Any]) -> _Attempt:
        try:
            return _Attempt(part(), None)
        except BaseException as error:  # A Ctrl-C, too, has to reach the others.
            return _Attempt(None, wrapped(error if self._channel is None else portable(error)))

    def _gathered(self, mine: _Attempt) -> list[Any] | None:
        """Returns the parts of all ranks on the coordinator; None on other ranks."""
        if self._channel is None:
            return [mine]
        if self.rank != 0:
            self._send(0, mine.packed())
            if not self.is_coordinator:
                return None
            return [mine if one is None else one for one in self._receive(0)]
        every: list[Any] = [mine, *(self._message(rank) for rank in range(1, self.size))]
        if self.is_coordinator:
            return [mine, *(pickle.loads(one) for one in every[1:])]
        every[0], every[self._coordinator] = mine.packed(), None
        made = [None if one is None else pickle.loads(one) for one in every]
        self._send(self._coordinator, pickle.dumps(made))
        return None

    def _packed(self, replies: list[Any]) -> tuple[Any, list[bytes]]:
        """Returns this rank's reply, and those to the others as messages."""
        if len(replies) != self.size:
            raise InvalidArgumentError(f"made {len(replies)} plans for {self.size} ranks")
        packed: dict[int, bytes] = {}  # Replies to all ranks are often one object.
        for rank, reply in enumerate(replies):
            if rank != self.rank and id(reply) not in packed:
                packed[id(reply)] = pickle.dumps(reply)
        return replies[self.rank], [packed.get(id(reply), b"") for reply in replies]

    def _scattered(self, reply: Any, packed: list[bytes] | None) -> Any:
        """Returns this rank's of the coordinator's replies, which the coordinator gives."""
        if self.rank != 0:
            if packed is None:
                return self._receive(0)
            self._send(0, pickle.dumps(packed))
            return reply
        if packed is None:
            packed = self._receive(self._coordinator)
            reply = pickle.loads(packed[0])
        for rank in range(1, self.size):
            if rank != self._coordinator:
                self._send(rank, packed[rank])
        return reply

    def _receive(self, rank: int) -> Any:
        return pickle.loads(self._message(rank))

    def _message(self, rank: int) -> bytes:
        assert self._channel is not None
        with _about(rank):
            return self._channel.receive(rank, TIMEOUT)

    def _send(self, rank: int, message: bytes) -> None:
        assert self._channel is not None
        with _about(rank):
            self._channel.send(rank, message, TIMEOUT)


@contextlib.contextmanager
def _about(rank: int) -> Iterator[None]:
    """Names the rank in an error; rank 0 may have it from another one, which `left_in_order` names."""
    try:
        yield
    except UnavailableError as error:
        if error.rank is None:
            error.rank = rank
        raise


class _Attempt:
    """The result of a part, or the exception that it has raised."""

    def __init__(self, value: Any, failure: WRAPPED_EXCEPTION | None) -> None:
        self.value = value
        self.failure = failure

    def packed(self) -> bytes:
        """Returns this as a message; a value that cannot be pickled is a failure."""
        try:
            return pickle.dumps(self)
        except Exception as error:
            return pickle.dumps(_Attempt(None, wrapped(portable(error))))


@contextlib.contextmanager
def together(what: str, group: Group, coordinator: int = 0, part: str = "") -> Iterator[Ranks]:
    """Enters a call of the ranks of a group, "save PATH" or "load PATH". Collective.

    `part` tells the second call of a load from the first. Raises the exception of a step, or of the channel, as `checkpoint_error` makes it.
    """
    failure: BaseException | None = None
    try:
        with group.entered(what, part) as channel:
            try:
                yield Ranks(channel, coordinator)
            except CheckpointException as error:  # All ranks have it: this one leaves in order.
                failure = checkpoint_error(what, error, group.rank)
    except Error as error:  # A rank is lost, or in another call.
        failure = from_engine(what, "wait", error, group.rank, group.rank)
    if failure is not None:
        raise failure from failure.__cause__
