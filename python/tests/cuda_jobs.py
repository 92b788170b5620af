"""Run by tests in a process of its own, where libcuda.so.1 is the stand-in of tests/fake_cuda."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import torch

import varve.torch
from varve.torch import Stager, _tensors, async_save

_driver: Any = ctypes.CDLL("libcuda.so.1")
_driver.fake_cuda_alloc.restype = ctypes.c_void_p
_driver.fake_cuda_alloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
_driver.fake_cuda_poke.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_driver.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

#: Addresses of memory on a device, and which.
_on_device: dict[int, int] = {}


def on_device(content: torch.Tensor, device: int) -> torch.Tensor:
    """A tensor whose memory the process cannot read, as a CUDA tensor's."""
    size = content.nbytes
    address = _driver.fake_cuda_alloc(device, size)
    _driver.fake_cuda_poke(address, content.data_ptr(), size)
    _on_device[address] = device
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=content.dtype).view(content.shape)


def _cuda_memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    device = _on_device.get(tensor.data_ptr())
    return None if device is None else (device, 0)


def main(directory: str, executor: str) -> None:
    """Saves tensors of devices and of the host, fails once, and loads what was saved."""
    # A torch without CUDA has no tensors that say they are on a device.
    _tensors._cuda_memory = _cuda_memory
    _tensors._added_quickly = lambda *_: False
    contents = {
        "a": torch.arange(3_000_000, dtype=torch.float32).view(3000, 1000),
        "b": torch.arange(50, dtype=torch.int64),
        "c": torch.rand(2_000_000, dtype=torch.float64),
        "host": torch.rand(1000, 1000),
    }
    state = {
        "step": 3,
        "a": on_device(contents["a"], 0),
        "b": on_device(contents["b"], 1),
        "c": on_device(contents["c"], 1),
        "host": contents["host"],
    }
    out: dict[str, Any] = {}
    with Stager(executor=executor, copy_from_devices=True, pinned_memory=True) as stager:
        stager.prepare(64 << 20)
        for format in ("varve", "dcp"):
            path = os.path.join(directory, format)
            report = async_save(state, path, stager=stager, format=format).result()
            loaded = varve.torch.read(path)
            out[format] = {
                "device_bytes": report.device_bytes,
                "pageable_bytes": report.pageable_bytes,
                "same": loaded["step"] == 3
                and all(torch.equal(loaded[name], contents[name]) for name in contents),
            }
        _driver.fake_cuda_fail(b"cuMemcpyDtoHAsync", 719, 0)
        failed = async_save(state, os.path.join(directory, "failed"), stager=stager)
        out["error"] = str(failed.exception())
        again = async_save(state, os.path.join(directory, "failed"), stager=stager)
        out["again"] = again.exception() is None
    out["sum"] = sum(content.nbytes for name, content in contents.items() if name != "host")
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
