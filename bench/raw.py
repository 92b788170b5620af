"""Builds `raw_io.cc` and runs it: the floor under every ratio."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.measure import Sample

_SOURCE = Path(__file__).with_name("raw_io.cc")
_BLOCK_BYTES = 8 << 20
_CORES = len(os.sched_getaffinity(0))

_TRIAL_BYTES = 512 << 20
#: The libraries of checksums whose speed is a limit; raw_io does without where they are missing.
_CHECKSUMS = ["-DRAW_IO_CHECKSUMS", "-lisal", "-lxxhash"]


def build(directory: Path) -> Path:
    """Compiles raw_io into `directory` with g++; returns the program."""
    program = directory / "raw_io"
    command = ["g++", "-O2", "-std=c++20", "-pthread", str(_SOURCE), "-o", str(program)]
    if subprocess.run([*command, *_CHECKSUMS], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)
    return program


@dataclass(frozen=True)
class Shape:
    """How a raw program moves a file."""

    block_bytes: int = _BLOCK_BYTES
    in_flight: int = 8

    def __str__(self) -> str:
        return f"{self.in_flight} x {self.block_bytes >> 20} MiB"


#: The shapes that are tried, and in a quick run.
SHAPES = [Shape(mib << 20, depth) for mib in (2, 4, 8, 16) for depth in (4, 8, 16)]
QUICK_SHAPES = [Shape(4 << 20, 4), Shape(4 << 20, 8), Shape(8 << 20, 4)]


@dataclass(frozen=True)
class Limit:
    """The highest speed of this machine in one respect: decimal GB/s, by the number of threads.

    A limit of the disk stands under the number of cores, though its reads and writes have more threads.
    """

    name: str
    gb_per_s: dict[int, float]


@dataclass(frozen=True)
class RawIo:
    """Runs the raw_io program. Every call is a process that warms its buffers untimed."""

    program: Path
    write_shape: Shape = Shape()
    read_shape: Shape = Shape()
    disk: list[Limit] = field(default_factory=list)
    """Raw write and read in these shapes: the best of the trials that chose them."""

    def tuned(self, directory: Path, shapes: Sequence[Shape] = SHAPES, trials: int = 3) -> RawIo:
        """Returns the same with the fastest of `shapes` for this directory: the best of `trials`.

        A raw writer in a slow shape would make every tool beside it look faster than it is.
        """
        path = directory / "raw-trial"
        writes: dict[Shape, list[float]] = {shape: [] for shape in shapes}
        reads: dict[Shape, list[float]] = {shape: [] for shape in shapes}
        for _ in range(trials):
            for shape in shapes:
                candidate = replace(self, write_shape=shape, read_shape=shape)
                writes[shape].append(candidate.write(path, _TRIAL_BYTES, keep=True).seconds)
                reads[shape].append(candidate.read(path).seconds)
        path.unlink()
        write = min(shapes, key=lambda shape: min(writes[shape]))
        read = min(shapes, key=lambda shape: min(reads[shape]))
        disk = [
            Limit(f"raw O_DIRECT {what}, {shape}", {_CORES: _rate(_TRIAL_BYTES, [min(times)])})
            for what, shape, times in (
                ("write", write, writes[write]),
                ("read", read, reads[read]),
            )
        ]
        return replace(self, write_shape=write, read_shape=read, disk=disk)

    def limits(self, directory: Path, size: int, repeat: int) -> list[Limit]:
        """Measures copies, checksums and reads of `size` bytes of warm memory; medians of `repeat`.

        Takes twice `size` of memory, and a file of half of it in `directory` for a while.
        """
        numbers = ["--bytes", str(size), "--repeat", str(repeat)]
        lines = self._lines("limits", directory / "limits", _BLOCK_BYTES, _CORES, numbers)
        times: dict[str, dict[int, list[float]]] = {}
        for line in lines:
            each = times.setdefault(line["limit"], {}).setdefault(line["threads"], [])
            each.append(line["seconds"] / line["bytes"])
        return [
            Limit(name, {threads: _rate(1, each) for threads, each in by_threads.items()})
            for name, by_threads in times.items()
        ] + self.disk

    def write(self, path: Path, size: int, *, keep: bool = False) -> Sample:
        """Writes `size` bytes to `path` with O_DIRECT, durable; `keep` leaves the file."""
        arguments = ["--bytes", str(size), *(["--keep"] if keep else [])]
        shape = self.write_shape
        return self._run("write", path, shape.block_bytes, shape.in_flight, arguments)

    def read(self, path: Path) -> Sample:
        """Reads the whole of `path` with O_DIRECT."""
        return self._run("read", path, self.read_shape.block_bytes, self.read_shape.in_flight, [])

    def mmap_copy(self, path: Path, *, threads: int, block_bytes: int = _BLOCK_BYTES) -> Sample:
        """Copies `path` out of a mapping into warm memory, `block_bytes` to a memcpy."""
        return self._run("mmap-copy", path, block_bytes, threads, [])

    def pread_copy(self, path: Path) -> Sample:
        """Reads `path`, which is cached, into warm memory with a thread per core."""
        return self._run("pread-copy", path, _BLOCK_BYTES, _CORES, [])

    def _run(
        self, mode: str, path: Path, block_bytes: int, in_flight: int, arguments: list[str]
    ) -> Sample:
        line = self._lines(mode, path, block_bytes, in_flight, arguments)[-1]
        return Sample(line["seconds"], line["cpu_seconds"])

    def _lines(
        self, mode: str, path: Path, block_bytes: int, in_flight: int, arguments: list[str]
    ) -> list[dict[str, Any]]:
        command = [str(self.program), mode, "--path", str(path), "--block", str(block_bytes)]
        command += ["--in-flight", str(in_flight), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"raw_io exited with {done.returncode}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def _rate(size: int, seconds: list[float]) -> float:
    return round(size / statistics.median(seconds) / 1e9, 2)
