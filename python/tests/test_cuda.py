"""Tensors on CUDA devices, with a stand-in for the driver; tests/gpu has those that need a device."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stand_in import run_job

import varve.torch
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import Stager


def _run(job: str, *arguments: object) -> dict[str, Any]:
    return run_job("cuda_jobs.py", job, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_tensors_of_devices_are_copied_by_the_engine_with_no_option_set(
    agent: str, tmp_path: Path, executor: str
) -> None:
    out = _run("saves", tmp_path, executor)
    for format in ("varve", "dcp"):
        assert out[format] == {
            "device_bytes": out["sum"],
            "pageable_bytes": 0,
            "copied_ahead": 0,
            "registrations": 1,
            "same": True,
        }
    assert "from CUDA device" in out["error"]
    assert "719" in out["error"]
    assert "queued before caused it" in out["error"]
    assert out["again"]
    assert out["dropped"] == [3, 0, True], "held until they are copied, and no longer"
    if executor == "process":
        assert out["memory"] == [True, True]
        assert out["deferred"]


@pytest.mark.slow
def test_more_files_than_blocks_are_written_at_once(tmp_path: Path) -> None:
    assert _run("many_files", tmp_path, "thread") == {"same": True}


def test_synchronous_saves_and_loads_go_straight_between_devices_and_files(tmp_path: Path) -> None:
    out = _run("synchronous", tmp_path, "thread")
    device_bytes, pageable_bytes, same = out["save"]
    assert (device_bytes, pageable_bytes, same) == (28_000_400, 0, True)
    for name in ("hf", "dcp", "dcp-async", "dcp-async, a planner", "dcp-load"):
        assert out[name], name
    assert "CheckpointError" in out["error"] and 'tensor "' in out["error"]
    assert "from CUDA device" in out["error"] and "719" in out["error"]
    assert out["load"].pop("device_bytes") == 12_000_000 + 400 + 8_000_000
    assert out["load"] == dict.fromkeys(("a", "b", "c", "host"), True)


def test_without_a_driver_the_stager_says_so() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(UnsupportedError, match=r"libcuda\.so\.1"):
            Stager(copy_from_devices=True)
    else:
        pytest.skip("there is a CUDA driver here")


def test_pinned_memory_without_copies_from_devices_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="copy_from_devices"):
        Stager(copy_from_devices=False, pinned_memory=True)


@pytest.mark.parametrize("device", ["cuda:x", "meta", 3.5])
def test_a_device_that_is_none_is_refused_by_name(tmp_path: Path, device: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="device="):
        varve.torch.read(tmp_path, device=device)


def test_a_read_to_the_cpu_stays_there_whatever_the_default_device(tmp_path: Path) -> None:
    varve.torch.save({"w": torch.arange(4.0)}, tmp_path / "a")
    with torch.device("meta"):
        loaded = varve.torch.read(tmp_path / "a", device="cpu")
    assert torch.equal(loaded["w"], torch.arange(4.0))
