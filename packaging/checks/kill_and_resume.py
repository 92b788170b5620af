"""Kills a training run in the middle of a save, and checks that the next one ends as if it had not been.

python kill_and_resume.py EXAMPLE     with the path of examples/resume_numpy.py
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time

import varve

KILL_IN_STEP = 5
#: A save of 64 MiB takes longer than this nearly always. Where one does not, the check tries again and
#: waits less.
INTO_THE_SAVE = 0.02
TRIES = 10


def trainer(example: str, folder: str) -> subprocess.Popen[str]:
    """Starts the training run."""
    return subprocess.Popen([sys.executable, example, folder], stdout=subprocess.PIPE, text=True)


def finish(example: str, folder: str) -> list[str]:
    """Runs the training to its end, and returns the lines it printed."""
    process = trainer(example, folder)
    lines = process.communicate()[0].splitlines()
    if process.returncode != 0:
        raise SystemExit(f"the trainer ended with {process.returncode}: {lines}")
    return lines


def kill_in_a_save(example: str, folder: str, wait: float) -> list[varve.CheckpointEntry]:
    """Kills a training run `wait` seconds into the save of a step; returns what `varve ls` would list."""
    process = trainer(example, folder)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == f"saving step {KILL_IN_STEP}":
            break
    time.sleep(wait)
    process.kill()
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"the trainer ended with {process.returncode} before it was killed")
    return varve.list_checkpoints(folder)


def main() -> None:
    """Compares a run that was killed with one that was not."""
    example = sys.argv[1]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        expected = finish(example, folder)[-1]
    for attempt in range(TRIES):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            entries = kill_in_a_save(example, folder, INTO_THE_SAVE / (attempt + 1))
            whole = [entry.step for entry in entries if entry.state == "whole"]
            others = [f"{entry.name}: {entry.state}" for entry in entries if entry.state != "whole"]
            if KILL_IN_STEP in whole or not others:  # The save was faster, or the kill.
                continue
            newest = varve.latest(folder)
            assert whole == [KILL_IN_STEP - 2, KILL_IN_STEP - 1], (whole, others)
            assert newest.endswith(f"step-{KILL_IN_STEP - 1:08d}"), newest
            assert varve.verify(newest) == []
            lines = finish(example, folder)
            assert lines[0] == f"resumed from {newest}", lines
            assert lines[-1] == expected, (lines[-1], expected)
            print(f"killed in the save of step {KILL_IN_STEP} ({others[0]}); resumed; {lines[-1]}")
            return
    raise SystemExit(f"no save of {TRIES} was still under way after {INTO_THE_SAVE} s")


if __name__ == "__main__":
    main()
