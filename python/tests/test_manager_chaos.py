"""A run of 200 steps that is killed at random, its checkpoints damaged, its disk filled, its world changed.

It always ends with the weights of an uninterrupted run, and never goes on from an older step than the newest
that was whole. VARVE_CHAOS_SEEDS=100 runs it from so many seeds.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import time
from pathlib import Path
from typing import Any

import chaos_jobs
import pytest
import torch
from disks import mounted
from ranks import fork_context

import varve
import varve.torch

SEEDS = range(int(os.environ.get("VARVE_CHAOS_SEEDS", "2")))

#: Jobs after which nothing disturbs the run any more.
DISTURBED = 14


def whole_steps(run: Path) -> list[int]:
    return [step.step for step in varve.steps(run) if step.state == "whole"]


class Run:
    """A run, and what happens to it."""

    def __init__(self, disk: Path, scratch: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = disk
        self.run = disk / "run"
        self.scratch = scratch
        self.jobs = 0
        self.found: list[tuple[int, int, str]] = []
        self.damaged: set[tuple[int, int]] = set()
        self.seen = {"kills": 0, "flips": 0, "full": 0, "resumes": 0}

    def job(self, disturbed: bool) -> bool:
        """Runs one job; returns True when it came to the end."""
        self.jobs += 1
        size = self.random.randint(1, 3)
        told = fork_context().Queue()
        log = str(self.scratch / f"log-{self.jobs}")
        args = (size, str(self.scratch / f"store-{self.jobs}"), str(self.run), log, told)
        ranks = [
            fork_context().Process(target=chaos_jobs.run, args=(rank, *args))
            for rank in range(size)
        ]
        expected = self.expected()
        for rank in ranks:
            rank.start()
        if disturbed:
            if self.random.random() < 0.25:
                self.fill()
            if self.random.random() < 0.5:
                # In the resume or in the first steps; else anywhere.
                with contextlib.suppress(queue.Empty):
                    self.take(told, expected, 60.0)
                time.sleep(self.random.random() * 0.4)
            else:
                time.sleep(self.random.random() * 1.5)
            victims = ranks if self.random.random() < 0.7 else [self.random.choice(ranks)]
            for rank in victims:
                if rank.is_alive() and rank.pid is not None:
                    os.kill(rank.pid, signal.SIGKILL)
                    self.seen["kills"] += 1
        for rank in ranks:
            rank.join(45)
        stuck = [number for number, rank in enumerate(ranks) if rank.is_alive()]
        for rank in ranks:
            rank.kill()
        if stuck:
            where = "\n".join(Path(f"{log}-{number}").read_text() for number in stuck)
            raise AssertionError(
                f"ranks {stuck} of {size} stand still in job {self.jobs}:\n{where}"
            )
        (self.disk / "filler").unlink(missing_ok=True)
        done = False
        with contextlib.suppress(queue.Empty):
            while not done:
                done = self.take(told, expected, 0.2)
        if not disturbed:
            assert done, Path(log).read_text()[-3000:]
        return done

    def take(self, told: Any, expected: int, seconds: float) -> bool:
        what, step = told.get(timeout=seconds)
        if what == "resumed":
            self.seen["resumes"] += 1
            assert step >= expected, (
                f"job {self.jobs} went on from {step}, {expected} was whole; {self.tail()}"
            )
        return bool(what == "done")

    def tail(self) -> str:
        """The last lines of the logs of this job and of the one before."""
        logs = [self.scratch / f"log-{job}" for job in (self.jobs - 1, self.jobs)]
        return "".join(
            f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in logs if log.exists()
        )

    def fill(self) -> None:
        """Fills the disk, until the job is over."""
        self.seen["full"] += 1
        with contextlib.suppress(OSError), open(self.disk / "filler", "wb") as filler:
            while True:
                filler.write(bytes(1 << 16))
                filler.flush()

    def expected(self) -> int:
        """Damages the newest step at times; returns the newest one that is not damaged."""
        self.found = [(one.step, one.attempt, one.state) for one in varve.steps(self.run)]
        whole = [step for step in varve.steps(self.run) if step.state == "whole"]
        steps = [step for step in whole if (step.step, step.time_ns) not in self.damaged]
        if len(steps) < 2 or self.random.random() < 0.6:
            return max((step.step for step in steps), default=0)
        files = [
            file
            for file in (self.run / steps[-1].name).iterdir()
            if file.stat().st_size and file.suffix != ".txt"
        ]
        file = self.random.choice(files)
        content = bytearray(file.read_bytes())
        content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        file.write_bytes(content)
        self.damaged.add((steps[-1].step, steps[-1].time_ns))
        self.seen["flips"] += 1
        return steps[-2].step


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_ends_as_if_nothing_had_happened(tmp_path: Path, seed: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small disk needs root to mount")
    with mounted("tmpfs", "size=24m", tmp_path / "disk") as disk:
        run = Run(disk, tmp_path, seed)
        for _ in range(DISTURBED):
            if run.job(disturbed=True):
                break
        if max(whole_steps(run.run), default=0) < chaos_jobs.STEPS:
            assert run.job(disturbed=False)
        state = varve.torch.read(varve.latest(run.run))
        w, m = chaos_jobs.uninterrupted()
        assert torch.equal(state["w"], w)
        assert torch.equal(state["m"], m)
        assert not [e for e in varve.list_checkpoints(run.run) if e.state in ("stale", "saving")]
        print(run.jobs, run.seen)
