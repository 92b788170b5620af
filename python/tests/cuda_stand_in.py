"""Tensors on devices of the stand-in for CUDA's driver (tests/fake_cuda), in this process from `install` on.

A torch without CUDA makes no tensors on devices. These are tensors over memory that the process cannot read;
the package is told that they are on a device, and so is who asks them for `is_cuda`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import programs
import pytest
import torch

from varve import _tree
from varve.torch import _devices, _tensors
from varve.torch.dcp import _plain_plan

#: The stand-in's library, with the functions of tests/support/fake_cuda.h.
driver: Any = None

#: The begin and end of memory on a device, and which.
_on_device: dict[int, tuple[int, int]] = {}

_on_cpu: Any = torch.Tensor.is_cpu


def library() -> str:
    """The stand-in's library, for `install`. Skips the test where it is not built."""
    built = Path(__file__).resolve().parents[2] / "build" / "dev" / "varve_tests"
    binary = Path(os.environ.get("VARVE_TESTS_BINARY", built))
    found = binary.parent / "fake_cuda" / "libcuda.so.1"
    if not found.exists():
        assert "VARVE_REQUIRE_BUILD" not in os.environ, f"{found} was not built"
        pytest.skip(f"{found} is not built: cmake --build --preset dev")
    return str(found)


def run_job(program: str, job: str, *arguments: object) -> dict[str, Any]:
    """The result of a job of a program in this folder, in a process of its own with the stand-in."""
    here = Path(__file__).parent
    done = programs.run((here / program).read_text(), library(), job, *arguments, cwd=here)
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def on_device(content: torch.Tensor, device: int) -> torch.Tensor:
    """A tensor whose memory the process cannot read, as a CUDA tensor's. Its memory is freed with it."""
    size = content.nbytes
    address: int = driver.fake_cuda_alloc(device, size)
    driver.fake_cuda_poke(address, content.contiguous().data_ptr(), size)
    _on_device[address] = address + size, device
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _free, address).atexit = False
    return torch.frombuffer(memory, dtype=content.dtype).view(content.shape)


def _free(address: int) -> None:
    del _on_device[address]
    driver.fake_cuda_free(address)


def tensors_alive() -> int:
    """The number of tensors that `on_device` has made, and that live."""
    return len(_on_device)


def claim(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """Lets a tensor of the host say that it is on a device; for a process without a driver."""
    address = tensor.data_ptr()
    _on_device[address] = address + tensor.nbytes, device
    weakref.finalize(tensor, _on_device.pop, address).atexit = False  # Others may get its memory.
    return tensor


def peek(tensor: torch.Tensor) -> torch.Tensor:
    """Its content, of the whole memory in row-major order."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype)
    driver.fake_cuda_peek(tensor.data_ptr(), out.data_ptr(), out.nbytes)
    return out


def device_of(tensor: torch.Tensor) -> int | None:
    """The device that a tensor is on; None for tensors of the host."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    address = tensor.data_ptr()
    ranges = list(_on_device.items())
    found = (device for begin, (end, device) in ranges if begin <= address < end)
    return next(found, None)


def cuda_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """As _devices.cuda_of; the stream is the default one."""
    device = device_of(tensor)
    return None if device is None or tensor.is_conj() or tensor.is_neg() else (device, 0)


def cuda_device(tensor: Any) -> int | None:
    """As _shards.cuda_device, of plain tensors and DTensors."""
    return device_of(getattr(tensor, "_local_tensor", tensor))


def install(path: str) -> None:
    """Loads the stand-in, and makes the package take its memory for that of devices."""
    global driver
    driver = ctypes.CDLL(path)  # The engine finds it by its name from now on.
    driver.fake_cuda_alloc.restype = ctypes.c_void_p
    driver.fake_cuda_alloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
    driver.fake_cuda_free.argtypes = [ctypes.c_void_p]
    for name in ("fake_cuda_poke", "fake_cuda_peek"):
        getattr(driver, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    driver.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    for module_name, module in list(sys.modules.items()):
        for function in (cuda_of, cuda_device):
            if module_name.startswith("varve.") and hasattr(module, function.__name__):
                setattr(module, function.__name__, function)
    pretend()
    assert _devices.problem() == ""


def pretend() -> None:
    """Lets tensors say whether they are on devices, to who asks them."""
    tensor: Any = torch.Tensor
    tensor.is_cuda = property(lambda self: device_of(self) is not None)
    tensor.is_cpu = property(lambda self: _on_cpu.__get__(self) and device_of(self) is None)
    # What takes plain tensors without asking this.
    init = _plain_plan._Walk.__init__
    one_by_one: Any = lambda entries, *_: next(entries, None)  # noqa: E731
    _plain_plan._Walk.__init__ = lambda self, _, leaf: init(self, one_by_one, leaf)  # type: ignore[method-assign,misc]
    _tensors.TorchArrays._added_plain = lambda *_: False  # type: ignore[method-assign]
    _tensors.TorchArrays.taker = lambda *_: _tree.take_nothing  # type: ignore[method-assign]
    _tensors.TorchArrays.matcher = lambda *_: _tree.take_nothing  # type: ignore[method-assign]
