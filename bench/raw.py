"""Builds `raw_io.cc` and runs it: the floor under every ratio."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Sample

_SOURCE = Path(__file__).with_name("raw_io.cc")
_BLOCK_BYTES = 8 << 20
_IN_FLIGHT = 8


def build(directory: Path) -> Path:
    """Compiles raw_io into `directory` with g++; returns the program."""
    program = directory / "raw_io"
    command = ["g++", "-O2", "-std=c++20", "-pthread", str(_SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@dataclass(frozen=True)
class RawIo:
    """Runs the raw_io program. Every call is a process that warms its buffers untimed."""

    program: Path

    def write(self, path: Path, size: int, *, keep: bool = False) -> Sample:
        """Writes `size` bytes to `path` with O_DIRECT, durable; `keep` leaves the file."""
        arguments = ["--bytes", str(size), *(["--keep"] if keep else [])]
        return self._run("write", path, _BLOCK_BYTES, _IN_FLIGHT, arguments)

    def read(self, path: Path) -> Sample:
        """Reads the whole of `path` with O_DIRECT."""
        return self._run("read", path, _BLOCK_BYTES, _IN_FLIGHT, [])

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
