"""Ctrl-C and SIGTERM while a manager closes: its saves end or are reported, and so does the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest

import varve
from varve._manage import _history

#: Saves a step in about three seconds, and says when it is about to wait for it.
_PROGRAM = """
import logging, sys, time, torch, varve.torch
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
manager = varve.torch.CheckpointManager(
    "run", every=1, save_options={"max_write_bandwidth": 4 << 20},
    on_saved=lambda line: print("saved", line["step"], flush=True),
)
manager.save(1, {"w": torch.ones(12 << 20, dtype=torch.uint8)})
"""

_WATCH = """
import threading
def watch():
    while not manager._signals.closing:
        time.sleep(0.01)
    print("ready", flush=True)
threading.Thread(target=watch, daemon=True).start()
"""

_ENDS = {
    "with": """
with manager:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
""",
    "exit, ready when it closes": _WATCH,
    "close, ready when it has begun": _WATCH + "manager.close()",
}

_WAITS = "Ctrl-C: this job ends when step 1 is durable; Ctrl-C once more gives that up"


def closed(
    directory: Path, end: str, answers: Sequence[tuple[str, signal.Signals]]
) -> tuple[list[str], str, int]:
    """Runs a job; sends it each signal when it has printed the text before it.

    Returns the lines that it printed, its errors and its exit status.
    """
    left = list(answers)
    lines: list[str] = []
    with (
        open(directory / "errors", "w+") as errors,
        programs.started(_PROGRAM + _ENDS[end], cwd=directory, err=errors) as program,
    ):
        for line in program.stdout:
            lines.append(line.strip())
            if left and left[0][0] in line:
                program.send_signal(left.pop(0)[1])
        status = program.wait(60)
    assert not left, lines
    return lines, (directory / "errors").read_text(), status


def history(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in _history.read(str(directory / "run")) if line["event"] == kind]


def traces(errors: str) -> tuple[int, int]:
    """Returns how many tracebacks there are, and how many "During handling" and "ignored" join them."""
    return errors.count("Traceback"), errors.count("During handling") + errors.count("ignored in")


@pytest.mark.parametrize("end", ["close, ready when it has begun", "with"])
def test_ctrl_c_while_a_manager_closes_loses_neither_the_save_nor_what_follows_it(
    tmp_path: Path, end: str
) -> None:
    lines, errors, status = closed(tmp_path, end, [("ready", signal.SIGINT)])
    assert lines[-1] == "saved 1" and any(_WAITS in line for line in lines), lines
    assert [one.step for one in varve.steps(tmp_path / "run")] == [1]
    assert [line["outcome"] for line in history(tmp_path, "save")] == ["done"]
    assert [line["outcome"] for line in history(tmp_path, "end")] == ["KeyboardInterrupt: "]
    assert traces(errors) == (1, 0), errors
    assert status == -signal.SIGINT


@pytest.mark.parametrize("end", ["close, ready when it has begun", "with"])
def test_ctrl_c_once_more_gives_the_save_up_and_says_so(tmp_path: Path, end: str) -> None:
    answers = [("ready", signal.SIGINT), (_WAITS, signal.SIGINT)]
    lines, errors, status = closed(tmp_path, end, answers)
    assert lines[-1].endswith("Ctrl-C: step 1 is given up"), lines
    assert os.listdir(tmp_path / "run") == ["varve-history.jsonl"]
    assert [line["outcome"] for line in history(tmp_path, "save")] == ["CancelledError"]
    assert [line["outcome"] for line in history(tmp_path, "end")] == ["KeyboardInterrupt: "]
    assert traces(errors) == (1, 0), errors
    assert status == -signal.SIGINT


def test_ctrl_c_at_the_end_of_a_program_that_has_not_closed_its_manager_is_no_noise(
    tmp_path: Path,
) -> None:
    lines, errors, _ = closed(tmp_path, "exit, ready when it closes", [("ready", signal.SIGINT)])
    assert lines[-1] == "saved 1", lines
    assert [one.step for one in varve.steps(tmp_path / "run")] == [1]
    assert traces(errors)[1] == 0, errors


def test_sigterm_while_a_manager_closes_is_said_to_end_no_training(tmp_path: Path) -> None:
    answers = [("ready", signal.SIGTERM)]
    lines, _, status = closed(tmp_path, "close, ready when it has begun", answers)
    assert any("SIGTERM: the run ends when its saves are durable" in line for line in lines), lines
    assert [line["outcome"] for line in history(tmp_path, "save")] == ["done"]
    assert status == 0


@pytest.mark.parametrize("ends", ["close", "the end of the program"])
def test_a_thread_that_goes_on_saving_does_not_keep_a_manager_open(
    ends: str, tmp_path: Path
) -> None:
    program = """
import sys, threading, time, torch, varve.torch
manager = varve.torch.CheckpointManager("run", keep=2)
begun = threading.Event()
def train():
    step = 0
    try:
        while True:
            step += 1
            manager.save(step, {"w": torch.zeros(4 << 20)}, force=True)
            begun.set()
    except varve.InvalidArgumentError as error:
        print(error, flush=True)
thread = threading.Thread(target=train, daemon=True)
thread.start()
begun.wait()
time.sleep(0.3)
"""
    if ends == "close":
        program += "manager.close()\nthread.join()\n"
    done = programs.run(program, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert ends != "close" or done.stdout.endswith("is closed\n"), done.stdout
    steps = varve.steps(tmp_path / "run")
    assert steps and all(step.state == "whole" for step in steps)


def test_functions_of_the_user_may_use_a_manager_that_closes(tmp_path: Path) -> None:
    pinned = []

    def pin(line: Any) -> None:
        manager.pin(line["step"], "the first")
        pinned.append(line["step"])

    with varve.CheckpointManager(tmp_path / "run", every=1, on_saved=pin) as manager:
        manager.save(1, {"w": np.zeros(1 << 20)})
    assert pinned == [1]
