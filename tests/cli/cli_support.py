"""Checkpoints, stale files and damage for the tests of the command line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

import varve
from varve import _core, _engine


def contents(folder: Path) -> dict[str, str]:
    """Every path under a folder, with a digest of each file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = digest
    return found


def data_file(checkpoint: Path) -> Path:
    (found,) = checkpoint.glob("data-*.safetensors")
    return found


def make_stale(folder: Path, name: str) -> Path:
    """What a save of `name` leaves when it is killed."""
    staging = folder / f".{name}.varve-saving-{'0123456789abcdef' * 2}"
    staging.mkdir()
    (staging / "data-00000-of-00001.safetensors").write_bytes(b"x" * 5000)
    return staging


def save_as_rank(rank: int, size: int, path: Path) -> None:
    """Uncoordinated saves: what one rank of a job does, no other being needed."""
    _engine.save(
        _engine.Content({"w": np.arange(64.0) + rank, "step": 1} if rank == 0 else {}),
        path,
        varve.NumpyArrays(),
        _core.Coordinator(rank, size),
        _core.SaveOptions(coordinate=False, save_id=b"\xab" * 16),
    )


def flip_a_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))
