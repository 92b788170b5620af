"""The channel of a process group: messages between rank 0 and every other rank, over sockets.

Varve's own sockets, because a collective of the training must not wait behind a checkpoint, because a
wait has to name the ranks that it waits for, and because the time limit of one rank must not cost the
connections of the others, as it does in gloo.

A save or load is one call. Its steps, and the purpose of each:
  1. Every rank numbers its calls on the group, from 1 on, when it enters one and before anything can
     fail. The number and the name go with the call.
  2. Rank 0 opens a listening socket with its first call, puts its address and a token into the job's
     store under a key that follows from the group's ranks alone, and waits for no rank. No count that
     is local to a rank takes part in a name: ranks that belong to different numbers of groups agree.
  3. Every other rank reads that key and connects. So a channel costs the store a few requests a rank,
     a rank one connection and rank 0 one from each. A rank that is refused reads the key again until
     its time is up: what it has read may be an older world's.
  4. A rank sends CALL with the call's number, its name and the seconds that it will wait, and the calls
     before it in which it did not reach rank 0. Rank 0 finds out which call of its own that is
     (_calls.py) and answers with CALL when it is in that one. All frames between the two bear the
     other rank's number; rank 0 keeps messages until they are in a call together, in both directions.
  5. A rank that comes late, to a call that rank 0 has ended, gets an error at once and fails that call
     alone; the next one finds all ranks in step. A rank that has missed a call waits in its present one
     while rank 0 ends the missed one on all ranks, with the names of both; rank 0 comes next. Where it
     was rank 0 that has missed a call, the ranks that wait in it get an error at once.
  6. Rank 0 reads from all ranks at once. Where a rank has not called, rank 0 gives up at the
     earliest time limit of the ranks that have: so each of them learns within its own time limit
     which rank is missing.
  7. A rank that fails outside an exchange, or is interrupted, sends END with the reason. A rank
     that dies closes its connection. A rank that waits sees either at once.
  8. A receive that ends for want of time leaves the connection as it is. Call numbers keep later
     messages from being taken for those of another call.
  9. A rank that waits logs for which ranks, after half a minute and at doubling intervals. Rank 0
     sends the others the ranks that it waits for; ranks that write send rank 0 how far they are.
 10. The channel of a background is made in a call of this one, and no rank leaves that call before
     rank 0 has accepted every connection (_coordinator.py): a rank that is ready first may close its
     end at once, and would refuse those that are still to connect.

Threads: a call is made by one thread; other threads of the rank wait for it to end. `interrupt` and
`report` may be called by another thread than the one that waits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections import Counter, deque

from varve.errors import UnavailableError
from varve.torch._calls import Decision
from varve.torch._frames import Frame, Kind
from varve.torch._star import LOST, Peer, Star
from varve.torch._waiting import INTERRUPTED, LOG, Notices, name_ranks

#: Seconds in which a rank whose connection broke may connect again, at the start of a call.
_RECONNECT_GRACE = 3.0

#: Seconds between two notes of rank 0 to the ranks that wait for it.
_NOTE_INTERVAL = 5.0

#: Calls in which rank 0 was not reached and that are kept, to be sent with the next one.
_UNTOLD_KEPT = 64

_ALL_HAVE_TO_CALL = "every rank of the process group has to make this call"

_LATE_TO_COME = f"did not come before the deadline of {{:g}} s; {_ALL_HAVE_TO_CALL}"
_NO_ANSWER = "no answer before the deadline"


def _note_frame(note: str, waits_for_absent: bool) -> bytes:
    """Returns the frame that says how far a rank is, and whether it waits for an absent one."""
    return json.dumps([note, waits_for_absent]).encode()


def _end_frame(why: str, cause: int | None) -> bytes:
    """Returns the frame that says why a rank has left a call, and which other rank is the cause."""
    return json.dumps([why, cause]).encode()


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
        self._doomed = ""  # The reason why this call must fail,
        self._doomed_by: int | None = None  # and the rank that is the cause.
        self._untold: deque[tuple[int, str, str]] = deque(maxlen=_UNTOLD_KEPT)
        # On rank 0: ranks by the calls that they, or rank 0 itself, have missed.
        self._missed: dict[tuple[str, bool], list[int]] = {}
        self._unclear = False  # Some rank may have missed a call, or rank 0 may.

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
            self._missed.clear()
            self._listen_again()
            for peer in self.peers.values():
                peer.note = peer.note_sent = ""
                peer.waits_for_absent = False
                if self.rank == 0:
                    peer.unsent.clear()
                    peer.calls.begin(what)
                    self._settle(peer)
                else:
                    _drop_before(peer, number)
                    self._put(peer, Kind.CALL, number, self._call_frame())
                    if peer.connection is not None:
                        self._untold.clear()

    def skip(self, number: int, what: str, why: str) -> None:
        """Notes a call that this rank has made without reaching the others."""
        with self._lock:
            self._untold.append((number, what, why))
            if self.rank == 0:
                for peer in self.peers.values():
                    peer.calls.begin(what)
                    peer.calls.end(why)

    def send(self, to: int, message: bytes) -> None:
        """Sends a message to rank `to`, and does not wait for it. Raises UnavailableError.

        A rank that has not come gets it when it does; nothing if this rank has left the call then.
        """
        peer = self.peers[to]
        with self._lock:
            self._turn(0.0)
            if peer.connection is None:
                raise UnavailableError(peer.lost or LOST)
            if self.rank == 0 and not peer.calls.joined:
                peer.unsent.append(message)
            else:
                self._put(peer, Kind.MESSAGE, self._number_on(peer), message)

    def receive(self, source: int, timeout: float) -> bytes:
        """Returns the next message of this call from rank `source`. Raises UnavailableError.

        Rank 0 asks the other ranks in the order of their numbers.
        """
        peer = self.peers[source]
        self._waits_for = source
        start = time.monotonic()
        notices = Notices()
        while True:
            number = self._number_on(peer)
            if number and peer.messages and peer.messages[0][0] == number:
                return peer.messages.popleft()[1]
            until = self._waits_until(peer, start, start + timeout)
            now = time.monotonic()
            if now >= until:
                raise UnavailableError(self._late(peer), errno=errno.ETIMEDOUT)
            if notices.due():
                self._log(notices.seconds)
            self._tell_whom_we_wait_for(now)
            with self._lock:
                self._turn(min(until - now, notices.until_next, _NOTE_INTERVAL))

    def _waits_until(self, peer: Peer, start: float, deadline: float) -> float:
        """Returns until when a message of `peer` may come. Raises UnavailableError if none can."""
        if self._interrupted:
            raise UnavailableError(f"was not waited for: {self._interrupted}", rank=self.rank)
        if peer.left is not None and peer.left[0] == self.number:
            raise UnavailableError(peer.left[1], rank=peer.left[2])
        if peer.call == self.number and peer.calls.open is not None:
            raise UnavailableError("has left this call and begun another one")
        if self._doomed:
            raise UnavailableError(f"was not waited for: {self._doomed}", rank=self._doomed_by)
        if peer.connection is None and (peer.lost or self._refused):
            # It may be about to connect again, unless it was lost in this call.
            if self.rank != 0 or peer.call == self.number or self._refused:
                raise UnavailableError(self._refused or peer.lost)
            deadline = min(deadline, start + _RECONNECT_GRACE)
        if peer.call < self.number:
            deadline = min(deadline, self._began + self._limit, self._others_wait_until)
        return deadline

    def _late(self, peer: Peer) -> str:
        if self.rank == 0 and peer.calls.open is not None and peer.call < self.number:
            return f"calls {peer.calls.open.name}; {_ALL_HAVE_TO_CALL}"
        if peer.call < self.number:
            return peer.lost or _LATE_TO_COME.format(self._limit)
        return _NO_ANSWER + (f"; {peer.note}" if peer.note else "")

    def end(self, why: str = "", cause: int | None = None) -> None:
        """Leaves the call. Sends a reason, if given, to the ranks that still wait for this one.

        `cause` is the rank that made this one leave, if another did.
        """
        with self._lock:
            if not self._in_call:
                return
            self._in_call = False
            for peer in self.peers.values():
                if why and (number := self._number_on(peer)):
                    self._put(peer, Kind.END, number, _end_frame(why, cause))
                if self.rank == 0:
                    peer.unsent.clear()
                    peer.calls.end(f"rank 0 {why}" if why == INTERRUPTED else why, cause)
            for (missed, by_0), ranks in self._missed.items():
                who, others = ("rank 0", name_ranks(ranks))[:: 1 if by_0 else -1]
                LOG.warning("%s: %s missed %s, which %s made", self.what, who, missed, others)
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

    def tell_past(self, name: str) -> None:
        """Tells the ranks that wait for this one in an earlier call that it has missed that.

        Calls come in the order of the numbers in their names. To be called between calls, again and again.
        """
        with self._lock:
            self._turn(0.0)
            for peer in self.peers.values():
                if self.rank != 0:
                    self._put(peer, Kind.PAST, self.number, name.encode())
                    continue
                decision = peer.calls.rank_0_is_past(name)
                if decision.kind == "theirs":
                    self._put(
                        peer, Kind.END, decision.number, _end_frame(decision.why, decision.cause)
                    )

    @property
    def cause(self) -> int | None:
        """The rank that made rank 0 leave this rank's call, where rank 0 has said so."""
        left = self.peers[0].left if self.rank != 0 else None
        return left[2] if left is not None and left[0] == self.number else None

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
        arrived = any(number == peer.calls.joined for number, _ in peer.messages)
        return rank >= self._waits_for and not arrived

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
                    self._put(peer, Kind.NOTE, self._number_on(peer), _note_frame(note, absent))

    # ---- frames ----

    def _number_on(self, peer: Peer) -> int:
        """Returns the number that frames of this call have; 0 on rank 0 for a rank that is not in it."""
        return peer.calls.joined if self.rank == 0 else self.number

    def _call_frame(self) -> bytes:
        return json.dumps([self.what, self._limit, list(self._untold)]).encode()

    def _greet(self, peer: Peer) -> None:
        """Waits for its CALL."""

    def _miss(self, peer: Peer) -> None:
        if self._in_call and peer.call == self.number:
            self._doom(peer, peer.lost)

    def _doom(self, peer: Peer, why: str) -> None:
        """Rank 0 need not wait for further ranks once one has left: the call fails."""
        if self.rank == 0 and not self._doomed:
            self._doomed, self._doomed_by = f"rank {peer.rank} {why}", peer.rank

    def _take(self, peer: Peer, frame: Frame) -> None:
        if self.rank == 0:
            self._take_on_0(peer, frame)
        elif frame.kind == Kind.CALL:
            self._take_answer(peer, frame)
        elif frame.kind == Kind.MESSAGE and frame.call >= self.number:
            peer.messages.append((frame.call, frame.payload))
        elif frame.kind == Kind.NOTE and frame.call == self.number:
            peer.note, peer.waits_for_absent = json.loads(frame.payload)
        elif frame.kind == Kind.END and frame.call >= self.number:
            why, cause = json.loads(frame.payload)
            peer.left = (frame.call, why, cause)

    def _take_answer(self, peer: Peer, frame: Frame) -> None:
        """Rank 0 is in the call of this rank too; `missed` names calls that this rank has not made."""
        missed: list[str] = json.loads(frame.payload)
        peer.call = frame.call
        if missed and frame.call == self.number:
            LOG.warning(
                "%s: rank %d has missed %s, which failed on the other ranks for that reason; %s",
                self.what,
                self.rank,
                ", ".join(missed),
                _ALL_HAVE_TO_CALL,
            )

    def _take_on_0(self, peer: Peer, frame: Frame) -> None:
        calls = peer.calls
        if frame.kind == Kind.CALL:
            what, seconds, untold = json.loads(frame.payload)
            for number, name, why in untold:
                calls.comes(number, name)
                calls.leaves(number, why)
            calls.comes(frame.call, what)
            peer.deadline = time.monotonic() + seconds
            self._settle(peer)
        elif frame.kind == Kind.MESSAGE:
            if frame.call == calls.joined or (calls.open and frame.call == calls.open.number):
                peer.messages.append((frame.call, frame.payload))
        elif frame.kind == Kind.NOTE:
            if frame.call == calls.joined:
                peer.note, peer.waits_for_absent = json.loads(frame.payload)
        elif frame.kind == Kind.PAST:
            calls.past = frame.payload.decode()
            self._settle(peer)
        elif frame.kind == Kind.END:
            why, cause = json.loads(frame.payload)
            if frame.call == calls.joined:
                self._fail_for(peer, why, cause)
            else:
                calls.leaves(frame.call, why)
                self._settle(peer)

    def _settle(self, peer: Peer, vote: int | None = None) -> None:
        """On rank 0: does what follows from the calls of the two."""
        while (decision := peer.calls.decide(vote)).kind not in ("wait", "unclear"):
            if decision.kind == "mine":
                self._fail_for(peer, decision.why)
                if peer.calls.open is not None:
                    note = _note_frame(f"rank 0, which was in {self.what} without it", True)
                    self._put(peer, Kind.NOTE, peer.calls.open.number, note)
            elif decision.kind == "theirs":
                self._put(peer, Kind.END, decision.number, _end_frame(decision.why, decision.cause))
                _drop_before(peer, decision.number + 1)
            else:
                self._join(peer, decision)
        peer.unclear = decision.kind == "unclear"
        if self._unclear or peer.unclear:
            self._vote()

    def _vote(self) -> None:
        """On rank 0: decides, once all ranks are in a call, which part of them has missed one."""
        unclear = [peer for peer in self.peers.values() if peer.unclear and peer.calls.open]
        self._unclear = bool(unclear)
        joined = sum(peer.calls.joined > 0 for peer in self.peers.values())
        if self._doomed or not unclear or joined + len(unclear) < len(self.peers):
            return
        names = Counter(peer.calls.open.name for peer in unclear if peer.calls.open)
        self._unclear = False
        for peer in unclear:
            assert peer.calls.open is not None
            others = names[peer.calls.open.name]
            self._settle(peer, (others > joined + 1) - (others < joined + 1))

    def _join(self, peer: Peer, decision: Decision) -> None:
        peer.call = self.number
        self._others_wait_until = min(self._others_wait_until, peer.deadline)
        _drop_before(peer, decision.number)
        self._put(peer, Kind.CALL, decision.number, json.dumps(decision.missed).encode())
        for message in peer.unsent:
            self._put(peer, Kind.MESSAGE, decision.number, message)
        peer.unsent.clear()
        for missed, by_0 in ((decision.missed, False), (decision.missed_by_0, True)):
            if missed:
                self._missed.setdefault((", ".join(missed), by_0), []).append(peer.rank)

    def _fail_for(self, peer: Peer, why: str, cause: int | None = None) -> None:
        """The call must fail: `why` follows the name of the rank."""
        peer.left = (self.number, why, cause)
        self._doom(peer, why)


def _drop_before(peer: Peer, number: int) -> None:
    """Drops messages of earlier calls."""
    while peer.messages and peer.messages[0][0] < number:
        peer.messages.popleft()
