"""The channel of a process group: messages between rank 0 and every other rank, over sockets.

Varve's own sockets, because a collective of the training must not wait behind a checkpoint, because a
wait has to name the ranks that it waits for, and because the time limit of one rank must not cost the
connections of the others, as it does in gloo.

A save or load is one call. Its steps, and the purpose of each:
  1. Every rank numbers its calls on the group, from 1 on, when it enters one and before anything can
     fail. All ranks make the same calls in the same order, so equal numbers mean the same call.
  2. Rank 0 opens a listening socket with its first call, puts its address and a token into the job's
     store under a key that follows from the group's ranks alone, and waits for no rank. No count that
     is local to a rank takes part in a name: ranks that belong to different numbers of groups agree.
  3. Every other rank reads that key and connects. So a channel costs the store a few requests a rank,
     a rank one connection and rank 0 one from each. A rank that is refused reads the key again until
     its time is up: what it has read may be an older world's.
  4. A rank sends CALL with the call's number, its name and the seconds that it will wait. Rank 0
     drops all messages of earlier calls. A rank that comes late, to a call that rank 0 has ended,
     gets an error at once and fails that call alone; the next one finds all ranks in step.
  5. Rank 0 reads from all ranks at once. Where a rank has not called, rank 0 gives up at the
     earliest time limit of the ranks that have: so each of them learns within its own time limit
     which rank is missing.
  6. A rank that fails outside an exchange, or is interrupted, sends END with the reason. A rank
     that dies closes its connection. A rank that waits sees either at once.
  7. A receive that ends for want of time leaves the connection as it is. Call numbers keep later
     messages from being taken for those of another call.
  8. A rank that waits logs for which ranks, after half a minute and at doubling intervals. Rank 0
     sends the others the ranks that it waits for; ranks that write send rank 0 how far they are.

Threads: a call is made by one thread; other threads of the rank wait for it to end. `interrupt` and
`report` may be called by another thread than the one that waits.
"""

from __future__ import annotations

import contextlib
import json
import time

from varve.errors import UnavailableError
from varve.torch._frames import Frame, Kind
from varve.torch._star import LOST, Peer, Star
from varve.torch._waiting import LOG, Notices, name_ranks

#: Seconds in which a rank whose connection broke may connect again, at the start of a call.
_RECONNECT_GRACE = 3.0

#: Seconds between two notes of rank 0 to the ranks that wait for it.
_NOTE_INTERVAL = 5.0

#: Ended calls whose reason is kept, for ranks that come late.
_ENDED_KEPT = 64

_ALL_HAVE_TO_CALL = "every rank of the process group has to make this call"

_LATE_TO_COME = f"did not come before the deadline of {{:g}} s; {_ALL_HAVE_TO_CALL}"
_NO_ANSWER = "no answer before the deadline"


def _note_frame(note: str, waits_for_absent: bool) -> bytes:
    """Returns the frame that says how far a rank is, and whether it waits for an absent one."""
    return json.dumps([note, waits_for_absent]).encode()


class Channel(Star):
    """One rank's end of a channel; see the top of this file."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.number = 0  #: Of the call that this rank is in, or was in last.
        self.what = ""  #: That call's name.
        self._in_call = False
        self._limit = 0.0
        self._began = 0.0
        self._waits_for = 0  # Rank 0 has messages of all ranks below.
        self._others_wait_until = float("inf")  # The first of the ranks that are in this call.
        self._next_note = 0.0
        self._interrupted = ""
        self._doomed = ""  # The reason why this call must fail.
        self._ended: dict[int, str] = {}

    # ---- calls ----

    def begin(self, number: int, what: str, timeout: float) -> None:
        """Enters call `number`. `what` is the same on all ranks; it is compared."""
        with self._lock:
            self.number = number
            self.what = what
            self._in_call = True
            self._limit = timeout
            self._began = time.monotonic()
            self._interrupted = self._doomed = ""
            self._others_wait_until = float("inf")
            self._next_note = self._began + _NOTE_INTERVAL
            for peer in self.peers.values():
                peer.note = peer.note_sent = ""
                peer.waits_for_absent = False
                while peer.messages and peer.messages[0][0] < number:
                    peer.messages.popleft()
                if peer.call == number:
                    self._others_wait_until = min(self._others_wait_until, peer.deadline)
            self._listen_again()
            for peer in self.peers.values():
                self._put(peer, Kind.CALL, number, self._call_frame())

    def send(self, to: int, message: bytes) -> None:
        """Sends a message to rank `to`, and does not wait for it. Raises UnavailableError."""
        peer = self.peers[to]
        with self._lock:
            self._turn(0.0)
            if peer.connection is None:
                raise UnavailableError(peer.lost or LOST)
            self._put(peer, Kind.MESSAGE, self.number, message)

    def receive(self, source: int, timeout: float) -> bytes:
        """Returns the next message of this call from rank `source`. Raises UnavailableError.

        Rank 0 asks the other ranks in the order of their numbers.
        """
        peer = self.peers[source]
        self._waits_for = source
        start = time.monotonic()
        notices = Notices()
        while True:
            self._check_same_call(peer)
            if peer.messages and peer.messages[0][0] == self.number:
                return peer.messages.popleft()[1]
            until = self._waits_until(peer, start, start + timeout)
            now = time.monotonic()
            if now >= until:
                raise UnavailableError(self._late(peer))
            if notices.due():
                self._log(notices.seconds)
            self._tell_whom_we_wait_for(now)
            with self._lock:
                self._turn(min(until - now, notices.until_next, _NOTE_INTERVAL))

    def _check_same_call(self, peer: Peer) -> None:
        """Raises UnavailableError for a rank that makes another call.

        This comes before its messages, which are of that call, and before its reason to leave, which may
        be the same told from its side.
        """
        if peer.call == self.number and peer.what != self.what:
            raise UnavailableError(
                f"calls {peer.what} while rank {self.rank} calls {self.what}; all ranks must make the "
                "same calls in the same order"
            )

    def _waits_until(self, peer: Peer, start: float, deadline: float) -> float:
        """Returns until when a message of `peer` may come. Raises UnavailableError if none can."""
        if self._interrupted:
            raise UnavailableError(self._interrupted)
        if peer.left is not None and peer.left[0] == self.number:
            raise UnavailableError(peer.left[1])
        if peer.call > self.number:
            raise UnavailableError("has left this call and begun another one")
        if self._doomed:
            raise UnavailableError(f"was not waited for: {self._doomed}")
        if peer.connection is None and (peer.lost or self._refused):
            # It may be about to connect again, unless it was lost in this call.
            if self.rank != 0 or peer.call == self.number or self._refused:
                raise UnavailableError(self._refused or peer.lost)
            deadline = min(deadline, start + _RECONNECT_GRACE)
        if peer.call < self.number:
            deadline = min(deadline, self._began + self._limit, self._others_wait_until)
        return deadline

    def _late(self, peer: Peer) -> str:
        if peer.call < self.number:
            return peer.lost or _LATE_TO_COME.format(self._limit)
        return _NO_ANSWER + (f"; {peer.note}" if peer.note else "")

    def end(self, why: str = "") -> None:
        """Leaves the call. Sends a reason, if given, to the ranks that still wait for this one."""
        with self._lock:
            if not self._in_call:
                return
            self._in_call = False
            self._ended[self.number] = why
            self._ended.pop(self.number - _ENDED_KEPT, None)
            if why:
                for peer in self.peers.values():
                    if self.rank != 0 or peer.call == self.number:
                        self._put(peer, Kind.END, self.number, why.encode())
            with contextlib.suppress(OSError):
                self._turn(0.0)

    def flush(self, seconds: float) -> bool:
        """Waits until all sent messages have left; returns False where some have not.

        A message that has not left when the process ends is lost, and its receiver would wait for
        it.
        """
        until = time.monotonic() + seconds
        with self._lock:
            while any(p.connection and p.connection.has_unsent for p in self.peers.values()):
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._turn(left)
        return True

    def interrupt(self, why: str) -> None:
        """Ends the wait of another thread of this rank, and all further ones of the call."""
        self._interrupted = why
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def report(self, note: str) -> None:
        """Sends rank 0 how far this rank is; nothing while another thread uses the channel."""
        if self.rank != 0 and self._in_call and self._lock.acquire(blocking=False):
            try:
                peer = self.peers[0]
                if peer.connection is not None and not peer.connection.has_unsent:
                    self._put(peer, Kind.NOTE, self.number, _note_frame(note, False))
            finally:
                self._lock.release()

    # ---- whom a rank waits for ----

    def waited_for(self) -> str:
        """Names the ranks that this one waits for, and how far each is."""
        if self.rank != 0:
            return self.peers[0].note or "rank 0"
        groups: dict[str, list[int]] = {}
        for rank, peer in self.peers.items():
            if self._is_waited_for(rank, peer):
                came = peer.call == self.number
                state = (peer.note or "still working") if came else "not there yet"
                groups.setdefault(state, []).append(rank)
        return ", ".join(f"{name_ranks(ranks)} ({state})" for state, ranks in groups.items())

    def _is_waited_for(self, rank: int, peer: Peer) -> bool:
        """On rank 0: returns True for a rank whose message of this call has not arrived."""
        return rank >= self._waits_for and all(call != self.number for call, _ in peer.messages)

    def _some_have_not_come(self) -> bool:
        """Returns True when rank 0 is known to wait for a rank that has not made this call."""
        if self.rank != 0:
            return self.peers[0].waits_for_absent
        return any(
            peer.call != self.number and self._is_waited_for(rank, peer)
            for rank, peer in self.peers.items()
        )

    def _log(self, seconds: float) -> None:
        LOG.warning(
            "%s: rank %d has waited %.0f s for %s; the time limit is %g s%s",
            self.what,
            self.rank,
            seconds,
            self.waited_for(),
            self._limit,
            f"; {_ALL_HAVE_TO_CALL}" if self._some_have_not_come() else "",
        )

    def _tell_whom_we_wait_for(self, now: float) -> None:
        """Sends the ranks that wait for rank 0 a note that names those that it waits for."""
        if self.rank != 0 or now < self._next_note:
            return
        self._next_note = now + _NOTE_INTERVAL
        note = f"rank 0, which waits for {self.waited_for()}"
        absent = self._some_have_not_come()
        with self._lock:
            for peer in self.peers.values():
                if peer.call == self.number and peer.note_sent != note:
                    peer.note_sent = note
                    self._put(peer, Kind.NOTE, self.number, _note_frame(note, absent))

    # ---- frames ----

    def _call_frame(self) -> bytes:
        return json.dumps([self.what, self._limit]).encode()

    def _greet(self, peer: Peer) -> None:
        if self._in_call:
            self._put(peer, Kind.CALL, self.number, self._call_frame())

    def _miss(self, peer: Peer) -> None:
        if self._in_call and peer.call == self.number:
            self._doom(f"rank {peer.rank} {peer.lost}")

    def _doom(self, why: str) -> None:
        """Rank 0 need not wait for further ranks once one has left: the call fails."""
        if self.rank == 0:
            self._doomed = self._doomed or why

    def _take(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.CALL:
            self._take_call(peer, frame)
        elif frame.kind == Kind.MESSAGE:
            if frame.call >= self.number and (self.rank != 0 or frame.call == peer.call):
                peer.messages.append((frame.call, frame.payload))
        elif frame.kind == Kind.NOTE:
            if frame.call == self.number:
                peer.note, peer.waits_for_absent = json.loads(frame.payload)
        elif frame.kind == Kind.END and frame.call >= self.number:
            peer.left = (frame.call, frame.payload.decode())
            if frame.call == self.number:
                self._doom(f"rank {peer.rank} {peer.left[1]}")

    def _take_call(self, peer: Peer, frame: Frame) -> None:
        what, seconds = json.loads(frame.payload)
        if self.rank == 0 and (
            frame.call < self.number or (frame.call == self.number and not self._in_call)
        ):
            why = self._ended.get(frame.call, "")
            text = "the other ranks have ended this call without this rank" + (why and f": {why}")
            self._put(peer, Kind.END, frame.call, text.encode())
            return
        peer.call = frame.call
        peer.what = what
        peer.deadline = time.monotonic() + seconds
        if frame.call == self.number:
            self._others_wait_until = min(self._others_wait_until, peer.deadline)
