"""Which call of rank 0 is which call of another rank. Pure: no sockets, no clock.

All ranks are to make the same calls in the same order. A rank that skips one, as when an exception of its
loop is caught, makes one call fewer than the others. Rank 0 therefore keeps, for each other rank, the calls
that only one of the two has made since they were last in a call together:

  1. The two are in one call if it has the same name on both, and neither has left a call of this name at
     this place of its sequence. A rank that is late to a call which rank 0 has left has the same name at the
     same place: it fails alone, and is in step with its next call. Its state is older than what the others
     save next, so it never joins a later call of that name.
  2. A call that rank 0 has left without the other rank fails on that rank as soon as it makes it; and the
     other way round. From there on the two are in step.
  3. Where each is in a call that the other has not made, one of them has missed a call. The one whose call
     comes first fails there and goes on; the other waits for it. Of names that differ in their numbers
     alone, the lower number comes first ("save step-5" before "save step-6"). Else the greater part of
     the ranks is taken to have missed none, once all have come: their call comes first, and rank 0's where
     the parts are equal. If the next call is not what the other waits for, then the other's call fails.

  4. A rank may say that it is past a call without making another one, such as while it waits for the manager of
     a run. It has missed what comes before, by the numbers.

So a rank that has missed calls costs the others these calls, and the next one has all ranks. Where the
order was guessed wrong in 3, it costs one call more: then 2 finds the place.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

#: Calls that are remembered of a rank that does not come.
_KEPT = 64

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Made:
    """A call that one of the two has left, or is in."""

    name: str
    number: int = 0  #: The other rank's, for its own calls.
    why: str = ""  #: Why it was left,
    cause: int | None = None  #: and the rank that was the cause, where that is known.


@dataclass(frozen=True)
class Decision:
    """What follows from what is known.

    Attributes:
        kind: "wait": nothing yet. "joined": the two are in one call, now. "mine": rank 0's call fails.
            "theirs": the other's call `number` fails. "unclear": one of the two calls fails, by a vote.
        why: Why a call fails, as a sentence whose subject is the rank on the other side.
        number: The other's number of the call that is joined or that fails.
    """

    kind: Literal["wait", "joined", "mine", "theirs", "unclear"]
    why: str = ""
    number: int = 0
    cause: int | None = (
        None  #: The rank that is the cause, if it is another than the one on the other side.
    )
    missed: tuple[str, ...] = ()  #: Of "joined": calls of rank 0 that the other has not made.
    missed_by_0: tuple[str, ...] = ()  #: Calls of the other that rank 0 has not made.


_WAIT = Decision("wait")


class Calls:
    """The calls of rank 0 and of one other rank; see the top of this file."""

    def __init__(self) -> None:
        self.joined = (
            0  #: The other's number of rank 0's present call; 0 until they are in it together.
        )
        self.open: Made | None = None  #: The other's newest call, while it waits there for rank 0.
        self.past = ""  #: A call before which the other makes no more, by the numbers of the names.
        self._name: str | None = None  # Rank 0's present call.
        self._known = False  # That it fails, for which it need not be joined.
        self._wrong = 0  # What was voted and did not help.
        self._mine: deque[Made] = deque(maxlen=_KEPT)
        self._theirs: deque[Made] = deque(maxlen=_KEPT)

    # ---- what happens ----

    def begin(self, name: str) -> None:
        """Rank 0 enters a call."""
        self._name = name
        self._known = False
        self.joined = 0

    def end(self, why: str, cause: int | None = None) -> None:
        """Rank 0 leaves its call."""
        if self._name is not None and not self.joined and not self._known:
            self._mine.append(Made(self._name, why=why, cause=cause))
        self._name = None
        self.joined = 0

    def comes(self, number: int, name: str) -> None:
        """The other rank enters a call."""
        self._left("has begun another call")
        self.open = Made(name, number)
        self.past = ""

    def leaves(self, number: int, why: str) -> None:
        """The other rank leaves a call, with a reason."""
        if self.open is not None and self.open.number == number:
            self._left(why)

    def _left(self, why: str) -> None:
        if self.open is not None:
            self._theirs.append(Made(self.open.name, self.open.number, why))
        self.open = None

    # ---- what follows ----

    def decide(self, vote: int | None = None) -> Decision:
        """Returns what follows; to be asked after each event, until the answer is "wait" or "unclear".

        Args:
            vote: Of all ranks on what is unclear: -1 lets rank 0's call fail, 1 the other's. 0 is a tie.
        """
        name = None if self.joined or self._known else self._name
        late = None if name is None else _place(self._theirs, name, len(self._mine), self.open)
        if self.open is None:
            if late is not None:
                return self._rank_0_is_late(late)
            return _WAIT if name is None else self._other_is_past(name)
        behind = _place(self._mine, self.open.name, len(self._theirs), Made(name or ""))
        if behind is not None:
            return self._other_is_late(behind)
        if late is not None:
            return self._rank_0_is_late(late)
        if name is None:
            return _WAIT
        if name == self.open.name:
            return self._join()
        return self._one_has_missed(name, self.open, vote)

    def rank_0_is_past(self, name: str) -> Decision:
        """Returns what follows from rank 0's being in no call, and past what comes before one."""
        if self._name is not None or self.open is None or order_of(self.open.name, name) >= 0:
            return _WAIT
        number, missed = self.open.number, self.open.name
        self._left("rank 0 had missed it")
        return Decision("theirs", _is_past(missed, name), number)

    def _other_is_past(self, name: str) -> Decision:
        if not self.past or order_of(name, self.past) >= 0:
            return _WAIT
        self._known = True
        self._mine.append(Made(name, why="another rank had missed it"))
        return Decision("mine", _is_past(name, self.past))

    def _join(self) -> Decision:
        assert self.open is not None
        missed = tuple(made.name for made in self._mine)
        missed_by_0 = tuple(made.name for made in self._theirs)
        self._mine.clear()
        self._theirs.clear()
        self._wrong = 0
        self.joined, self.open = self.open.number, None
        return Decision("joined", "", self.joined, None, missed, missed_by_0)

    def _other_is_late(self, place: int) -> Decision:
        """The other makes a call that rank 0 has left: both have made all calls up to this one."""
        assert self.open is not None
        left, number = self._mine[place], self.open.number
        self._mine = deque(list(self._mine)[place + 1 :], _KEPT)
        self._theirs.clear()
        self._wrong = 0
        self.open = None
        reason = f": {left.why}" if left.why else ""
        why = f"the other ranks have ended this call without this rank{reason}"
        return Decision("theirs", why, number, left.cause)

    def _rank_0_is_late(self, place: int) -> Decision:
        why = self._theirs[place].why
        self._theirs = deque(list(self._theirs)[place + 1 :], _KEPT)
        self._mine.clear()
        self._wrong = 0
        self._known = True
        return Decision("mine", f"has left this call before rank 0 came: {why}")

    def _one_has_missed(self, name: str, theirs: Made, vote: int | None) -> Decision:
        order = order_of(name, theirs.name)
        if order == 0:
            if self._wrong == 0 and vote is None:
                return Decision("unclear")
            order = -self._wrong or vote or -1
            self._wrong = order
        if order < 0:
            self._known = True
            self._mine.append(Made(name, why="another rank had missed it"))
            return Decision("mine", _different(theirs.name, "rank 0", name, "it"))
        why = _different(name, "this rank", theirs.name, "rank 0")
        self._left(why)
        return Decision("theirs", why, theirs.number)


def _different(theirs: str, other: str, name: str, missed_by: str) -> str:
    return (
        f"calls {theirs} while {other} calls {name}, which {missed_by} has missed; all ranks must make the "
        "same calls in the same order"
    )


def _is_past(missed: str, name: str) -> str:
    return f"has missed {missed}, and goes on to {name}; all ranks must make the same calls in the same order"


def _place(made: deque[Made], name: str, since: int, present: Made | None) -> int | None:
    """Returns which of the calls that one rank has left has a name; None where it joins the present one.

    Where the call that the rank is in now has the name too, only a call at the same place of both
    sequences, or a later one, counts.
    """
    first = since if present is not None and present.name == name else 0
    return next((i for i, one in enumerate(made) if i >= first and one.name == name), None)


def order_of(mine: str, theirs: str) -> int:
    """Compares names that differ in numbers alone: -1 where `mine` comes first, 0 for other names."""
    if _NUMBERS.sub("#", mine) != _NUMBERS.sub("#", theirs):
        return 0
    a, b = ([int(digits) for digits in _NUMBERS.findall(name)] for name in (mine, theirs))
    return (a > b) - (a < b)
