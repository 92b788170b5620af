"""Claims about the manager of a run that an attack has found broken."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch

import varve
import varve.torch
from varve._core import manage

#: A job that begins in a run, says so, and saves steps 11 and 12 when it is told to go on.
OTHER_JOB = """
import sys, torch, varve.torch
with varve.torch.CheckpointManager(sys.argv[1], every=1) as manager:
    print("begun", flush=True)
    sys.stdin.readline()
    for step in (11, 12):
        manager.save(step, {"w": torch.ones(3)}).result()
"""


def test_a_read_only_file_system_is_no_request_to_stop(small_disk: Path) -> None:
    run = small_disk / "run"
    with varve.CheckpointManager(run, every=10) as manager:
        manager.save(1, {"w": [1.0]}, force=True)
        manager.wait()  # A file that is open would keep the mount busy.
        for options in (["--bind", str(run)], ["-o", "remount,ro,bind"]):
            subprocess.run(["mount", *options, str(run)], check=True)
        try:
            for step in (2, 3):
                time.sleep(1.1)  # Requests are looked for once a second.
                assert manager.save(step, {"w": [1.0]}) is None
            assert not manager.preempted
        finally:
            subprocess.run(["umount", str(run)], check=True)
        (run / "varve-stop").touch()
        time.sleep(1.1)
        manager.save(4, {"w": [1.0]})
        assert manager.preempted


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_job_whose_run_was_taken_away_leaves_it_to_the_job_that_begins_there(
    how: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    state = {"w": torch.ones(3)}
    manager = varve.torch.CheckpointManager(run, every=1, keep=1)
    manager.save(1, state)
    manager.wait()
    if how == "removed":
        shutil.rmtree(run)
    else:
        run.rename(tmp_path / "old")
    with programs.started(OTHER_JOB, run, err=sys.stderr) as other:
        assert other.stdout.readline() == "begun\n"
        with pytest.raises(varve.UnavailableError, match="another job has the run"):
            for step in range(2, 6):
                manager.save(step, state)
                manager.wait()
        manager.close()
        other.stdin.write("go on\n")
        other.stdin.flush()
        assert other.wait() == 0
    assert {"step-00000011", "step-00000012"} <= {path.name for path in run.iterdir()}


def test_a_job_whose_run_was_taken_away_goes_on_in_a_new_one_and_has_its_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with varve.torch.CheckpointManager(run, every=1) as manager:
        shutil.rmtree(run)
        for step in (1, 2):
            future = manager.save(step, {"w": torch.ones(3)})
            assert future is not None
            future.result()
            manager.wait()
        assert "was removed or renamed; this job goes on" in caplog.text
        with pytest.raises(varve.PreconditionError, match="another job has the run"):
            manage.lock_run(str(run), "another one")
    assert [step.step for step in varve.steps(run)] == [1, 2]


def test_the_save_at_the_end_of_a_run_is_not_left_out_for_one_under_way(tmp_path: Path) -> None:
    state = {"w": torch.ones(10 << 20, dtype=torch.uint8)}
    with (
        varve.torch.Stager(max_in_flight=1, when_busy="skip") as stager,
        varve.torch.CheckpointManager(
            tmp_path / "run",
            every=1,
            stager=stager,
            save_options={"max_write_bandwidth": 20 << 20},
        ) as manager,
    ):
        manager.save(1, state)
        manager.save(2, state)  # Mostly left out.
        manager.save(3, state, force=True)
        os.kill(os.getpid(), signal.SIGTERM)
        manager.save(4, state)
        assert manager.preempted
    assert {1, 3, 4} <= {step.step for step in varve.steps(tmp_path / "run")}


def test_a_resume_in_the_same_job_goes_on_from_the_save_under_way(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "step": 0}
    with varve.torch.CheckpointManager(tmp_path / "run", every=1) as manager:
        for step in (1, 2):
            state["step"] = step
            manager.save(step, state)
            assert manager.resume(state) == step
            assert manager.restore(step, state).loaded == 2


@pytest.mark.parametrize("how", ["in one job", "after a resume"])
@pytest.mark.parametrize("make", [varve.CheckpointManager, varve.torch.CheckpointManager])
def test_steps_below_an_earlier_one_are_kept_in_the_order_of_their_saves(
    make: Any, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    state = {"w": torch.ones(3) if make is varve.torch.CheckpointManager else np.ones(3)}
    manager = make(run, every=10, keep=2)
    manager.save(20, state)
    manager.save(30, state)
    if how == "after a resume":
        manager.close()
        manager = make(run, every=10, keep=2)
        assert manager.resume(state) == 30
    after_each: list[list[int]] = []
    with manager:
        for step in (10, 20, 30, 40):
            manager.save(step, state)
            manager.wait()
            after_each.append([one.step for one in varve.steps(run)])
    assert after_each == [[30, 10], [10, 20], [20, 30], [30, 40]]
    told = [text for text in caplog.messages if "this job is back at step" in text]
    assert len(told) == 1, told
    assert (
        "back at step 10, and the run has step 30" in told[0] and "rename its directory" in told[0]
    )


def test_a_restore_names_the_steps_that_it_leaves_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"w": torch.ones(3)}
    with varve.torch.CheckpointManager(tmp_path / "run", every=10) as manager:
        for step in (10, 20, 30):
            manager.save(step, state)
        manager.restore(30, state)
        assert "this job is back" not in caplog.text
        manager.restore(10, state)
        assert "back at step 10, and the run has step-00000030." in caplog.text
        before = len(caplog.messages)
        for step in (11, 20, 21, 30):
            manager.save(step, state, force=True)
        manager.wait()
        assert not [text for text in caplog.messages[before:] if "this job is back" in text]
    assert [one.step for one in varve.steps(tmp_path / "run")] == [10, 11, 20, 21, 30]


def test_resumes_of_one_job_are_one_restart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = {"w": np.ones(3)}
    with varve.CheckpointManager(run, every=10) as manager:
        manager.save(10, state)
        manager.save(20, state)
    for expected in (20, 20, 10):  # The second restart is the last from step 20.
        with varve.CheckpointManager(run, max_restarts=2) as manager:
            assert [manager.resume(state) for _ in range(3)] == [expected] * 3
            manager.restore(expected, state)


def test_a_restart_after_a_save_of_the_same_job_counts_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = {"w": np.ones(3)}
    with varve.CheckpointManager(run, every=10) as manager:
        manager.save(10, state)
        manager.save(20, state)
    with varve.CheckpointManager(run, every=10, max_restarts=1) as manager:
        assert manager.resume(state) == 20
        manager.save(20, state)
        manager.wait()
        assert manager.resume(state) == 20
    with varve.CheckpointManager(run, max_restarts=1) as manager:
        assert manager.resume(state) == 10
