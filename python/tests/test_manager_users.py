"""What somebody who is new to the manager does with it, and what it says then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_job import other_job

import varve
from varve._manage import _history, _place
from varve._manage._followup import FollowUp

# ---- arguments that are nearly right ----

NEARLY: dict[str, tuple[dict[str, Any], str]] = {
    "a float": ({"every": 10.0}, "every=10.0: want a number of steps"),
    "auto without Every": ({"every": "auto"}, 'varve.Every("auto")'),
    "a number in quotes": ({"keep": "3"}, "keep='3': want a number of steps"),
    "a dict of rules": ({"keep": {"last": 3}}, "varve.Keep(last=3"),
    "every 0": ({"every": 0}, "every=0: want a whole number from 1 on"),
    "keep 0": ({"keep": 0}, "keep=0: want a whole number from 1 on"),
    "keep True": ({"keep": True}, "keep=True"),
    "a signal's name": ({"ending": "SIGTERM"}, "ending='SIGTERM': want None or varve.Ending"),
    "another field": ({"name": "step-{steps}"}, "name='step-{steps}': want letters"),
    "no end of the field": ({"name": "{step"}, "name='{step': want letters"),
    "a field without a name": ({"name": "s-{}"}, "name='s-{}': want letters"),
    "a number as a file": ({"metrics_file": 5}, "5 is not a path"),
    "a number as the name": ({"name": 7}, "name=7: want letters"),
}


@pytest.mark.parametrize("what", NEARLY)
def test_an_argument_that_is_nearly_right_is_refused_before_anything_is_locked(
    tmp_path: Path, what: str
) -> None:
    given, message = NEARLY[what]
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.CheckpointManager(tmp_path / "run", **given)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_ending_that_cannot_be_is_refused_where_it_is_written() -> None:
    with pytest.raises(varve.InvalidArgumentError, match="no process learns of SIGKILL"):
        varve.Ending(signals=["SIGKILL"])
    with pytest.raises(varve.InvalidArgumentError, match="deadline=a list"):
        varve.Ending(deadline=[1])  # type: ignore[arg-type]


def test_a_list_of_metrics_is_refused_by_name(tmp_path: Path) -> None:
    with (
        varve.CheckpointManager(tmp_path / "run", every=1) as manager,
        pytest.raises(varve.InvalidArgumentError, match="metrics=a list of 1 entries"),
    ):
        manager.save(1, {"n": 1}, metrics=[0.5])  # type: ignore[arg-type]


def test_a_metric_is_an_array_of_one_element_whatever_its_shape(tmp_path: Path) -> None:
    found = {
        "a": np.array([1.5]),
        "b": np.array([[2]]),
        "c": torch.tensor([[3.5]]),
        "d": np.ones(()),
    }
    with varve.CheckpointManager(tmp_path / "run", every=1) as manager:
        manager.save(1, {"n": 1}, metrics=found)
        with pytest.raises(varve.InvalidArgumentError, match=r"metrics\['a'\]=a ndarray"):
            manager.save(2, {"n": 1}, metrics={"a": np.ones(2)})
    assert varve.steps(tmp_path / "run")[0].metrics == {"a": 1.5, "b": 2, "c": 3.5, "d": 1}


def test_relative_paths_are_those_of_the_directory_in_which_the_manager_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with varve.CheckpointManager("run", every=1, metrics_file="varve.prom") as manager:
        monkeypatch.chdir("elsewhere")
        manager.save(1, {"n": 1})
    assert [step.step for step in varve.steps(tmp_path / "run")] == [1]
    assert "varve_saves_total" in (tmp_path / "varve.prom").read_text()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    every: Any = np.int64(2)
    with varve.CheckpointManager(tmp_path / "run", every=every, keep=every) as manager:
        for step in range(1, 9):
            manager.save(step, {"n": step})
    assert [step.step for step in varve.steps(tmp_path / "run")] == [6, 8]


# ---- signals ----


def run_program(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a directory of its own, with this package."""
    (tmp_path / "program.py").write_text(text)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_same_signal_from_the_launcher_as_well_is_one_request(tmp_path: Path) -> None:
    done = run_program(
        tmp_path,
        "import os, signal, varve\n"
        "with varve.CheckpointManager('run') as manager:\n"
        "    for _ in range(3):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    manager.save(1, {'n': 1})\n"
        "    print(manager.stop_reason)\n",
    )
    assert (done.returncode, done.stdout) == (0, "SIGTERM\n"), done.stderr


def test_a_second_signal_after_a_while_ends_the_process(tmp_path: Path) -> None:
    done = run_program(
        tmp_path,
        "import os, signal, varve\n"
        "import varve._manage._endings as endings\n"
        "endings._ECHO = 0.0\n"
        "with varve.CheckpointManager('run') as manager:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    print('one of each kind', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('not reached', flush=True)\n",
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "one of each kind\n"), done.stderr


def test_closing_a_manager_leaves_the_signals_to_the_one_made_after_it(tmp_path: Path) -> None:
    done = run_program(
        tmp_path,
        "import os, signal, varve\n"
        "first = varve.CheckpointManager('first')\n"
        "second = varve.CheckpointManager('second')\n"
        "first.close()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "second.save(1, {'n': 1})\n"
        "print(second.stop_reason, flush=True)\n"
        "second.close()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('not reached', flush=True)\n",
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "SIGTERM\n"), done.stderr


def test_a_forked_child_can_be_terminated_and_other_signals_are_not_for_it(tmp_path: Path) -> None:
    done = run_program(
        tmp_path,
        "import multiprocessing, os, signal, time, varve\n"
        "with varve.CheckpointManager('run') as manager:\n"
        "    child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))\n"
        "    child.start()\n"
        "    os.kill(child.pid, signal.SIGUSR1)  # While it begins.\n"
        "    child.join(0.5)\n"
        "    os.kill(child.pid, signal.SIGUSR1)\n"
        "    child.join(0.5)\n"
        "    print(child.exitcode)\n"
        "    child.terminate()\n"
        "    child.join()\n"
        "    print(child.exitcode)\n",
    )
    assert (done.returncode, done.stdout) == (0, "None\n-15\n"), done.stderr


# ---- how a job ended ----


def ends(run: Path) -> list[tuple[str, bool]]:
    lines = [line for line in _history.read(str(run)) if line["event"] == "end"]
    return [(line["outcome"], line["failed"]) for line in lines]


WAYS = {
    "an error": ("raise KeyError('loss')", "KeyError: 'loss'", True),
    "Ctrl-C": ("raise KeyboardInterrupt", "KeyboardInterrupt: ", False),
    "no close": ("pass", "never closed", False),
    "a close": ("manager.close()", "done", False),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_history_says_how_a_job_without_a_with_has_ended(tmp_path: Path, way: str) -> None:
    last_line, outcome, failed = WAYS[way]
    run_program(
        tmp_path,
        "import varve\n"
        "manager = varve.CheckpointManager('run', every=1)\n"
        f"manager.save(1, {{'n': 1}})\n{last_line}\n",
    )
    assert ends(tmp_path / "run") == [(outcome, failed)]
    assert [step.step for step in varve.steps(tmp_path / "run")] == [1]


def test_a_job_that_an_error_has_ended_counts_as_a_failure(tmp_path: Path) -> None:
    lines = [
        {"time": 0, "event": "start"},
        {"time": 100, "event": "end", "outcome": "RuntimeError: NCCL", "failed": True},
        {"time": 500, "event": "start"},
        {"time": 700, "event": "end", "outcome": "done", "failed": False},
    ]
    (tmp_path / _place.HISTORY_NAME).write_text("\n".join(map(json.dumps, lines)))
    assert _history.observed_mtbf(str(tmp_path)) == 300


# ---- two jobs, and places where nothing can be written ----


def test_the_second_job_says_that_it_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("varve._manage._lock.LONGEST_WAIT", 0.5)
    with other_job(tmp_path) as process, pytest.raises(varve.PreconditionError):
        varve.CheckpointManager(tmp_path)
    waits = [line for line in caplog.messages if "waiting 0 s for the end of a job" in line]
    assert len(waits) == 1
    assert f"process {process}" in waits[0]


def test_rules_that_cannot_be_followed_are_a_warning_of_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1, keep=1) as manager:
        manager.save(1, {"n": 1})
        manager.wait()
        # Nobody can lock step 1 to remove it.
        (run / ".step-%30%30%30%30%30%30%30%31.varve-lock").mkdir()
        manager.save(2, {"n": 2})
    after = [record for record in caplog.records if "after a save" in record.message]
    assert after
    assert all(record.exc_info is None for record in after)
    assert [step.step for step in varve.steps(run)] == [1, 2]


# ---- a forgotten resume ----


def test_a_job_that_forgot_to_resume_is_told_so_and_removes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with varve.CheckpointManager(tmp_path, every=1, keep=2) as manager:
        for step in range(10, 13):
            manager.save(step, {"n": step})
    with varve.CheckpointManager(tmp_path, every=1, keep=2) as manager:
        for step in range(1, 4):
            manager.save(step, {"n": step})
        told = [line for line in caplog.messages if "was resume() forgotten?" in line]
        assert len(told) == 1
        assert "step-00000012 was there" in told[0]
        assert {step.step for step in manager.steps()} == {1, 2, 3, 11, 12}
        manager.restore(12, {"n": 0})
        manager.save(13, {"n": 13})
    assert [step.step for step in varve.steps(tmp_path)] == [3, 13]


# ---- saves that end faster than steps can be removed ----


def test_removals_rest_while_training_goes_on_unless_they_fall_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    held = threading.Event()
    prune = FollowUp.prune

    def noted(self: FollowUp, attempt: int, busy_share: float) -> None:
        shares.append(busy_share)
        prune(self, attempt, busy_share)

    monkeypatch.setattr(FollowUp, "prune", noted)
    with varve.CheckpointManager(
        tmp_path, every=1, keep=1, on_saved=lambda line: held.wait(60) and None
    ) as manager:
        for step in range(1, 4):
            manager.save(step, {"n": step})
        held.set()
        manager.wait()
        assert shares[0] == 1.0
        shares.clear()
        manager.save(4, {"n": 4})
        while not shares:  # Nothing else is there to be done.
            time.sleep(0.01)
        assert shares == [0.25]
    assert [step.step for step in varve.steps(tmp_path)] == [4]
