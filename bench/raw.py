"""Builds `raw_io.cc` and runs it: the floor under every ratio."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from bench.measure import Sample

_SOURCE = Path(__file__).with_name("raw_io.cc")
_BLOCK_BYTES = 8 << 20

#: The shapes that are tried, (bytes of a block, blocks in flight), and how.
_SHAPES = [(mib << 20, depth) for mib in (2, 4, 8, 16) for depth in (4, 8, 16)]
_TRIAL_BYTES = 512 << 20
_TRIALS = 3


def build(directory: Path) -> Path:
    """Compiles raw_io into `directory` with g++; returns the program."""
    program = directory / "raw_io"
    command = ["g++", "-O2", "-std=c++20", "-pthread", str(_SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@dataclass(frozen=True)
class Shape:
    """How a raw program moves a file."""

    block_bytes: int = _BLOCK_BYTES
    in_flight: int = 8

    def __str__(self) -> str:
        return f"{self.in_flight} x {self.block_bytes >> 20} MiB"


@dataclass(frozen=True)
class RawIo:
    """Runs the raw_io program. Every call is a process that warms its buffers untimed."""

    program: Path
    write_shape: Shape = Shape()
    read_shape: Shape = Shape()

    def tuned(self, directory: Path) -> RawIo:
        """The same with the fastest shapes for this directory: the best of three trials each.

        A raw writer in a slow shape would make every tool beside it look faster than it is.
        """
        path = directory / "raw-trial"
        writes: dict[Shape, float] = {}
        reads: dict[Shape, float] = {}
        for _ in range(_TRIALS):
            for shape in (Shape(*each) for each in _SHAPES):
                candidate = replace(self, write_shape=shape, read_shape=shape)
                took = candidate.write(path, _TRIAL_BYTES, keep=True).seconds
                writes[shape] = min(took, writes.get(shape, took))
                took = candidate.read(path).seconds
                reads[shape] = min(took, reads.get(shape, took))
        path.unlink()
        return replace(
            self,
            write_shape=min(writes, key=writes.__getitem__),
            read_shape=min(reads, key=reads.__getitem__),
        )

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

    def _run(
        self, mode: str, path: Path, block_bytes: int, in_flight: int, arguments: list[str]
    ) -> Sample:
        command = [str(self.program), mode, "--path", str(path), "--block", str(block_bytes)]
        command += ["--in-flight", str(in_flight), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"raw_io exited with {done.returncode}")
        line = json.loads(done.stdout.splitlines()[-1])
        return Sample(line["seconds"], line["cpu_seconds"])
