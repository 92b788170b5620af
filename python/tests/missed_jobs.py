"""The ranks of test_missed_calls.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from channel_jobs import state_of
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import varve.torch
import varve.torch.dcp as dcp

#: Longer than the ranks are waited for: a rank that waits for its time limit fails the test.
LONG = 3600.0

Call = Callable[[dict[str, Any], str, Any], None]


def _save(state: dict[str, Any], path: str, group: Any) -> None:
    varve.torch.save(state, path, process_group=group, timeout=LONG, overwrite=True)


def _async_save(state: dict[str, Any], path: str, group: Any) -> None:
    varve.torch.async_save(state, path, process_group=group, timeout=LONG, overwrite=True).result(
        LONG
    )


def _load(state: dict[str, Any], path: str, group: Any) -> None:
    before = path.rpartition("/")[0] + "/before"
    varve.torch.load(state, before, process_group=group, timeout=LONG)


def _dcp_async_save(state: dict[str, Any], path: str, group: Any) -> None:
    dcp.async_save({"w": torch.ones(3)}, checkpoint_id=path, process_group=group).result(LONG)


VERBS: dict[str, Call] = {
    "save": _save,
    "async_save": _async_save,
    "load": _load,
    "dcp.async_save": _dcp_async_save,
}


class Lines(logging.Handler):
    """Collects the lines that the ranks log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("varve").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def outcome(call: Call, state: dict[str, Any], path: str, group: Any) -> str:
    try:
        call(state, path, group)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def miss(
    rank: int, size: int, directory: str, verb: str, who: list[int], missed: list[int], part: bool
) -> tuple[dict[int, str], list[str]]:
    """Saves steps 0 to 5; the ranks `who` leave out the steps `missed`, which are of `verb`.

    Returns what became of each step, and what was logged. With `part` the calls are of a group
    of the ranks from 1 on.
    """
    group = dist.new_group(list(range(1, size))) if part else None
    if part and rank == 0:
        return {}, []
    state = state_of(rank - part, size - part)
    varve.torch.save(state, f"{directory}/before", process_group=group, timeout=LONG)
    lines = Lines().lines
    outcomes: dict[int, str] = {}
    for step in range(6):
        if step in missed and rank in who:
            continue
        call = VERBS[verb] if step in missed or verb != "load" else _save
        outcomes[step] = outcome(call, state, f"{directory}/step-{step}", group)
    return outcomes, lines


def call_something_else(rank: int, size: int, directory: str, who: int) -> dict[int, str]:
    """One rank saves to another name at step 2."""
    state = state_of(rank, size)
    outcomes = {}
    for step in range(5):
        shown = "final" if step == 2 and rank == who else f"step-{step}"
        outcomes[step] = outcome(_save, state, f"{directory}/{shown}", None)
    return outcomes


def one_more_call(rank: int, size: int, directory: str, who: int) -> dict[str, str]:
    """One rank makes a call that no other makes, between steps 1 and 2."""
    state = state_of(rank, size)
    outcomes = {}
    for step in range(5):
        if step == 2 and rank == who:
            outcomes["extra"] = outcome(_save, state, f"{directory}/extra", None)
        outcomes[f"{step}"] = outcome(_save, state, f"{directory}/step-{step}", None)
    return outcomes


def give_up_at_different_instants(rank: int, size: int, directory: str) -> dict[int, str]:
    """Rank 2 misses step 1 and is busy for a while; the others wait 1, 1.5, and 2 seconds for it."""
    state = state_of(rank, size)
    outcomes = {}
    for step in range(4):
        if step == 1 and rank == 2:
            time.sleep(3.0)
            continue
        timeout = 1.0 + 0.5 * rank if step == 1 else LONG
        try:
            varve.torch.save(state, f"{directory}/step-{step}", timeout=timeout)
            outcomes[step] = "done"
        except varve.UnavailableError as error:
            outcomes[step] = str(error)
    return outcomes


def never_reach_rank_0(rank: int, size: int, directory: str) -> dict[int, str]:
    """Rank 0 comes to its first call when the others have given that up, and not even connected."""
    state = state_of(rank, size)
    outcomes = {}
    if rank == 0:
        time.sleep(2.0)
    for step in range(3):
        timeout = 0.5 if step == 0 and rank else LONG
        try:
            varve.torch.save(state, f"{directory}/latest", timeout=timeout, overwrite=True)
            outcomes[step] = "done"
        except varve.UnavailableError as error:
            outcomes[step] = str(error)
    return outcomes


def miss_one_in_flight(rank: int, size: int, directory: str, who: int) -> dict[int, str]:
    """Several saves of one stager in flight; one rank leaves one out."""
    stager = varve.torch.Stager(max_in_flight=3)
    state = {"w": torch.full((1 << 18,), 1.0), "mine": varve.torch.PerRank(rank)}
    handles = {}
    for step in range(8):
        if step == 3 and rank == who:
            continue
        state["w"].fill_(step)
        handles[step] = varve.torch.async_save(
            state, f"{directory}/step-{step}", stager=stager, timeout=LONG
        )
    outcomes = {}
    for step, handle in handles.items():
        error = handle.exception(LONG)
        outcomes[step] = "done" if error is None else str(error)
    stager.close()
    return outcomes


class _Cases:
    """Cases of one start of the ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def run(self, *of_ranks: dict[str, Callable[[], object]]) -> dict[str, str]:
        """Makes this rank's calls, one after the other, and returns what became of each.

        `of_ranks` are the calls of ranks 0 and 1, and those of rank 0 are the others' too.
        """
        outcomes = {}
        for name, call in of_ranks[self.rank == 1].items():
            try:
                call()
                outcomes[name] = "done"
            except Exception as error:
                blamed = getattr(error, "rank", "?")
                outcomes[name] = f"{type(error).__name__} of {blamed}: {error}"
        return outcomes


def miss_by_torch(rank: int, size: int, directory: str) -> dict[str, Any]:
    """Ranks miss calls of the drop-in; returns the outcomes of each case, and what was logged."""
    cases = _Cases(rank)
    lines = Lines().lines
    state = {"w": torch.arange(8.0), "n": torch.ones(2)}

    def save(name: str, **options: Any) -> Callable[[], object]:
        path = f"{directory}/{name}"
        return lambda: dcp.save(state, checkpoint_id=path, **options)

    def load(name: str) -> Callable[[], object]:
        path = f"{directory}/{name}"
        return lambda: dcp.load(dict(state), checkpoint_id=path)

    def saves(case: str, steps: list[int], **options: Any) -> dict[str, Callable[[], object]]:
        return {f"step-{step}": save(f"{case}/step-{step}", **options) for step in steps}

    found: dict[str, Any] = {}
    found["one"] = cases.run(saves("one", [0, 1, 2, 3]), saves("one", [0, 2, 3]))
    found["first"] = cases.run(saves("first", [2, 3, 4]), saves("first", [0, 1, 2, 3, 4]))
    caching = DefaultSavePlanner(enable_plan_caching=True)
    found["cached"] = cases.run(
        saves("cached", [0, 1, 2, 3, 4], planner=caching),
        saves("cached", [0, 1, 2, 4], planner=caching),
    )
    found["load"] = cases.run(
        {
            "save": save("load/step-1"),
            "load": load("one/step-0"),
            **saves("load", [2, 3]),
        },
        {"load": load("one/step-0"), **saves("load", [2, 3])},
    )
    named = {name: save(f"names/{name}") for name in ("first", "second", "third")}
    found["names"] = cases.run(named, {name: named[name] for name in ("second", "third")})
    found["apart"] = cases.run(
        saves("apart", [0, 1, 2], use_collectives=False),
        saves("apart", [0, 2], use_collectives=False),
    )
    found["lines"] = lines
    return found
