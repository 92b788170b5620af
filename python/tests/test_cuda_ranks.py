"""Ranks whose tensors are on devices, with a stand-in for the driver."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from pathlib import Path

import cuda_rank_jobs as jobs
import pytest
import torch
from cuda_stand_in import library
from ranks import run_ranks

import varve
import varve.torch


@pytest.mark.slow
def test_replicas_on_devices_are_compared_by_saves_of_each_kind(tmp_path: Path) -> None:
    first, second = run_ranks(2, jobs.replicas, library(), str(tmp_path))
    assert list(first) == list(jobs.SAVES)
    for kind, texts in first.items():
        assert len(texts) == 1, kind
        for name in ("differs.large", "differs.small", "differs.strided"):
            assert name in texts[0], kind
        for name in ("equal", "sharded", "replicated", "own0", "own1"):
            assert name not in texts[0], kind
        path = tmp_path / kind / "saved"
        assert varve.verify(path) == [], kind
        rows = torch.arange(16.0).view(4, 4)
        assert torch.equal(
            varve.torch.read(path, "sharded")["sharded"], torch.cat([rows, rows + 1])
        )
    assert not any(second.values()), "rank 0 warns, for all"
    path = tmp_path / "save" / "saved"
    for rank, out in enumerate(run_ranks(2, jobs.by_columns, library(), str(path))):
        assert out.pop("small") == [1.0] * 7
        columns = varve.torch.read(path, "sharded")["sharded"][:, 2 * rank : 2 * rank + 2]
        assert out.pop("columns") == columns.tolist()
        assert out == {"device_bytes": 8 * 2 * 4 + 7 * 4, "copied_ahead": 0}


def test_a_device_that_fails_while_replicas_are_compared_fails_the_save_by_name(
    tmp_path: Path,
) -> None:
    for errors in run_ranks(2, jobs.a_device_that_fails, library(), str(tmp_path)):
        (error,) = errors
        assert "CheckpointError" in error and "rank 1" in error
        assert "compare the replicas of tensors on devices" in error
        assert "from CUDA device 1" in error and "719" in error
    assert varve.verify(tmp_path / "saved") == []


def _too_old(directory: Path) -> str:
    """A driver that has one function alone. Skips the test without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for a driver")
    made = directory / "libcuda.so.1"
    source = directory / "driver.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }")
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", made]
    subprocess.run([compiler, *options, source], check=True)
    return str(made)


@pytest.mark.parametrize("driver", ["missing", "too old", "refuses"])
def test_without_a_driver_torch_copies_and_reports_and_the_log_say_so(
    tmp_path: Path, driver: str
) -> None:
    if driver == "missing" and ctypes.util.find_library("cuda"):
        pytest.skip("there is a CUDA driver here")
    path = {"missing": lambda: None, "too old": lambda: _too_old(tmp_path), "refuses": library}[
        driver
    ]()
    (out,) = run_ranks(1, jobs.without_driver, str(tmp_path), path)
    assert out["same"] == [True] * 5
    assert out["tensors"] == [2] * 8, "three reports of saves and five of loads"
    (problem,) = out["problems"]
    said = {
        "missing": "libcuda.so.1: cannot open",
        "too old": "one of CUDA 11 or newer is needed",
        "refuses": "initialise the CUDA driver",
    }[driver]
    assert said in problem
    assert len(out["logged"]) == 1 and problem in out["logged"][0]
    assert said in out["stager"]
