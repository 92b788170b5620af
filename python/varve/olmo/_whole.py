"""Whole states of a checkpoint, read in one process: of a model, of its optimizer, of the trainer."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch

from varve import _core, _engine
from varve._engine import is_remote
from varve.errors import OutOfSpaceError, PreconditionError
from varve.olmo._files import files_in, moved
from varve.olmo._restore import Source

#: Model, optimizer and trainer: what `unshard_checkpoint` returns.
WholeState = tuple[dict[str, torch.Tensor], dict[str, Any] | None, dict[str, Any] | None]


def read(path: str, optimizer: bool, trainer: bool, device: Any) -> WholeState:
    """Reads whole states into new memory."""
    source = Source(path)

    def part(name: str) -> dict[str, Any]:
        found: dict[str, Any] = moved(source.read(name, device), device)
        return found

    return part("model"), part("optim") if optimizer else None, part("train") if trainer else None


def mapped(path: str, optimizer: bool, trainer: bool) -> WholeState:
    """Reads whole states whose tensors are private maps of unnamed files in the temporary directory (TMPDIR).

    If TMPDIR has no room for a part, that part is read into memory.

    Raises PreconditionError if the checkpoint was replaced meanwhile: each part is opened by itself.
    """
    before = _files_of(path)
    source = Source(path)

    def part(name: str) -> dict[str, Any]:
        try:
            return _mapped(path, name)
        except OutOfSpaceError:
            in_memory: dict[str, Any] = source.read(name)
            return in_memory

    model, optim = part("model"), part("optim") if optimizer else None
    whole = model, optim, source.read("train") if trainer else None
    if _files_of(path) != before:
        raise PreconditionError(
            f"load {path}: it was overwritten or removed while it was being read; read it again",
            path=path,
        )
    return whole


def _mapped(path: str, name: str) -> dict[str, Any]:
    # On NFS the mapped file keeps a name until the process ends, and the directory stays.
    with tempfile.TemporaryDirectory(prefix="varve-unshard-", ignore_cleanup_errors=True) as folder:
        file = os.path.join(folder, f"{name}.pt")
        options = _core.ConvertOptions(to="torch", part=name)
        _core.convert(_engine.path_text(path), file, options)
        # The engine has just pickled plain values into it.
        found: dict[str, Any] = torch.load(file, mmap=True, weights_only=False)
        return found


def _files_of(path: str) -> dict[str, tuple[int, int, int]]:
    """Returns the inode, size and time of each file below a directory, by its path; of remote ones the size."""
    found = {}
    if is_remote(path):
        return {name: (0, size, 0) for name, size in files_in(path).items()}
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            try:
                status = os.stat(file)
            except FileNotFoundError:
                continue  # Another process has removed it.
            found[file] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found
