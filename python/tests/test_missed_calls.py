"""A rank that misses a call costs the others this call alone: real processes with gloo."""

from __future__ import annotations

from pathlib import Path

import missed_jobs as jobs
import pytest
from ranks import run_ranks

import varve
import varve.torch


def check_steps(directory: Path, size: int, missed: list[int]) -> None:
    """Every other step is whole."""
    for step in set(range(6)) - set(missed):
        assert varve.verify(directory / f"step-{step}") == []
    assert not any((directory / f"step-{step}").exists() for step in missed)


@pytest.mark.parametrize("missed", [[2], [2, 3], [1, 3]])
@pytest.mark.parametrize("who", [[2], [0], [1, 2]])
@pytest.mark.parametrize("verb", ["save", "async_save"])
def test_a_rank_that_misses_a_save_is_named_at_once_and_the_next_save_works(
    verb: str, who: list[int], missed: list[int], tmp_path: Path
) -> None:
    results = run_ranks(4, jobs.miss, str(tmp_path), verb, who, missed, False)
    for rank, (outcomes, _) in enumerate(results):
        for step, outcome in outcomes.items():
            assert (outcome == "done") == (step not in missed), (rank, step, outcome)
            if outcome != "done":
                assert outcome.startswith("UnavailableError: save "), outcome
                assert f"step-{step}" in outcome, outcome
                # A rank that comes after the others have ended the call is told that alone.
                names = [f"rank {one}" for one in who] + ["each of ranks 1-2"] * (who == [1, 2])
                told = "which" in outcome and any(name in outcome for name in names)
                assert told or "without this rank" in outcome, outcome
    check_steps(tmp_path, 4, missed)
    if missed == [2]:
        for rank in who:
            assert any(f"rank {rank} " in line and "missed" in line for line in results[rank][1])


@pytest.mark.parametrize("who", [0, 2])
def test_an_async_save_of_the_drop_in_that_a_rank_misses_is_lost_alone(
    who: int, tmp_path: Path
) -> None:
    results = run_ranks(3, jobs.miss, str(tmp_path), "dcp.async_save", [who], [2], False)
    for rank, (outcomes, _) in enumerate(results):
        for step, outcome in outcomes.items():
            assert (outcome == "done") == (step != 2), (rank, step, outcome)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_misses_a_load_saves_with_the_others_next(who: int, tmp_path: Path) -> None:
    results = run_ranks(3, jobs.miss, str(tmp_path), "load", [who], [2], False)
    for rank, (outcomes, _) in enumerate(results):
        failed = {step for step, outcome in outcomes.items() if outcome != "done"}
        assert failed == {2} & outcomes.keys(), (rank, outcomes)
    assert varve.verify(tmp_path / "step-4") == []


def test_a_missed_call_of_a_part_of_the_ranks_concerns_these_alone(tmp_path: Path) -> None:
    results = run_ranks(4, jobs.miss, str(tmp_path), "save", [2], [2], True)
    assert results[0][0] == {}
    for outcomes, _ in results[1:]:
        assert all((outcome == "done") == (step != 2) for step, outcome in outcomes.items())
    check_steps(tmp_path, 3, [2])


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_makes_another_call_fails_with_the_others_and_saves_with_them_next(
    who: int, tmp_path: Path
) -> None:
    results = run_ranks(3, jobs.call_something_else, str(tmp_path), who)
    for rank, outcomes in enumerate(results):
        assert outcomes[2] != "done"
        assert {outcomes[step] for step in (0, 1, 3, 4)} == {"done"}, (rank, outcomes)


@pytest.mark.parametrize("who", [0, 1])
def test_a_call_that_one_rank_alone_makes_costs_two_saves_at_most(who: int, tmp_path: Path) -> None:
    results = run_ranks(3, jobs.one_more_call, str(tmp_path), who)
    for outcomes in results:
        assert {outcomes[step] for step in ("0", "1", "3", "4")} == {"done"}, outcomes
    assert "extra" in results[who]["extra"]


@pytest.mark.slow
def test_ranks_that_give_up_at_different_instants_are_in_step_again(tmp_path: Path) -> None:
    results = run_ranks(3, jobs.give_up_at_different_instants, str(tmp_path))
    for rank, outcomes in enumerate(results):
        assert [outcomes[step] for step in (0, 2, 3)] == ["done"] * 3, (rank, outcomes)
    assert all("rank 2" in results[rank][1] for rank in (0, 1)), results


@pytest.mark.slow
def test_calls_that_did_not_reach_rank_0_count(tmp_path: Path) -> None:
    results = run_ranks(3, jobs.never_reach_rank_0, str(tmp_path))
    for outcomes in results:
        assert outcomes[0] != "done"
        assert outcomes[2] == "done", results
    # No rank's second state was saved with another's first.
    assert [outcomes[1] for outcomes in results] == ["done"] * 3, results


@pytest.mark.parametrize("who", [0, 1])
def test_a_save_that_is_missed_while_others_are_in_flight_fails_alone(
    who: int, tmp_path: Path
) -> None:
    results = run_ranks(3, jobs.miss_one_in_flight, str(tmp_path), who)
    for rank, outcomes in enumerate(results):
        assert {step for step, outcome in outcomes.items() if outcome != "done"} <= {3}, (
            rank,
            outcomes,
        )
    for step in (0, 1, 2, 4, 5, 6, 7):
        assert varve.verify(tmp_path / f"step-{step}") == []
        loaded = varve.torch.read(tmp_path / f"step-{step}")["w"]
        assert bool((loaded == step).all())
