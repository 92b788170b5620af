"""Ranks that talk over torch.distributed.

Messages are point-to-point sends on a gloo group, eight bytes of length and then the content: with
collectives a rank that does not answer could not be told from one that waits for it. The group is
Varve's own, so that a checkpoint never waits behind a collective of the training.

What happens when a rank is lost, in order:
  1. Ranks meet in the job's rendezvous store before they make the group. Making a group with a rank
     that never comes would wait without saying for whom.
  2. A rank that dies closes its connections: its peers' receives fail at once.
  3. A receive that passes its deadline makes gloo close *all* connections of the group, those to
     living ranks too. From the first failure on a rank therefore goes by mail: keys in the store. It
     posts its last message again, since that may have been lost with the connection, and looks for
     mail for a few seconds before it takes a peer for gone. So every living rank still learns which
     rank was lost, and is not itself taken for lost.
  4. After a failed save or load all ranks drop the group (all know of the failure); the next one
     meets anew.

What asynchronous saves say in the background goes over a second group, which is not registered with
torch.distributed: it lives on, until the saves are done, when the job has ended torch's own groups.
"""

from __future__ import annotations

import contextlib
import datetime
import struct
from typing import Any

import torch
import torch.distributed as dist

from varve.errors import PreconditionError, UnavailableError

_LENGTH = struct.Struct("<Q")

#: Seconds in which a living rank has noticed that connections are closed and posted its mail.
_MAIL_GRACE = 3.0
#: The coordinator may wait that long for each lost rank before it answers the others.
_MAX_REPLY_GRACE = 60.0

#: Channels by (world, caller's group). The world is the default group object: a job that tears
#: torch.distributed down and sets it up again starts afresh, as its new ranks do.
_channels: dict[Any, _Channel] = {}

#: How often a channel has been made for (world, ranks); keeps the keys of their meetings apart.
_meetings: dict[Any, int] = {}


class _Channel:
    """A gloo group and the count of messages on it; lives from save to save."""

    def __init__(self, ranks: list[int], timeout: float, background: bool = False) -> None:
        where = (dist.group.WORLD, tuple(ranks), background)
        meeting = _meetings[where] = _meetings.get(where, 0) + 1
        self.ranks = ranks
        store = dist.distributed_c10d._get_default_store()
        # A wait on the job's own connection would hold up whoever else asks its store.
        self.store = store.clone() if background and hasattr(store, "clone") else store
        purpose = "background/" if background else ""
        self.tag = f"varve/{purpose}{'-'.join(map(str, ranks))}/{meeting}"
        self.sent: dict[int, tuple[int, bytes]] = {}
        self.received: dict[int, int] = {}
        self.broken = False
        self._meet(timeout)
        self.group: Any
        if background:
            self.group = dist.ProcessGroupGloo(
                dist.distributed_c10d.PrefixStore(f"{self.tag}/gloo", self.store),
                ranks.index(dist.get_rank()),
                len(ranks),
                _delta(timeout),
            )
        else:
            self.group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)

    def _meet(self, timeout: float) -> None:
        keys = [f"{self.tag}/here/{rank}" for rank in self.ranks]
        self.store.set(keys[self.ranks.index(dist.get_rank())], "here")
        try:
            self.store.wait(keys, _delta(timeout))
        except Exception as error:
            missing = [str(i) for i, key in enumerate(keys) if not self.store.check([key])]
            raise UnavailableError(
                f"rank {', rank '.join(missing)}: did not come before the deadline of {timeout:g} s"
            ) from error

    def send(self, tensor: torch.Tensor, to: int) -> Any:
        """Begins to send to the `to`-th rank."""
        return self.group.send([tensor], to, 0)

    def receive(self, tensor: torch.Tensor, source: int) -> Any:
        """Begins to receive from the `source`-th rank."""
        return self.group.recv([tensor], source, 0)

    def key(self, source: int, to: int, number: int) -> str:
        return f"{self.tag}/mail/{source}/{to}/{number}"


class TorchCoordinator:
    """A Coordinator over a process group. Used by one thread at a time."""

    def __init__(self, group: Any, timeout: float, background: bool = False) -> None:
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        whole = group if group is not None else dist.group.WORLD
        self._key = (dist.group.WORLD, whole)
        if background:
            self._channel = _Channel(dist.get_process_group_ranks(whole), timeout, background)
        else:
            if self._key not in _channels:
                _channels[self._key] = _Channel(dist.get_process_group_ranks(whole), timeout)
            self._channel = _channels[self._key]
        self._pending: list[tuple[Any, torch.Tensor]] = []

    def send(self, to: int, message: bytes, timeout: float) -> None:
        """Hands a message to rank `to`; it is on its way when this returns."""
        channel = self._channel
        number = channel.sent[to][0] + 1 if to in channel.sent else 0
        channel.sent[to] = (number, message)
        if not channel.broken:
            try:
                self._send_direct(to, message)
                return
            except Exception:
                channel.broken = True
        else:
            # Where it was another peer that was lost, this one may be waiting on its connection still.
            with contextlib.suppress(Exception):
                self._send_direct(to, message)
        self._post(to)

    def receive(self, source: int, timeout: float) -> bytes:
        """The next message from rank `source`; raises when it is gone or late."""
        channel = self._channel
        number = channel.received[source] = channel.received.get(source, -1) + 1
        reason: Exception | None = None
        if not channel.broken:
            try:
                return self._receive_direct(source, timeout)
            except Exception as error:
                channel.broken = True
                reason = error
        if source in channel.sent:
            self._post(source)
        key = channel.key(source, self.rank, number)
        grace = (
            _MAIL_GRACE if self.rank == 0 else min(_MAIL_GRACE * (self.size + 1), _MAX_REPLY_GRACE)
        )
        try:
            channel.store.wait([key], _delta(grace))
        except Exception as error:
            raise RuntimeError(_describe(reason or error)) from error
        return bytes(channel.store.get(key))

    @property
    def lost(self) -> bool:
        """True when a message did not get through: the ranks may be out of step."""
        return self._channel.broken

    def close(self, failed: bool, timeout: float) -> None:
        """Waits until everything sent has left, as far as its receiver lives; drops a bad channel."""
        arrived = self.flush(timeout)
        if failed or not arrived or self._channel.broken:
            _channels.pop(self._key, None)

    def flush(self, timeout: float) -> bool:
        """Waits until everything sent has left; False where a receiver is gone.

        What has not left when the process ends never does, and its receiver would wait for it.
        """
        arrived = True
        for work, _ in self._pending:
            try:
                work.wait(_delta(timeout))
            except Exception:  # The exchange has reported it already.
                arrived = False
        self._pending.clear()
        return arrived

    def _send_direct(self, to: int, message: bytes) -> None:
        self._pending = [(work, t) for work, t in self._pending if not work.is_completed()]
        for payload in (_LENGTH.pack(len(message)), message):
            if payload:
                tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
                work = self._channel.send(tensor, to)
                self._pending.append((work, tensor))

    def _receive_direct(self, source: int, timeout: float) -> bytes:
        (length,) = _LENGTH.unpack(self._receive_exactly(source, _LENGTH.size, timeout))
        return self._receive_exactly(source, length, timeout) if length else b""

    def _receive_exactly(self, source: int, size: int, timeout: float) -> bytes:
        tensor = torch.empty(size, dtype=torch.uint8)
        work = self._channel.receive(tensor, source)
        work.wait(_delta(timeout))
        return bytes(tensor.numpy().data)

    def _post(self, to: int) -> None:
        number, message = self._channel.sent[to]
        self._channel.store.set(self._channel.key(self.rank, to, number), message)  # type: ignore[arg-type]


def _delta(seconds: float) -> datetime.timedelta:
    # Whole milliseconds are what gloo takes, and it reads zero as "for ever". Infinity: 31 years.
    return datetime.timedelta(milliseconds=max(int(min(seconds, 1e9) * 1000), 1))


def _describe(error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    lowered = reason.lower()
    if "timed out" in lowered or "timeout" in lowered:
        return "no answer before the deadline"
    if any(word in lowered for word in ("closed", "reset", "refused")):
        return "is gone (its connection is closed)"
    return reason


def make_coordinator(
    process_group: Any, timeout: float, background: bool = False
) -> TorchCoordinator | None:
    """The ranks of a group, or of the default group when torch.distributed is initialised.

    `background` makes a channel of its own, for a thread that talks while others do. None means a single process. Raises PreconditionError for a group this rank is not in,
    UnavailableError naming the ranks that did not come within `timeout` seconds.
    """
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
    return TorchCoordinator(process_group, timeout, background)
