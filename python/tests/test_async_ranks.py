"""Asynchronous saves of several ranks: real processes with gloo."""

from __future__ import annotations

from pathlib import Path

import async_jobs
import pytest
from async_jobs import assert_holds, listed
from ranks import collect, run_ranks
from same import same

import varve
import varve.torch


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_saves_beside_a_training_equal_saves_that_stop_it(tmp_path: Path, size: int) -> None:
    steps = 6
    run_ranks(size, async_jobs.train_beside_saves, str(tmp_path), steps)
    for step in range(steps):
        found = varve.torch.read(tmp_path / f"async-{step}")
        assert same(found, varve.torch.read(tmp_path / f"twin-{step}"))
        assert found["step"] == step
        assert [found[f"mine/rank{rank}"]["rank"] for rank in range(size)] == [*range(size)]
        assert varve.verify(tmp_path / f"async-{step}") == []


@pytest.mark.slow
def test_a_training_resumed_from_an_asynchronous_save_goes_on_bit_for_bit(tmp_path: Path) -> None:
    assert run_ranks(2, async_jobs.resume_from_async, str(tmp_path / "a")) == [True, True]


def test_a_value_one_rank_cannot_store_fails_that_save_on_all_ranks(tmp_path: Path) -> None:
    ended = run_ranks(3, async_jobs.fail_on_one_rank_and_go_on, str(tmp_path), 1)
    for error, id_length in ended:
        assert error.startswith("InvalidArgumentError: ") and "rank 1: " in error
        assert "odd" in error and id_length == 32
    assert listed(tmp_path) == ["good"]


def test_all_ranks_skip_the_same_saves(tmp_path: Path) -> None:
    ended = run_ranks(2, async_jobs.busy, str(tmp_path), "skip")
    assert ended == [["NoneType", "CancelledError", "CancelledError"]] * 2
    assert listed(tmp_path) == ["0"]


def test_all_ranks_replace_the_same_saves(tmp_path: Path) -> None:
    ended = run_ranks(3, async_jobs.busy, str(tmp_path), "replace")
    assert ended == [["NoneType", "CancelledError", "NoneType"]] * 3
    assert listed(tmp_path) == ["0", "2"]
    assert_holds(tmp_path / "2", 2)


@pytest.mark.slow
@pytest.mark.parametrize("by", [0, 1])
def test_a_save_cancelled_by_one_rank_ends_on_all(tmp_path: Path, by: int) -> None:
    ended = run_ranks(2, async_jobs.cancel_on_one_rank, str(tmp_path / "a"), by)
    assert ended == [("CancelledError", True)] * 2
    assert listed(tmp_path) == ["a-next"]


def test_a_save_outlives_the_process_group(tmp_path: Path) -> None:
    assert run_ranks(2, async_jobs.save_and_destroy_the_group, str(tmp_path / "a")) == [1, 1]
    found = varve.torch.read(tmp_path / "a")
    assert [found.pop(f"mine/rank{rank}") for rank in range(2)] == [0, 1]
    assert same(found, async_jobs.state_of(5))


def test_saves_of_one_world_and_of_the_next_do_not_meet(tmp_path: Path) -> None:
    ended = run_ranks(2, async_jobs.save_in_one_world_and_the_next, str(tmp_path))
    assert ended == [[1, 1]] * 2
    for step in range(2):
        found = varve.torch.read(tmp_path / f"{step}")
        assert [found.pop(f"mine/rank{rank}") for rank in range(2)] == [0, 1]
        assert same(found, async_jobs.state_of(step))


def test_a_part_of_the_world_saves_while_the_rest_does_something_else(tmp_path: Path) -> None:
    assert run_ranks(3, async_jobs.save_in_a_part_of_the_world, str(tmp_path)) == [True] * 3
    for step in range(3):
        found = varve.torch.read(tmp_path / f"{step}")
        assert [found.pop(f"mine/rank{rank}") for rank in range(2)] == [0, 1]
        assert same(found, async_jobs.state_of(step))


def test_uncoordinated_ranks_save_in_the_background_too(tmp_path: Path) -> None:
    assert run_ranks(2, async_jobs.save_uncoordinated, str(tmp_path)) == [[True] * 3] * 2
    assert listed(tmp_path) == ["0", "1", "2"]
    found = varve.torch.read(tmp_path / "2", "mine/*")
    assert found == {"mine/rank0": 2, "mine/rank1": 12}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_rank_that_dies_while_it_writes_is_named_by_all_others_long_before_the_deadline(
    tmp_path: Path, at_once: bool
) -> None:
    path = str(tmp_path / "a")
    ended = collect(3, async_jobs.die_while_saving, path, 2, at_once, dead=(2,))
    assert {rank: outcome[0] for rank, outcome in ended.items()} == {0: "ok", 1: "ok"}
    assert all("rank 2" in outcome[1] for outcome in ended.values()), ended
    assert listed(tmp_path) == []


@pytest.mark.slow
def test_after_a_rank_was_late_the_ranks_find_each_other_again(tmp_path: Path) -> None:
    ended = run_ranks(2, async_jobs.lose_touch_and_recover, str(tmp_path))
    assert ended == [("NoAnswerError", 1)] * 2
    assert "again" in listed(tmp_path)


@pytest.mark.slow
def test_500_steps_with_a_save_each_are_all_saved_bit_for_bit_in_constant_memory(
    tmp_path: Path,
) -> None:
    ended = run_ranks(2, async_jobs.five_hundred_steps, str(tmp_path), 500)
    assert ended[0][0] == 500
    assert listed(tmp_path) == []
    for _, growth in ended:
        assert growth < 16 << 20, "half of what it has saved since"
