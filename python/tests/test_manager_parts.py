"""The parts of a manager that decide: rank 0's verdicts, what saves cost, the time between them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

import varve
from varve._core import Channel
from varve._manage._agreement import Agreement, Chair, Posted, Verdict
from varve._manage._costs import FIRST_SAVE, Costs, Interval
from varve._manage._endings import Signals


class Wishes:
    """What rank 0 would like, as a test says."""

    def __init__(self) -> None:
        self.now = ("", "", "")

    def __call__(self) -> tuple[str, str, str]:
        return self.now


# ---- verdicts ----


def test_ranks_at_different_steps_get_one_error() -> None:
    verdict = Chair(Wishes()).decide([Posted(7), Posted(7), Posted(8)], 0.0)
    assert "rank 2 is at step 8 while rank 0 is at step 7" in verdict.error


def test_any_ranks_signal_stops_all_and_rank_0s_reason_comes_first() -> None:
    wishes = Wishes()
    chair = Chair(wishes)
    assert chair.decide([Posted(1), Posted(1, "SIGTERM")], 0.0).stop == "SIGTERM on rank 1"
    wishes.now = ("", "the deadline in 3 s", "")
    assert chair.decide([Posted(1), Posted(1, "SIGTERM")], 1.0).stop == "the deadline in 3 s"


def test_a_window_is_as_long_as_messages_a_few_times_a_second_allow() -> None:
    chair = Chair(Wishes(), pause=0.2)
    now = 0.0
    lengths = []
    for _ in range(9):
        verdict = chair.decide([Posted(0)], now)
        lengths.append(verdict.calls)
        now += verdict.calls * 0.01  # Steps of 10 ms.
    assert lengths[:2] == [1, 1]  # Both are made in the first call: no step has been timed.
    assert lengths[-1] == 20
    now += 5.0  # A step of five seconds.
    assert chair.decide([Posted(0)], now).calls == 1


def test_a_window_at_most_doubles_and_has_fifty_calls_at_most() -> None:
    chair = Chair(Wishes())
    verdicts = [chair.decide([Posted(0)], 0.0) for _ in range(10)]
    assert [verdict.calls for verdict in verdicts] == [1, 1, 2, 4, 8, 16, 32, 50, 50, 50]


def on_two_ranks(work: Callable[[int], None]) -> None:
    """Calls `work` with each of two ranks, in a thread of its own."""
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_what_is_decided_holds_on_both_ranks_in_the_same_call() -> None:
    store: dict[str, bytes] = {}
    wishes = Wishes()
    found: list[list[Verdict]] = [[], []]

    def work(rank: int) -> None:
        channel = Channel(rank, 2, 30.0)
        channel.enter("agree", 60.0, 60.0, "key", store.get, store.__setitem__)
        agreement = Agreement(channel, Chair(wishes, pause=0.0) if rank == 0 else None)
        for step in range(200):
            time.sleep(0.004)  # Longer than the pause between two exchanges.
            if rank == 0 and step == 100:
                wishes.now = ("it is time", "", "")
            found[rank].append(agreement.verdict(step, lambda step=step: Posted(step)))
        agreement.close()

    on_two_ranks(work)
    saves = [[step for step, verdict in enumerate(of) if verdict.save] for of in found]
    assert saves[0] == saves[1]
    assert 100 <= saves[0][0] <= 110  # The wish may come before step 100 has been decided.


def test_rank_0_logs_once_for_whose_decision_it_waits_and_the_limit_that_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store: dict[str, bytes] = {}

    def work(rank: int) -> None:
        channel = Channel(rank, 2, 1.0)
        channel.enter("make the manager", 60.0, 60.0, "key", store.get, store.__setitem__)
        background = channel.background(60.0, "the manager's next decision")
        channel.leave("", None)
        chair = Chair(lambda: ("", "", ""), pause=0.0) if rank == 0 else None
        agreement = Agreement(background, chair)
        for step in (7, 8, 9):
            if (rank, step) == (1, 8):
                time.sleep(2.5)
            agreement.verdict(step, lambda step=step: Posted(step))
        agreement.close()

    on_two_ranks(work)
    lines = [line for line in caplog.messages if "decision: rank 0 has waited 1 s" in line]
    assert len(lines) == 1 and "the time limit is 604800 s" in lines[0], caplog.messages


# ---- costs ----


def test_costs_are_what_a_step_takes_longer_while_a_save_is_written() -> None:
    costs = Costs()
    now = 0.0
    for _ in range(20):
        costs.tick(now, [], 0.0)
        now += 1.0
    now += 0.3  # A save that takes 0.3 s in the call; then two steps of 1.25 s beside it.
    costs.tick(now, [20], 0.3)
    for _ in range(2):
        now += 1.25
        costs.tick(now, [20], 0.0)
    costs.ended(20, 0.3, 2.5)
    known = costs.as_engine()
    assert known.stall == pytest.approx(0.3)
    assert known.background == pytest.approx(0.5, abs=0.01)
    assert known.write == 2.5


def test_auto_measures_a_first_save_and_then_spends_no_more_than_its_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    costs = Costs()
    interval = Interval(varve.Every("auto", share=0.01), None)
    assert interval.seconds(costs) == FIRST_SAVE
    costs.ended(1, 0.5, 3.0)
    assert interval.seconds(costs) == pytest.approx(50.0)
    assert "saves every 50 s: saves may cost no more of the time" in caplog.text
    assert interval.seconds(costs) == pytest.approx(50.0)
    assert caplog.text.count("saves every") == 1  # Not in each step.


def test_auto_saves_more_seldom_where_failures_are_rare() -> None:
    costs = Costs()
    costs.ended(1, 2.0, 3.0)
    often = Interval(varve.Every("auto", share=0.1, mtbf_hours=1), None).seconds(costs)
    rare = Interval(varve.Every("auto", share=0.1, mtbf_hours=100), None).seconds(costs)
    observed = Interval(varve.Every("auto", share=0.1), 3600.0).seconds(costs)
    assert often is not None
    assert rare is not None
    assert rare > 5 * often
    assert observed == often == pytest.approx((2 * 2.0 * 3600) ** 0.5, rel=0.05)


def test_steps_alone_have_no_interval() -> None:
    assert Interval(varve.Every(steps=5), None).seconds(Costs()) is None


# ---- signals ----


def test_a_handler_that_was_there_before_is_called_too() -> None:
    import os
    import signal

    called: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: called.append(number))
    try:
        signals = Signals(("SIGUSR2",))
        os.kill(os.getpid(), signal.SIGUSR2)
        assert signals.received == "SIGUSR2"
        assert called == [signal.SIGUSR2]
        signals.restore()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert called == [signal.SIGUSR2] * 2
    finally:
        signal.signal(signal.SIGUSR2, before)
