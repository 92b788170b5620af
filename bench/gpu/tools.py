"""Functions of all scenarios: states, times, raw reads and writes, caches and memory."""

from __future__ import annotations

import gc
import mmap
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

GIB = 1 << 30
MIB = 1 << 20

State = dict[str, torch.Tensor]


@dataclass
class Machine:
    """Where to measure. `scale` divides all sizes, for a try without a device."""

    directory: Path
    device: str
    scale: int
    pinned: list[torch.Tensor] = field(default_factory=list)
    read_shape: tuple[int, int] = (1, 16 * MIB)
    """Readers and bytes of a block of the fastest raw read."""

    def bytes(self, size: int) -> int:
        """Returns the size to use for `size` bytes."""
        return max(size // self.scale, 1 << 16)

    def state(self, size: int, count: int) -> State:
        """Returns `count` tensors of random floats on the device, together `size` bytes (scaled)."""
        each = max(self.bytes(size) // count // 4, 1)
        return {f"w{i}": torch.randn(each, device=self.device) for i in range(count)}

    def path(self, name: str) -> Path:
        """Returns a name that does not exist."""
        path = self.directory / name
        remove(path)
        return path

    def get_pinned(self) -> list[torch.Tensor]:
        """Returns 4 GiB (scaled) of pinned memory in 8 tensors, made once."""
        if not self.pinned:
            each = self.bytes(4 * GIB) // 8 // 4
            pin = self.device == "cuda"
            self.pinned = [torch.zeros(each, pin_memory=pin) for _ in range(8)]
        return self.pinned


def bytes_of(state: Mapping[str, torch.Tensor]) -> int:
    """Returns the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())


def synchronize() -> None:
    """Waits for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free() -> None:
    """Gives back the memory of what is no longer referred to."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def timed(action: Callable[[], object]) -> float:
    """Returns the seconds of `action`, with the device idle before and after."""
    synchronize()
    begin = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - begin


def require_same(found: Mapping[str, Any], wanted: Mapping[str, torch.Tensor]) -> None:
    """Raises unless all values are the same."""
    for name, tensor in wanted.items():
        if not torch.equal(found[name].to(tensor.device), tensor):
            raise AssertionError(f"{name}: loaded values differ from the saved ones")


def zero(state: Mapping[str, torch.Tensor]) -> None:
    """Sets all values to zero."""
    torch._foreach_zero_(list(state.values()))
    synchronize()


def use_memory_once() -> float:
    """Writes to most of the free memory and gives it back; returns GiB.

    A virtual machine gets each page from its host when it is first touched, which takes as long
    again as taking it from the system. Where training has run for a while that is long past. In
    huge pages, so that what is free afterwards is in pieces as large.
    """
    free = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip().isdigit():
        free.append(int(limit.read_text()) // 2)
    memory = mmap.mmap(-1, min(free) * 3 // 4)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    view.fill_(1)
    size = view.numel()
    del view
    memory.close()
    return size / GIB


def remove(path: Path) -> None:
    """Removes a file or a directory tree; absent is fine."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_under(path: Path) -> list[Path]:
    """Returns `path` itself, or the regular files below it."""
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def largest_file(path: Path) -> Path:
    """Returns the file that holds most of a checkpoint."""
    return max(files_under(path), key=lambda file: file.stat().st_size)


def drop_cache(path: Path) -> None:
    """Drops files from the page cache."""
    for file in files_under(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm_cache(path: Path) -> None:
    """Reads files through, which brings them into the page cache."""
    for file in files_under(path):
        with file.open("rb", buffering=0) as data:
            buffer = bytearray(16 * MIB)
            while data.readinto(buffer):
                pass


def _open_direct(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError:
        return os.open(path, flags, 0o644)  # A file system without it, such as tmpfs.


def _aligned(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(4096) * (size // 4096))
    return memory


def raw_read(path: Path, readers: int, block: int) -> float:
    """Returns the seconds that reading a file with O_DIRECT takes; the buffers are warm."""
    size = path.stat().st_size & ~4095
    buffers = [_aligned(block) for _ in range(readers)]

    def read(reader: int) -> None:
        fd = _open_direct(path, os.O_RDONLY)
        try:
            for at in range(reader * block, size, readers * block):
                os.preadv(fd, [memoryview(buffers[reader])[: min(block, size - at)]], at)
        finally:
            os.close(fd)

    with ThreadPoolExecutor(readers) as pool:
        begin = time.perf_counter()
        list(pool.map(read, range(readers)))
        return time.perf_counter() - begin


def raw_write(path: Path, size: int, writers: int, block: int) -> float:
    """Returns the seconds that writing a new file with O_DIRECT takes, until it is durable."""
    remove(path)
    buffers = [_aligned(block) for _ in range(writers)]
    begin = time.perf_counter()
    fd = _open_direct(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)

        def write(writer: int) -> None:
            for at in range(writer * block, size, writers * block):
                os.pwritev(fd, [memoryview(buffers[writer])[: min(block, size - at)]], at)

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, range(writers)))
        os.fsync(fd)
        return time.perf_counter() - begin
    finally:
        os.close(fd)


def resident_bytes() -> int:
    """Returns the bytes of this process's own memory: not what it shares with the agent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def device_bytes() -> int:
    """Returns the bytes of the device that are not free."""
    if not torch.cuda.is_available():
        return 0
    free_bytes, total = torch.cuda.mem_get_info()
    return int(total - free_bytes)


@dataclass
class Growth:
    """The largest growth that was seen. Bytes."""

    host: int = 0
    device: int = 0


@contextmanager
def growing() -> Iterator[Growth]:
    """Watches the memory of this process and of the device while the block runs."""
    growth = Growth()
    synchronize()
    host, device = resident_bytes(), device_bytes()
    ended = threading.Event()

    def look() -> None:
        growth.host = max(growth.host, resident_bytes() - host)
        growth.device = max(growth.device, device_bytes() - device)

    def watch() -> None:
        while not ended.wait(0.01):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield growth
    finally:
        ended.set()
        watcher.join()
        look()


def header(machine: Machine) -> dict[str, Any]:
    """Returns what the figures depend on."""
    import varve

    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    card = "no card (a try on the CPU)"
    if machine.device == "cuda":
        card = torch.cuda.get_device_name()
    return {
        "card": card,
        "driver": _driver(),
        "torch": torch.__version__,
        "varve": getattr(varve, "__version__", "?"),
        "CPU": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * mmap.PAGESIZE / GIB:.0f} GiB",
        "kernel": platform.release(),
        "file system": _file_system(machine.directory),
    }


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "none"
    numbers = [word for word in text.split() if word[0].isdigit() and word.count(".") >= 1]
    return numbers[0] if numbers else "unknown"


def _file_system(directory: Path) -> str:
    target, best = directory.resolve(), ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if target.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = mount, kind
    return best[1]
