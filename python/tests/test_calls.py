"""Which call of rank 0 is which of another rank: every order of a few calls, without sockets."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from varve.torch._calls import Calls


class Pair:
    """Rank 0 and another rank, each with the calls that it makes; one event at a time."""

    def __init__(self, rank_0: list[str], other: list[str]) -> None:
        self.calls = Calls()
        self.programs = {0: list(rank_0), 1: list(other)}
        self.present: dict[int, str | None] = {0: None, 1: None}
        self.outcomes: dict[int, list[str]] = {0: [], 1: []}
        self.joined: list[tuple[str, str]] = []
        self.number = 0

    def can(self) -> list[int]:
        return [r for r in (0, 1) if self.present[r] is None and self.programs[r]]

    def step(self, rank: int) -> None:
        """The rank begins its next call; what follows from that happens at once."""
        name = self.present[rank] = self.programs[rank].pop(0)
        if rank == 0:
            self.calls.begin(name)
        else:
            self.number += 1
            self.calls.comes(self.number, name)
        self._settle()

    def give_up(self, rank: int) -> None:
        """A time limit: the rank leaves its call."""
        if rank == 0:
            self.calls.end("waited")
        else:
            self.calls.leaves(self.number, "waited")
        self._leave(rank, "timeout")
        self._settle()

    def run(self, order: random.Random | None = None) -> Pair:
        while (can := self.can()) or any(self.present.values()):
            if can:
                self.step(order.choice(can) if order else can[0])
            else:  # Each rank waits for another one.
                waiting = [rank for rank in (0, 1) if self.present[rank] is not None]
                self.give_up(order.choice(waiting) if order else waiting[0])
        return self

    def _settle(self) -> None:
        while (decision := self.calls.decide(0)).kind != "wait":
            if decision.kind == "joined":
                mine, theirs = self.present[0], self.present[1]
                assert mine is not None and theirs is not None
                self.joined.append((mine, theirs))
                self.calls.end("")
                self._leave(0, "joined")
                self._leave(1, "joined")
            elif decision.kind == "mine":
                assert self.present[0] is not None and decision.why
                self.calls.end(decision.why)
                self._leave(0, decision.why)
            else:
                assert decision.number == self.number
                self._leave(1, decision.why)

    def _leave(self, rank: int, outcome: str) -> None:
        name, self.present[rank] = self.present[rank], None
        self.outcomes[rank].append(f"{name}: {outcome}")


def steps(*numbers: int) -> list[str]:
    return [f"save step-{number}" for number in numbers]


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_make_the_same_calls_make_each_together(seed: int) -> None:
    names = steps(1, 2) + ["load best"] + steps(3) + ["save latest"] * 3
    pair = Pair(names, names).run(random.Random(seed))
    assert pair.joined == [(name, name) for name in names]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("missed", [1, 2, 3])
def test_a_rank_that_misses_saves_costs_these_alone(who: int, missed: int, seed: int) -> None:
    all_calls = steps(*range(1, 9))
    some = [name for name in all_calls if name not in steps(*range(3, 3 + missed))]
    programs = [all_calls, some] if who == 1 else [some, all_calls]
    pair = Pair(*programs).run(random.Random(seed))
    assert pair.joined == [(name, name) for name in some]
    failed = [one for one in pair.outcomes[1 - who] if not one.endswith(": joined")]
    assert len(failed) == missed
    assert all("which" in one and "has missed" in one for one in failed), failed
    assert [one for one in pair.outcomes[who] if not one.endswith(": joined")] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_misses_a_load_is_at_the_next_save(seed: int) -> None:
    names = [*steps(1), "load best", *steps(2, 3)]
    pair = Pair(names, steps(1, 2, 3)).run(random.Random(seed))
    assert pair.joined == [(name, name) for name in steps(1, 2, 3)]


@pytest.mark.parametrize("seed", range(20))
def test_where_rank_0_misses_a_load_one_more_call_fails_at_most(seed: int) -> None:
    names = [*steps(1), "load best", *steps(2, 3, 4)]
    pair = Pair(steps(1, 2, 3, 4), names).run(random.Random(seed))
    assert pair.joined[-2:] == [(name, name) for name in steps(3, 4)]


@pytest.mark.parametrize("who", [0, 1])
def test_another_call_at_the_same_place_costs_both_ranks_it_and_no_further_one(who: int) -> None:
    programs = [[*steps(1), "save a", *steps(3, 4)], [*steps(1), "save b", *steps(3, 4)]]
    pair = Pair(programs[who], programs[1 - who]).run()
    assert pair.joined == [(name, name) for name in steps(1, 3, 4)]


def test_a_late_rank_fails_alone_and_never_joins_a_later_call_of_the_same_name() -> None:
    pair = Pair(["save latest"] * 3, ["save latest"] * 3)
    pair.step(0)
    pair.give_up(0)
    pair.step(0)  # Rank 0 is in its second call when the other one comes to its first.
    pair.step(1)
    assert pair.outcomes[1] == [
        "save latest: the other ranks have ended this call without this rank: waited"
    ]
    pair.step(1)
    assert pair.joined == [("save latest", "save latest")]
    pair.step(1)
    pair.step(0)
    assert len(pair.joined) == 2


def test_a_late_rank_0_fails_alone_likewise() -> None:
    pair = Pair(["save latest"] * 2, ["save latest"] * 2)
    pair.step(1)
    pair.give_up(1)
    pair.step(1)
    pair.step(0)
    assert pair.outcomes[0] == ["save latest: has left this call before rank 0 came: waited"]
    pair.step(0)
    assert pair.joined == [("save latest", "save latest")]


def test_what_no_name_tells_waits_for_a_vote() -> None:
    for vote, kind in ((-1, "mine"), (1, "theirs")):
        calls = Calls()
        calls.begin("load best")
        calls.comes(1, "save step-3")
        assert calls.decide().kind == "unclear"
        assert calls.decide(vote).kind == kind


def test_a_rank_that_is_past_a_call_has_missed_it() -> None:
    calls = Calls()
    calls.past = "save step-15"
    calls.begin("save step-10")
    decision = calls.decide()
    assert decision.kind == "mine" and "has missed save step-10" in decision.why
    calls.end(decision.why)
    calls.begin("save step-20")
    assert calls.decide().kind == "wait"
    calls.comes(1, "save step-20")
    assert calls.decide().missed == ("save step-10",)


def test_rank_0_that_is_past_a_call_has_missed_it() -> None:
    calls = Calls()
    calls.comes(1, "save step-10")
    assert calls.rank_0_is_past("save step-10").kind == "wait"
    assert calls.rank_0_is_past("load best").kind == "wait"
    assert calls.rank_0_is_past("save step-15").number == 1
    calls.begin("save step-20")
    calls.comes(2, "save step-20")
    assert calls.decide().missed_by_0 == ("save step-10",)


def test_calls_that_both_have_made_since_are_named_when_they_meet() -> None:
    calls = Calls()
    for name in steps(1, 2):
        calls.begin(name)
        calls.end("waited")
    calls.begin(steps(3)[0])
    calls.comes(1, steps(3)[0])
    decision = calls.decide()
    assert (decision.kind, decision.number, decision.missed) == ("joined", 1, tuple(steps(1, 2)))


def test_whatever_is_missed_by_whom_and_in_what_order_the_ranks_meet_again() -> None:
    """All programs of up to 4 of 6 calls, each kind of name, many orders; then 3 that both make."""
    names = ["save step-1", "load best", "save step-2", "save step-3", "load step-3", "save step-4"]
    last = ["save step-10", "save step-11", "save step-12"]
    subsets = [s for n in range(2, 5) for s in itertools.combinations(names, n)]
    order = random.Random(7)
    met: Counter[int] = Counter()
    for _ in range(4000):
        ours, theirs = order.choice(subsets), order.choice(subsets)
        pair = Pair([*ours, *last], [*theirs, *last]).run(order)
        assert all(mine == other for mine, other in pair.joined)
        assert (last[2], last[2]) in pair.joined, (ours, theirs, pair.outcomes)
        met[sum((name, name) in pair.joined for name in last)] += 1
    assert min(met) >= 2 and met[3] > 3600, met
