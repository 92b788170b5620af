"""Entries of DCP checkpoints that torch has pickled as objects of a class: tensors that are made of others.

torch's own restricted unpickler makes them, and only of classes that the program has imported: subclasses of
torch.Tensor, enums, and what their packages have registered with torch as safe.
"""

from __future__ import annotations

import enum
import io
import zipfile
from typing import Any

import torch

from varve import _classes, _core
from varve._core import storage
from varve._values import Wrapped
from varve.errors import UnsupportedError
from varve.torch import _wrapped
from varve.torch._shards import DTensor, stretches_of


def stored(reader: _core.Reader, fqn: str, tensor: Any) -> Any:
    """Returns the tensor that is stored for this rank's part of `tensor`, of the whole if that is None.

    None where a plain one is stored, or by another layout.

    Raises:
        UnsupportedError: It was saved by another layout, or needs a class that the program does not have.
    """
    if tensor is None:
        chunks = reader.chunks(fqn)
        return made_of(reader, fqn, chunks[0]) if len(chunks) == 1 else None
    offsets, sizes = _box(fqn, tensor)
    chunk = next((c for c in reader.chunks(fqn) if tuple(c.offsets) == offsets), None)
    return None if chunk is None or tuple(chunk.sizes) != sizes else made_of(reader, fqn, chunk)


def made_of(reader: _core.Reader, fqn: str, chunk: _core.StoredChunk) -> Any:
    """Returns the tensor of a class that a chunk of a DCP checkpoint holds; None for a plain one.

    Raises:
        UnsupportedError: It needs a class that the program does not have.
    """
    path = f"{reader.directory}/{chunk.file}"
    archive = io.BytesIO(storage.read_bytes(path, chunk.begin, chunk.end))
    return _made(fqn, archive) if zipfile.is_zipfile(archive) else None


def _box(fqn: str, tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if DTensor is None or not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    dims = stretches_of(fqn, tensor)
    return tuple(each[0][0] if each else 0 for each in dims), tuple(tensor._local_tensor.shape)


def _made(fqn: str, archive: io.BytesIO) -> Any:
    archive.seek(0)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(archive)
    kinds: list[Any] = []
    for name in names:
        kind = _found(name)
        if kind is None:
            raise UnsupportedError(
                f'tensor "{fqn}": only torch can read this entry: it needs {name}, which the program has '
                "not imported, or which is no tensor"
            )
        kinds.append(kind)
    archive.seek(0)
    with torch.serialization.safe_globals(kinds):
        made = torch.load(archive, map_location="cpu", weights_only=True)
    return made if isinstance(made, torch.Tensor) else None


def _found(name: str) -> type | None:
    """Returns a class of the program by its full name, if an unpickler may have it."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        kind = _classes.find(".".join(parts[:cut]) + ":" + ".".join(parts[cut:]))
        if kind is not None:
            return kind if issubclass(kind, (torch.Tensor, enum.Enum)) else None
    return None


def difference(fqn: str, made: Any, apart: _wrapped.Apart, is_stored: Any) -> str:
    """Returns in what a tensor that torch made is another than one to fill; "" where it fits."""
    own = _wrapped.take_apart(fqn, made, is_stored)
    if own is None:
        return "a plain tensor"
    text = _wrapped.text_of(fqn, made, own)
    return _wrapped.difference(made, apart, Wrapped(text, own.inner), False)


def fill(tensor: Any, made: Any) -> None:
    """Copies the inner tensors of one into the other's."""
    if DTensor is not None and isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    names, _ = tensor.__tensor_flatten__()
    with torch.no_grad():
        for name in names:
            target, source = getattr(tensor, name), getattr(made, name)
            if hasattr(type(target), "__tensor_flatten__"):
                fill(target, source)
            else:
                target.copy_(source)
