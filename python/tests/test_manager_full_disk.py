"""A run whose disk is full: the rules of retention free it, and remove no step that the job stands on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

MEBIBYTES = 2  # Of a state; the disk has room for three.


def state(make: Any) -> dict[str, Any]:
    if make is varve.torch.CheckpointManager:
        return {"w": torch.ones(MEBIBYTES << 20, dtype=torch.uint8)}
    return {"w": np.ones(MEBIBYTES << 20, np.uint8)}


def steps(run: Path) -> list[int]:
    return [one.step for one in varve.steps(run)]


def fill(make: Any, run: Path) -> None:
    with make(run, every=1) as manager:
        for step in (1, 2, 3):
            manager.save(step, state(make))


@pytest.mark.parametrize("make", [varve.CheckpointManager, varve.torch.CheckpointManager])
def test_a_stricter_rule_frees_a_full_disk_for_the_next_save(make: Any, small_disk: Path) -> None:
    run = small_disk / "run"
    fill(make, run)
    failed: list[int] = []
    with make(run, every=1, keep=1, on_failure=lambda step, _: failed.append(step)) as manager:
        assert manager.resume(state(make)) == 3
        manager.save(4, state(make))
        manager.wait()
        assert failed == [4] and steps(run) == [3]
        manager.save(5, state(make)).result()
    assert failed == [4] and steps(run) == [5]


@pytest.mark.parametrize("make", [varve.CheckpointManager, varve.torch.CheckpointManager])
def test_a_failed_save_removes_no_step_that_the_job_went_back_to(
    make: Any, small_disk: Path
) -> None:
    run = small_disk / "run"
    fill(make, run)
    with make(run, every=1, keep=1) as manager:
        manager.restore(2, state(make))
        future = manager.save(3, state(make))
        assert isinstance(future.exception(), varve.OutOfSpaceError)
        manager.wait()
        assert steps(run) == [1, 2, 3]
    assert steps(run) == [1, 2, 3]
    assert varve.verify(run / "step-00000002") == []


@pytest.mark.parametrize("resumes", [True, False])
def test_without_a_rule_or_a_resume_a_full_disk_loses_nothing(
    small_disk: Path, resumes: bool
) -> None:
    make = varve.CheckpointManager
    run = small_disk / "run"
    fill(make, run)
    with make(run, every=1, keep=None if resumes else 1) as manager:
        if resumes:
            manager.resume(state(make))
        manager.save(4, state(make))
    assert steps(run) == [1, 2, 3]


def test_a_count_of_restarts_that_finds_the_disk_full_leaves_nothing(small_disk: Path) -> None:
    run = small_disk / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        manager.save(1, {"step": 1})
    with open(small_disk / "full", "wb", buffering=0) as full, pytest.raises(OSError):
        while True:
            full.write(bytes(1 << 12))
    before = sorted(os.listdir(run))
    with varve.CheckpointManager(run, max_restarts=2) as manager:
        assert manager.resume({"step": 0}) == 1
    assert sorted(os.listdir(run)) == before
