"""The manager on several ranks: nobody saves, ends or goes on alone."""

from __future__ import annotations

from pathlib import Path

import manager_jobs as jobs
import pytest
from ranks import collect, errors_of_ranks, run_ranks

import varve
import varve.torch


def steps(run: Path) -> list[int]:
    return [step.step for step in varve.steps(run)]


def test_ranks_save_the_same_steps_by_rank_0s_clock(tmp_path: Path) -> None:
    made = run_ranks(3, jobs.save_by_minutes, str(tmp_path / "run"))
    assert made[0] == made[1] == made[2]
    assert len(made[0]) >= 2
    assert steps(tmp_path / "run") == made[0]


@pytest.mark.parametrize("ask", [jobs.signal_rank_1, jobs.ask_by_file])
def test_a_signal_of_one_rank_ends_all_at_one_step(tmp_path: Path, ask: object) -> None:
    run = str(tmp_path / "run")
    ended = run_ranks(2, jobs.train_until, run, {}, ask)
    assert ended[0] == ended[1]
    last, reason, made = ended[0]
    assert made == [last]
    assert reason == ("SIGUSR1 on rank 1" if ask is jobs.signal_rank_1 else "the file varve-stop")
    assert run_ranks(2, jobs.resume, run, {}) == [(last, last, True)] * 2


@pytest.mark.parametrize("world", [1, 3])
def test_it_resumes_on_another_world(tmp_path: Path, world: int) -> None:
    run = str(tmp_path / "run")
    assert run_ranks(2, jobs.save_steps, run, [1, 2, 3], {"every": 1, "keep": 2}) == [[1, 2, 3]] * 2
    assert steps(tmp_path / "run") == [2, 3]
    assert run_ranks(world, jobs.resume, run, {}) == [(3, 3.0, True)] * world


def test_damage_that_one_rank_alone_reads_makes_all_take_the_older_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_ranks(2, jobs.save_steps, str(run), [1, 2], {"every": 1})
    data = run / "step-00000002" / "data-00001-of-00002.safetensors"
    content = bytearray(data.read_bytes())
    content[-20] ^= 1
    data.write_bytes(content)
    assert run_ranks(2, jobs.resume, str(run), {}) == [(1, 1.0, True)] * 2
    assert [e.step for e in varve.list_checkpoints(run) if e.state == "quarantined"] == [2]


def test_ranks_at_different_steps_are_told_so(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.at_different_steps, str(tmp_path / "run"))
    for error in errors.values():
        assert "InvalidArgumentError" in error
        assert "rank 1 is at step" in error


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    errors = errors_of_ranks(3, jobs.one_rank_dies, str(tmp_path / "run"), dead=(1,))
    assert "rank 1" in errors[0]
    assert all("UnavailableError" in error for error in errors.values())


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_raises_is_named_on_the_other(tmp_path: Path, which: int) -> None:
    told = run_ranks(2, jobs.one_rank_raises, str(tmp_path / "run"), which)
    assert told[which] == "'loss'"
    assert told[1 - which].startswith(f"the manager of the run: rank {which} ")


def test_a_second_job_is_refused_on_all_its_ranks(tmp_path: Path) -> None:
    with varve.CheckpointManager(tmp_path / "run"):
        errors = errors_of_ranks(2, jobs.second_job, str(tmp_path / "run"))
    assert all("another job has the run" in error for error in errors.values())


def test_after_n_failures_all_ranks_give_up_at_one_step(tmp_path: Path) -> None:
    ended = run_ranks(2, jobs.fail_twice, str(tmp_path / "run"))
    assert ended[0] == ended[1] >= 3


def test_a_protected_step_is_written_when_the_job_is_killed(tmp_path: Path, agent: str) -> None:
    run = str(tmp_path / "run")
    collect(2, jobs.protect_and_die, run, 7, dead=(0, 1))
    assert run_ranks(2, jobs.resume, run, {}) == [(7, 7.0, True)] * 2


def test_a_call_that_saves_nothing_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    # No clock decides a test: this one finds a call that waits for messages (a millisecond each).
    assert max(run_ranks(2, jobs.cost_of_no_save, str(tmp_path / "run"), 300)) < 0.05


def test_managers_that_are_made_and_closed_in_a_loop_disturb_no_later_one(tmp_path: Path) -> None:
    # Rank 0 closed its end of a channel before all had connected: one of a hundred failed.
    assert run_ranks(4, jobs.make_and_close, str(tmp_path / "run"), 100) == [100] * 4


@pytest.mark.parametrize("what", ["state", "state_dict", "metrics"])
@pytest.mark.parametrize("who", [0, 1])
def test_an_error_of_one_rank_fails_its_step_everywhere_and_the_next_is_saved(
    tmp_path: Path, who: int, what: str
) -> None:
    results = run_ranks(3, jobs.raise_on_one_rank, str(tmp_path / "run"), who, what)
    for outcomes, made, told in results:
        assert [outcome == "done" for outcome in outcomes] == [True, True, False, True, True]
        assert f"rank {who}" in outcomes[2] and "KeyError: 'momentum'" in outcomes[2], outcomes[2]
        assert made == [1, 2, 4, 5]
        assert len(told) == 1 and told[0].startswith("3: ") and "momentum" in told[0]


@pytest.mark.parametrize("who", [0, 1])
def test_ctrl_c_in_one_ranks_state_function_costs_one_save(tmp_path: Path, who: int) -> None:
    results = run_ranks(3, jobs.interrupt_a_state_function, str(tmp_path / "run"), who)
    for rank, outcomes in enumerate(results):
        assert [outcome == "done" for outcome in outcomes] == [True, False, True, True], results
        assert outcomes[1] == "Ctrl-C" if rank == who else f"rank {who}" in outcomes[1], results


@pytest.mark.slow
@pytest.mark.parametrize("missed", [15, 20])
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_misses_a_call_of_save_trains_on_with_the_others(
    tmp_path: Path, who: int, missed: int
) -> None:
    results = run_ranks(3, jobs.miss_a_call, str(tmp_path / "run"), who, missed, 200)
    for made, errors, seconds in results:
        assert 1 <= len(errors) <= 2, results
        assert f"rank {who if who else 1} is at step" in errors[0]
        assert made[-10:] == list(range(110, 201, 10)), results
        assert seconds < 40


@pytest.mark.parametrize("size", [1, 3])
def test_a_history_that_rank_0_cannot_read_is_the_same_error_on_all_ranks(
    tmp_path: Path, size: int
) -> None:
    history = tmp_path / "run" / "varve-history.jsonl"
    history.mkdir(parents=True)
    told = set(run_ranks(size, jobs.make_one, str(tmp_path / "run")))
    assert len(told) == 1, told
    text = told.pop()
    assert text.startswith(f"InvalidPathError {history} read the history {history}: Is a directory")
    assert text.endswith("let this user read the file, or move it away")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("raised", "on_rank_0", "on_others"),
    [
        (varve.CheckpointNotFoundError("none", path="a"), "CheckpointNotFoundError a 2", "none"),
        (OSError(5, "no", "a"), "UnavailableError a 5", "choose a: no (errno 5)"),
        (LookupError("none"), "LookupError", "InternalError None None LookupError: none"),
    ],
)
def test_an_error_of_rank_0s_decision_is_raised_on_all_ranks(
    raised: Exception, on_rank_0: str, on_others: str, size: int
) -> None:
    told = run_ranks(size, jobs.fail_to_decide, raised)
    assert told[0].startswith(on_rank_0), told
    assert all(on_others in one for one in told[1:]), told
    if isinstance(raised, (varve.Error, OSError)):
        assert set(told) == {told[0]}


def test_a_history_that_nothing_needs_is_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "varve-history.jsonl").mkdir(parents=True)
    with varve.CheckpointManager(run, every=1) as manager:
        manager.save(1, {"w": [1.0]})
    assert steps(run) == [1]
