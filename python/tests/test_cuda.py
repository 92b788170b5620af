"""Tensors on CUDA devices: with a stand-in for the driver everywhere, with a device where there is one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from async_jobs import LONG

import varve.torch
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import Stager, async_save

ROOT = Path(__file__).resolve().parents[2]

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def _stand_in() -> Path:
    binary = Path(os.environ.get("VARVE_TESTS_BINARY", ROOT / "build" / "dev" / "varve_tests"))
    library = binary.parent / "fake_cuda" / "libcuda.so.1"
    if not library.exists():
        assert "VARVE_REQUIRE_BUILD" not in os.environ, f"{library} was not built"
        pytest.skip(f"{library} is not built: cmake --build --preset dev")
    return library


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_tensors_of_devices_are_copied_by_the_engine(
    agent: str, tmp_path: Path, executor: str
) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(_stand_in().parent)}
    job = Path(__file__).parent / "cuda_jobs.py"
    done = subprocess.run(
        [sys.executable, job, tmp_path, executor],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    for format in ("varve", "dcp"):
        assert out[format] == {"device_bytes": out["sum"], "pageable_bytes": 0, "same": True}
    assert "copy from CUDA device" in out["error"]
    assert "719" in out["error"]
    assert out["again"]


def test_without_a_driver_the_stager_says_so() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(UnsupportedError, match=r"libcuda\.so\.1"):
            Stager(copy_from_devices=True)
    else:
        pytest.skip("there is a CUDA driver here")


def test_pinned_memory_alone_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="copy_from_devices"):
        Stager(pinned_memory=True)


def _device_state() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "large": torch.rand(3000, 1001, device="cuda"),
        "strided": torch.rand(300, 200, device="cuda").t(),
        "half": torch.rand(1000, device="cuda").to(torch.bfloat16),
        "small": {f"t{i}": torch.full((i,), i, device="cuda") for i in range(200)},
        "host": torch.rand(100, 100),
    }


def _flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {**{k: v for k, v in state.items() if k != "small"}, **state["small"]}


@needs_device
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("staging", ["blocking", "overlapped"])
def test_on_a_device_each_checkpoint_is_what_the_queued_steps_make(
    tmp_path: Path, pinned: bool, staging: str
) -> None:
    state = _device_state()
    with Stager(copy_from_devices=True, pinned_memory=pinned, memory_budget=1 << 30) as stager:
        stager.prepare(state)
        for step in range(20):
            for tensor in _flat(state).values():
                tensor.add_(1)
            wanted = {name: tensor.clone() for name, tensor in _flat(state).items()}
            path = tmp_path / str(step)
            handle = async_save(state, path, stager=stager, staging=staging, check_torn=True)
            handle.wait_staged()
            for tensor in _flat(state).values():
                tensor.mul_(0.5) if tensor.is_floating_point() else tensor.add_(7)
            report = handle.result()
            assert report.device_bytes > 12_000_000
            assert (report.pageable_bytes == 0) == pinned
            loaded = _flat(varve.torch.read(path))
            for name, tensor in wanted.items():
                assert torch.equal(loaded[name], tensor.cpu()), (step, name)


@needs_device
def test_on_a_device_work_on_another_stream_is_waited_for(tmp_path: Path) -> None:
    stream = torch.cuda.Stream()
    weights = torch.zeros(64 << 20, device="cuda")
    with Stager(copy_from_devices=True, pinned_memory=True) as stager:
        for step in range(5):
            with torch.cuda.stream(stream):
                for _ in range(50):
                    weights.add_(1)
                handle = async_save({"w": weights}, tmp_path / str(step), stager=stager)
                weights.add_(1)
                weights.sub_(1)
            handle.result()
            loaded = varve.torch.read(tmp_path / str(step))["w"]
            assert (loaded == 50 * (step + 1)).all()
