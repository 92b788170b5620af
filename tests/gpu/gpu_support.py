"""States on a device, comparisons by bytes, and what the tests ask of the machine."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

#: "cpu" tries the tests' own logic where there is no device; what needs one is skipped.
DEVICE = os.environ.get("VARVE_GPU_TESTS_DEVICE", "cuda")

MIB = 1 << 20


def why_not() -> str | None:
    """Returns why these tests cannot run here, or None."""
    if DEVICE == "cpu" or torch.cuda.is_available():
        return None
    return f"no CUDA device here (torch {torch.__version__})"


def pause_device(milliseconds: float = 1.0) -> None:
    """Queues work that lasts about this long on the current stream; the call returns at once."""
    if DEVICE != "cpu":
        torch.cuda._sleep(int(milliseconds * 1_500_000))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor's elements, row by row, on the CPU."""
    whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return whole.reshape(-1).view(torch.uint8) if whole.numel() else whole.reshape(-1)


def require_same(found: Mapping[str, Any], wanted: Mapping[str, torch.Tensor], what: str) -> None:
    """Fails, naming the tensor, unless dtype, shape and every byte are the same. NaNs count."""
    for name, tensor in wanted.items():
        other = found[name]
        where = f"{what}: {name}"
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), where
        if other.is_cuda and tensor.is_cuda and tensor.dtype is torch.float32:
            assert torch.equal(_bits(other), _bits(tensor)), where
        else:
            assert torch.equal(raw(other), raw(tensor)), where


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of float32 elements, where they are: a NaN equals itself."""
    return tensor.detach().resolve_neg().view(torch.int32)


def copies_of(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Queues a copy of each tensor on the device."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def zeros_like(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns contiguous tensors of the same dtypes and shapes, all bytes zero, on the device."""
    return {
        name: torch.zeros(tensor.nbytes, dtype=torch.uint8, device=DEVICE)
        .view(tensor.dtype)
        .view(tensor.shape)
        if tensor.numel()
        else torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
        for name, tensor in state.items()
    }


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns random values on the device, of any dtype that randn can be converted to."""
    return torch.randn(*shape, device=DEVICE).to(dtype)


def every_kind() -> dict[str, torch.Tensor]:
    """Returns tensors of every layout and dtype that a state may have on a device."""
    torch.manual_seed(7)
    cube = random(40, 50, 60)
    complexes = torch.complex(random(300, 20), random(300, 20))
    odd = torch.arange(77, device=DEVICE, dtype=torch.uint8)
    state = {
        "plain": random(1000, 1001),
        "strided rows": random(512, 300)[::2],
        "strided columns": random(512, 300)[:, 10:90],
        "every third column": random(300, 300)[:, ::3],
        "transposed": random(700, 300).t(),
        "permuted": cube.permute(2, 0, 1),
        "inner box": cube[3:17, 5:25, 7:50],
        "channels last": random(8, 16, 24, 20).to(memory_format=torch.channels_last),
        "expanded": random(1, 64).expand(32, 64),
        "conjugated": complexes.conj(),
        "conjugated and transposed": complexes.t().conj(),
        "negated": complexes.conj().imag,
        "complex128": complexes.to(torch.complex128),
        "bfloat16": random(1000, 33, dtype=torch.bfloat16),
        "float16": random(77, dtype=torch.float16),
        "float64": random(99, dtype=torch.float64),
        "e4m3": random(511, dtype=torch.float8_e4m3fn),
        "e5m2": random(3, 171, dtype=torch.float8_e5m2),
        "bool": random(1001) > 0,
        "int64": torch.arange(-5, 500, device=DEVICE),
        "int8": torch.arange(-50, 51, device=DEVICE, dtype=torch.int8),
        "no elements": torch.empty(0, 5, device=DEVICE),
        "scalar": torch.tensor(3.5, device=DEVICE),
        "scalar of another dtype": torch.tensor(-7, device=DEVICE, dtype=torch.int16),
        "one element": random(1),
        "not a number": torch.full((7,), float("nan"), device=DEVICE),
        "parameter": torch.nn.Parameter(random(123, 45)),
    }
    for i in range(5):  # Odd sizes between others: nothing behind them is aligned.
        state[f"odd{i} bytes"] = odd.clone() + i
        state[f"odd{i} floats"] = random(1 + 1000 * i)
    return state


def make_model(width: int = 256, seed: int = 0) -> torch.nn.Module:
    """Returns a small module with a buffer, on the device that is the default one."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 7)
    )


def drop_cache(path: Path) -> None:
    """Drops a checkpoint's files from the page cache."""
    for file in (p for p in path.rglob("*") if p.is_file()):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm_cache(path: Path) -> None:
    """Reads a checkpoint's files through, which brings them into the page cache."""
    for file in (p for p in path.rglob("*") if p.is_file()):
        with file.open("rb", buffering=0) as data:
            while data.read(MIB):
                pass


def device_bytes_in_use() -> int:
    """Returns the bytes of the device that are not free, whoever has allocated them."""
    if DEVICE == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def resident_bytes() -> int:
    """Returns the bytes of this process that are in memory: anonymous, shared and mapped."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def watched(measure: Callable[[], int]) -> Iterator[Callable[[], int]]:
    """Measures again and again beside the block; gives what tells by how much it grew at most."""
    gc.collect()
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    before = most = measure()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, measure())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(most, measure()) - before
    finally:
        ended.set()
        watcher.join()
