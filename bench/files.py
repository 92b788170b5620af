"""What must be true of files and caches before and after a timing."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_READ_BYTES = 4 << 20
_READERS = 8


def files_under(path: Path) -> Iterator[Path]:
    """Yields `path` itself if it is a file, else every regular file below it, sorted."""
    if path.is_file():
        yield path
    else:
        yield from sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())


def bytes_under(path: Path) -> int:
    """Returns the total length of the files under `path`."""
    return sum(file.stat().st_size for file in files_under(path))


def fsync_directory(path: Path) -> None:
    """Makes the entries of directory `path` durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def fsync_tree(path: Path) -> None:
    """Makes directory `path` durable: its files, its directories, and its entry in the parent."""
    for file in files_under(path):
        _fsync(file, os.O_RDONLY)
    for directory, _, _ in os.walk(path, topdown=False):
        fsync_directory(Path(directory))
    fsync_directory(path.parent)


def copy_synced(source: Path, target: Path) -> None:
    """Copies a directory as `cp -r` does, and makes the copy durable."""
    subprocess.run(["cp", "-r", source, target], check=True)
    fsync_tree(target)


def remove(path: Path) -> None:
    """Removes a file or a directory tree; absent is fine."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def drop_cache(path: Path) -> None:
    """Drops the files under `path` from the page cache.

    They are synced first, since the kernel drops only clean pages. Needs no privilege, unlike
    /proc/sys/vm/drop_caches, and leaves other files alone. A hypervisor's or a disk's own cache
    below is out of reach.
    """
    for file in files_under(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm_cache(path: Path) -> None:
    """Reads the files under `path` once, which brings them into the page cache."""
    for file in files_under(path):
        offsets = range(0, file.stat().st_size, _READ_BYTES)
        fd = os.open(file, os.O_RDONLY)
        try:
            with ThreadPoolExecutor(_READERS) as pool:
                for _ in pool.map(lambda offset, fd=fd: os.pread(fd, _READ_BYTES, offset), offsets):
                    pass
        finally:
            os.close(fd)


def cached_fraction(path: Path) -> float:
    """Returns the fraction of the pages under `path` that are in the page cache (mincore)."""
    resident = total = 0
    for file in files_under(path):
        if (length := file.stat().st_size) == 0:
            continue
        pages = np.zeros(-(-length // mmap.PAGESIZE), dtype=np.uint8)
        view = np.memmap(file, dtype=np.uint8, mode="r")
        result = _LIBC.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(length),
            ctypes.c_void_p(pages.ctypes.data),
        )
        if result != 0:
            raise OSError(ctypes.get_errno(), "mincore", str(file))
        resident += int((pages & 1).sum())
        total += len(pages)
    return resident / total if total else 0.0


def _fsync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_LIBC = ctypes.CDLL(None, use_errno=True)
