"""Finds ranks that are in different calls of torch's protocol, of which some have missed one.

Torch's collectives match the calls of ranks by their order alone: a rank that leaves out one save joins the
others' with its next one. Therefore:
  1. Each rank's local plan carries the name of its call in `storage_data`. That costs no message.
  2. The coordinator compares the names when the plans have come. Planners that cache plans hand it an
     earlier save's, so what counts is what has arrived (`Sent`), not what is in the plans then.
  3. Where they differ, no rank goes on, and nothing is written: all get a DifferentCallsError with the names.
  4. Where the names differ in their numbers alone ("save step-5", "save step-6"), only the calls with the
     lowest number fail. The ranks in later ones have missed these: they make their call once more, which
     finds the others there.

Two saves of the same name are one call for all that can be known: a rank that leaves out one save of "latest"
joins it with its next one. Loads of different names are not compared: each rank reads what it asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from varve._core import name_ranks, order_of_calls
from varve.errors import PreconditionError
from varve.torch._coordinator import name_of
from varve.torch._failures import LOG

_T = TypeVar("_T")

#: Calls in a row that a rank may have missed.
_MOST_MISSED = 64

_ALL_ALIKE = "all ranks must make the same calls in the same order"


class _Arrived(threading.local):
    """The calls whose plans have come to this thread since its own began, by rank."""

    def __init__(self) -> None:
        self.calls: list[str] = []


_arrived = _Arrived()


@dataclasses.dataclass
class Sent:
    """What a local plan carries to the coordinator besides its items."""

    call: str
    prints: Any = None
    """Fingerprints of tensors (_replicas.py), if any."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _arrived.calls.append(self.call)


class DifferentCallsError(PreconditionError):
    """Ranks are in different calls.

    Attributes:
        calls: By rank. `Error.rank` is the lowest rank that has missed a call, where the names tell.
    """

    calls: tuple[str, ...] = ()

    @staticmethod
    def of(calls: Sequence[str]) -> DifferentCallsError:
        """Returns the error for the calls that the ranks are in."""
        by_name: dict[str, list[int]] = {}
        for rank, call in enumerate(calls):
            by_name.setdefault(call, []).append(rank)
        listed = ", ".join(
            f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} in {call}"
            for call, ranks in by_name.items()
        )
        first = _first_of(calls)
        late = [rank for rank, call in enumerate(calls) if first is not None and call != first]
        missed = f"; {name_ranks(late)} missed {first}" if late else ""
        made = DifferentCallsError(
            f"the ranks are in different calls: {listed}{missed}; {_ALL_ALIKE}",
            rank=min(late, default=None),
        )
        made.calls = tuple(calls)
        return made


def begin() -> None:
    """Forgets what has arrived: this rank begins a call."""
    _arrived.calls = []


def call_of(what: str) -> str:
    """Returns the call that "save PATH" is, the same on all ranks; loads differ in nothing."""
    verb, _, path = what.partition(" ")
    return verb if verb == "load" else name_of(verb, path)


def check_arrived() -> None:
    """On the coordinator: raises DifferentCallsError where the plans that came are of different calls."""
    calls, _arrived.calls = _arrived.calls, []
    check(calls)


def check(calls: Sequence[str]) -> None:
    """Raises DifferentCallsError where the calls of the ranks differ."""
    if len(set(calls)) > 1:
        raise DifferentCallsError.of(calls)


@contextlib.contextmanager
def checked_first(planner: Any) -> Iterator[None]:
    """Lets a planner's `create_global_plan` begin with the check: the plans of a load would break a save's."""
    if planner is None:
        yield
        return
    begin()
    create = planner.create_global_plan
    own = vars(planner).get("create_global_plan") if hasattr(planner, "__dict__") else None

    def check_and_create(plans: Any) -> Any:
        check_arrived()
        return create(plans)

    try:
        planner.create_global_plan = check_and_create
    except AttributeError:  # It takes no attributes: the writer checks, a little later.
        yield
        return
    try:
        yield
    finally:
        if own is not None:
            planner.create_global_plan = own
        else:
            with contextlib.suppress(AttributeError):
                del planner.create_global_plan


def until_joined(rank: int, run: Callable[[], _T]) -> _T:
    """Makes a call of torch's protocol, again where the other ranks were still in an earlier one."""
    for _ in range(_MOST_MISSED):
        try:
            return run()
        except CheckpointException as error:
            different = different_calls(error)
            if different is None or not _is_later(different.calls, rank):
                raise
            first = _first_of(different.calls)
            LOG.warning(
                "%s: rank %d has missed %s, which has failed on the other ranks for that reason; %s",
                different.calls[rank],
                rank,
                first,
                _ALL_ALIKE,
            )
    return run()


def different_calls(error: CheckpointException) -> DifferentCallsError | None:
    """Returns the DifferentCallsError that torch has brought from the coordinator, if it is one."""
    causes = [cause for cause, _ in error.failures.values()]
    return next((one for one in causes if isinstance(one, DifferentCallsError)), None)


def _first_of(calls: Sequence[str]) -> str | None:
    """Returns the call with the lowest numbers; None where names differ in more than numbers."""
    first = calls[0]
    for call in calls:
        order = order_of_calls(call, first)
        if order == 0 and call != first:
            return None
        first = call if order < 0 else first
    return first


def _is_later(calls: Sequence[str], rank: int) -> bool:
    first = _first_of(calls)
    return first is not None and rank < len(calls) and calls[rank] != first
