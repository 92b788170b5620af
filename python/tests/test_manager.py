"""The manager of a run in one process: when it saves, what it keeps, where it resumes, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_job import other_job

import varve
from varve._manage import _history


def state(value: float = 0.0) -> dict[str, Any]:
    return {"w": np.full(3000, value, np.float64), "n": float(value)}


def train(manager: varve.CheckpointManager, steps: range, **metrics: Any) -> None:
    for step in steps:
        manager.save(step, state(step), metrics={k: v(step) for k, v in metrics.items()})


def names(run: Path) -> list[int]:
    return [step.step for step in varve.steps(run)]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in _history.read(str(run)) if line["event"] == kind]


def flip(file: Path, position: int = -5000) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"


# ---- when ----


def test_it_saves_at_multiples_of_the_steps(run: Path) -> None:
    with varve.CheckpointManager(run, every=10) as manager:
        made = [step for step in range(1, 35) if manager.save(step, state(step)) is not None]
    assert made == [10, 20, 30]
    assert names(run) == made


def test_it_saves_when_the_minutes_have_passed(run: Path) -> None:
    with varve.CheckpointManager(run, every=varve.Every(minutes=0.2 / 60)) as manager:
        assert manager.save(1, state()) is None
        time.sleep(0.25)
        assert manager.save(2, state()) is not None
        assert manager.save(3, state()) is None
    assert events(run, "save")[0]["reason"] == "0 s have passed"


def test_without_a_policy_it_saves_on_demand_and_the_same_step_once(run: Path) -> None:
    with varve.CheckpointManager(run) as manager:
        assert manager.save(1, state()) is None
        first = manager.save(2, state(), force=True)
        assert manager.save(2, state(), force=True) is first
    assert names(run) == [2]


def test_a_function_makes_the_state_only_where_a_save_is_made(run: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(1)
        return state(7)

    with varve.CheckpointManager(run, every=2) as manager:
        for step in range(1, 4):
            manager.save(step, make)
    assert len(made) == 1
    assert varve.read(run / "step-00000002")["n"] == 7


def test_a_file_asks_for_a_save_and_another_one_for_the_end(run: Path) -> None:
    with varve.CheckpointManager(run) as manager:
        (run / "varve-save").touch()
        assert manager.save(1, state()) is not None
        assert not manager.preempted
        (run / "varve-stop").touch()
        deadline = time.monotonic() + 30
        step = 2
        while not manager.preempted and time.monotonic() < deadline:
            manager.save(step, state())
            step += 1
            time.sleep(0.01)
        assert manager.stop_reason == "the file varve-stop"
    assert not (run / "varve-save").exists()
    assert not (run / "varve-stop").exists()
    assert names(run) == [1, step - 1]


def test_a_signal_saves_at_the_next_step_and_ends_the_run(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with varve.CheckpointManager(run) as manager:
        assert manager.save(1, state()) is None
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        assert caplog.messages == [
            "SIGTERM: the run saves at its next step and ends; once more from 30 s on ends this "
            "process at once"
        ]
        assert manager.save(2, state()) is not None
        assert manager.preempted
        assert manager.stop_reason == "SIGTERM"
    assert names(run) == [2]
    assert signal.getsignal(signal.SIGTERM) is before
    assert events(run, "end")[0]["outcome"] == "SIGTERM"


def test_a_deadline_saves_in_time(run: Path) -> None:
    ending = varve.Ending(deadline=time.time() + 100.3, margin=100)
    with varve.CheckpointManager(run, ending=ending) as manager:
        assert manager.save(1, state()) is None
        time.sleep(0.4)
        assert manager.save(2, state()) is not None
        assert manager.preempted


def test_slurm_says_when_the_job_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time() + 50)))
    with varve.CheckpointManager(run, ending=varve.Ending(deadline="slurm")) as manager:
        assert manager.save(1, state()) is not None
        assert manager.preempted


def test_a_manager_of_another_thread_sees_no_signals_and_says_so(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> None:
        varve.CheckpointManager(run).close()

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert "outside of the main thread" in caplog.text


# ---- what is kept ----


def test_rules_keep_the_last_every_and_the_best(run: Path) -> None:
    keep = varve.Keep(last=2, every=50, best=1, by="loss")
    with varve.CheckpointManager(run, every=10, keep=keep) as manager:
        train(manager, range(1, 131), loss=lambda step: abs(step - 70))
    assert names(run) == [50, 70, 100, 120, 130]
    removed = {line["step"] for line in events(run, "remove")}
    assert removed == {10, 20, 30, 40, 60, 80, 90, 110}


def test_a_limit_of_one_works(run: Path) -> None:
    with varve.CheckpointManager(run, every=1, keep=1) as manager:
        train(manager, range(1, 6))
    assert names(run) == [5]


def test_the_best_by_a_metric_that_no_step_has_are_asked_for(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = varve.Keep(last=1, best=1, by="los")
    with varve.CheckpointManager(run, every=1, keep=keep) as manager:
        for step in range(1, 4):
            manager.save(step, state(step), metrics={"loss": float(step)})
    warnings = [one for one in caplog.messages if "has the metric 'los'" in one]
    assert len(warnings) == 1 and warnings[0].endswith("steps have loss")
    with pytest.raises(varve.PreconditionError, match='no step has the metric "los"'):
        varve.prune(run, keep)


def test_nan_is_never_best_and_max_turns_the_order(run: Path) -> None:
    keep = varve.Keep(last=1, best=1, by="accuracy", mode="max")
    values = {1: 0.5, 2: float("nan"), 3: 0.25, 4: 0.125}
    with varve.CheckpointManager(run, every=1, keep=keep) as manager:
        train(manager, range(1, 5), accuracy=values.__getitem__)
        best = manager.best()
        assert best is not None
        assert best.step == 1
        assert best.metrics == {"accuracy": 0.5}
        lowest = manager.best(mode="min")
        assert lowest is not None
        assert lowest.step == 4
    assert names(run) == [1, 4]


def test_metrics_are_looked_at_only_where_a_save_is_made(run: Path) -> None:
    looked: list[int] = []

    def loss() -> float:
        looked.append(1)
        return 1.5

    with varve.CheckpointManager(run, every=2) as manager:
        manager.save(1, state(), metrics={"loss": loss})
        assert not looked
        manager.save(2, state(), metrics={"loss": loss})
        assert looked == [1]
        with pytest.raises(varve.InvalidArgumentError, match=r"metrics\['loss'\]='low'"):
            manager.save(4, state(), metrics={"loss": "low"})
    assert varve.steps(run)[0].metrics == {"loss": 1.5}


def test_pinned_and_foreign_names_stay(run: Path) -> None:
    with varve.CheckpointManager(run, every=1, keep=1) as manager:
        manager.save(1, state())
        manager.pin(1, "for the paper")
        varve.save(state(), run / "step-00000001-backup")
        varve.save(state(), run / "pretrained")
        train(manager, range(2, 4))
        manager.wait()
        assert names(run) == [1, 3]
        manager.unpin(1)
        manager.save(4, state())
    assert names(run) == [4]
    assert {"step-00000001-backup", "pretrained"} <= set(os.listdir(run))


def test_prune_tells_the_truth_when_dry_and_refuses_no_rules(run: Path) -> None:
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 5))
    keep = varve.Keep(last=2)
    would = [one.step.step for one in varve.prune(run, keep, dry_run=True) if one.removed]
    assert names(run) == [1, 2, 3, 4]
    assert [one.step.step for one in varve.prune(run, keep) if one.removed] == would == [1, 2]
    with pytest.raises(varve.InvalidArgumentError, match="no rule"):
        varve.prune(run, varve.Keep())


def test_a_step_that_is_being_read_stays(run: Path) -> None:
    with varve.CheckpointManager(run, every=1, keep=1) as manager:
        manager.save(1, state(1))
        opened = varve.open(run / "step-00000001")
        train(manager, range(2, 4))
        manager.wait()
        assert names(run) == [1, 3]
        assert opened["n"] == 1
        del opened
        manager.save(4, state())
    assert names(run) == [4]


# ---- resume ----


def test_it_resumes_from_the_newest_step_and_says_none_for_a_new_run(run: Path) -> None:
    with varve.CheckpointManager(run, every=5) as manager:
        assert manager.resume(state()) is None
        train(manager, range(1, 13))
    into = state()
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(into) == 10
        latest = manager.latest()
        assert latest is not None
        assert latest.step == 10
    assert into["n"] == 10
    assert (into["w"] == 10).all()
    assert varve.latest(run) == str(run / "step-00000010")


DAMAGE = {
    "a flipped bit of the data": lambda step: flip(next(step.glob("data-*"))),
    "a flipped bit of the record": lambda step: flip(step / "varve.json", 30),
    "a lost data file": lambda step: next(step.glob("data-*")).unlink(),
    "a short data file": lambda step: os.truncate(next(step.glob("data-*")), 5000),
    "a lost record": lambda step: (step / "varve.json").unlink(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_step_is_quarantined_and_the_next_older_one_taken(
    run: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with varve.CheckpointManager(run, every=5) as manager:
        train(manager, range(1, 16))
    DAMAGE[what](run / "step-00000015")
    into = state()
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(into) == 10
        manager.save(15, state(15), force=True)
    assert into["n"] == 10
    assert "step-00000015 is damaged and passed over" in caplog.text
    set_aside = [e for e in varve.list_checkpoints(run) if e.state == "quarantined"]
    assert len(set_aside) == 1
    assert set_aside[0].step == 15
    assert set_aside[0].detail.startswith("step-00000015: ")
    assert names(run) == [5, 10, 15]
    assert events(run, "quarantine")[0]["name"] == "step-00000015"


def test_full_verification_finds_damage_before_the_state_is_touched(run: Path) -> None:
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    flip(next((run / "step-00000002").glob("data-*")))
    with varve.CheckpointManager(run, verify="full") as manager:
        assert manager.resume({"w": np.zeros(3000)}) == 1


def test_where_every_step_is_damaged_it_says_so_and_does_not_begin_anew(run: Path) -> None:
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    for step in (1, 2):
        flip(next((run / f"step-0000000{step}").glob("data-*")))
    with (
        varve.CheckpointManager(run) as manager,
        pytest.raises(varve.CorruptCheckpointError, match="no whole step is left"),
    ):
        manager.resume(state())


def test_an_error_of_the_storage_is_no_damage(run: Path) -> None:
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    index = run / "step-00000002" / "manifest.bin"
    index.unlink()
    index.symlink_to("manifest.bin")  # Opening it is ELOOP.
    with varve.CheckpointManager(run) as manager, pytest.raises(varve.Error, match="symbolic"):
        manager.resume(state())
    assert (run / "step-00000002").is_dir()


def test_a_run_that_cannot_be_written_to_resumes_from_an_older_step(run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's directory needs root to make")
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 3))
    flip(next((run / "step-00000002").glob("data-*")))
    run.chmod(0o555)
    program = (
        "import os, sys; sys.path[:0] = sys.argv[2].split(os.pathsep)\n"
        "import numpy as np, varve\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "state = {'w': np.zeros(3000), 'n': 0}\n"
        "with varve.CheckpointManager(sys.argv[1]) as manager:\n"
        "    print(manager.resume(state), state['n'])\n"
    )
    for parent in [run, *run.parents][: len(run.parents) - 1]:
        parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", program, str(run), os.pathsep.join(sys.path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["1", "1.0"], done.stderr
    assert "could not be put into quarantine" in done.stderr
    assert sorted(p.name for p in run.iterdir() if p.is_dir()) == ["step-00000001", "step-00000002"]


def test_what_is_saved_after_a_restore_is_newer_than_what_was_left_behind(run: Path) -> None:
    with varve.CheckpointManager(run, every=10) as manager:
        train(manager, range(1, 41))
        into = state()
        manager.restore(20, into)
        assert into["n"] == 20
        train(manager, range(21, 31))
    assert varve.latest(run) == str(run / "step-00000030")
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(state()) == 30
        with pytest.raises(varve.CheckpointNotFoundError, match="no whole step 25"):
            manager.restore(25, state())


def test_after_two_restarts_without_a_save_an_older_step_is_taken(run: Path) -> None:
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 4))
    found = []
    for _ in range(4):
        with varve.CheckpointManager(run, max_restarts=2) as manager:
            found.append(manager.resume(state()))
    assert found == [3, 3, 2, 2]
    with varve.CheckpointManager(run, max_restarts=2) as manager:
        assert manager.resume(state()) == 1
        manager.save(2, state(), force=True)
    with varve.CheckpointManager(run, max_restarts=2) as manager:
        assert manager.resume(state()) == 2


def test_what_dead_saves_left_is_removed(run: Path) -> None:
    left = run / ".step-%30.varve-saving-0123456789ab"
    left.mkdir(parents=True)
    (left / ".varve-staging").touch()
    with varve.CheckpointManager(run) as manager:
        manager.wait()
    assert not left.exists()


# ---- one job ----


def test_a_second_job_is_refused_and_learns_who_has_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve._manage._lock.LONGEST_WAIT", 0.5)
    with other_job(run) as process, pytest.raises(varve.PreconditionError) as caught:
        varve.CheckpointManager(run)
    assert f"process {process} on " in str(caught.value)
    varve.CheckpointManager(run).close()


def test_a_forked_child_that_ends_leaves_the_run_to_its_parent(run: Path) -> None:
    program = (
        "import os, sys, varve\n"
        "manager = varve.CheckpointManager(sys.argv[1])\n"
        "manager.wait()\n"
        "if os.fork() == 0:\n"
        "    sys.exit(0)\n"
        "os.wait()\n"
        "print(os.path.exists(sys.argv[1] + '/.varve-run-lock'))\n"
        "manager.close()\n"
        "print(os.path.exists(sys.argv[1] + '/.varve-run-lock'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert [line["event"] for line in _history.read(str(run))] == ["start", "end"]


# ---- failures ----


def test_a_failed_save_is_counted_and_told_and_training_goes_on(
    small_disk: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed: list[tuple[int, BaseException]] = []
    run = small_disk / "run"
    with varve.CheckpointManager(
        run, every=1, on_failure=lambda step, error: failed.append((step, error)), keep=1
    ) as manager:
        for step in range(1, 4):
            manager.save(step, {"w": np.zeros(1 << (24 if step == 2 else 10))})
        manager.wait()
    assert [step for step, _ in failed] == [2]
    assert isinstance(failed[0][1], varve.OutOfSpaceError)
    assert names(run) == [3]
    assert [line["outcome"] for line in events(run, "save")] == ["done", "OutOfSpaceError", "done"]
    assert "step-00000002 has failed" in caplog.text


def test_after_n_failures_in_a_row_it_raises_if_asked_to(small_disk: Path) -> None:
    big = {"w": np.zeros(1 << 24)}
    with varve.CheckpointManager(small_disk / "run", every=1, max_failures=2) as manager:
        for step in range(1, 3):
            manager.save(step, big)
            manager.wait()
        with pytest.raises(varve.UnavailableError, match="2 saves in a row have failed"):
            manager.save(3, big)


def test_a_callback_that_raises_is_logged_and_costs_no_save(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: dict[str, Any]) -> None:
        raise ValueError("broken hook")

    with varve.CheckpointManager(run, every=1, keep=1, on_saved=broken) as manager:
        train(manager, range(1, 4))
    assert names(run) == [3]
    assert "broken hook" in caplog.text


# ---- its end ----


def test_it_can_be_closed_twice_and_not_used_after(run: Path) -> None:
    manager = varve.CheckpointManager(run)
    manager.close()
    manager.close()
    with pytest.raises(varve.InvalidArgumentError, match="is closed"):
        manager.save(1, state())


def test_an_exception_in_the_loop_closes_it_and_is_in_the_history(run: Path) -> None:
    with pytest.raises(KeyError), varve.CheckpointManager(run, every=1) as manager:
        manager.save(1, state())
        raise KeyError("loss")
    assert events(run, "end")[0]["outcome"] == "KeyError: 'loss'"
    assert names(run) == [1]
