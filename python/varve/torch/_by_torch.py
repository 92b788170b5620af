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
from varve.errors import CorruptCheckpointError, Error, UnsupportedError
from varve.torch import _wrapped
from varve.torch._shards import DTensor, stretches_of

_ZIP = b"PK\x03\x04"


def stored(reader: _core.Reader, fqn: str, tensor: Any) -> Any:
    """Returns the tensor that is stored for this rank's part of `tensor`.

    None where a plain one is stored, or by another layout.

    Raises:
        UnsupportedError: It was saved by another layout, or needs a class that the program does not have.
    """
    offsets, sizes = _box(fqn, tensor)
    chunk = next((c for c in reader.chunks(fqn) if tuple(c.offsets) == offsets), None)
    return None if chunk is None or tuple(chunk.sizes) != sizes else made_of(reader, fqn, chunk)


def whole(reader: _core.Reader, fqn: str) -> Any:
    """Returns the tensor that one chunk holds whole; None where a plain one is stored, or several chunks.

    Raises:
        UnsupportedError: It needs a class that the program does not have.
    """
    chunks = reader.chunks(fqn)
    return made_of(reader, fqn, chunks[0]) if len(chunks) == 1 else None


def made_of(reader: _core.Reader, fqn: str, chunk: _core.StoredChunk) -> Any:
    """Returns the tensor of a class that a chunk of a DCP checkpoint holds; None for a plain one.

    Raises:
        UnsupportedError: It needs a class that the program does not have.
    """
    path = f"{reader.directory}/{chunk.file}"
    content = storage.read_bytes(path, chunk.begin, chunk.end)
    if not content.startswith(_ZIP):
        return None
    where = f'"{fqn}" in {path} at {chunk.begin}'
    check_archive(content, where)
    try:
        return _made(fqn, io.BytesIO(content))
    except Error:
        raise
    except Exception as error:  # torch's unpickler raises many kinds.
        raise CorruptCheckpointError(
            f"{where} cannot be read: {type(error).__name__}: {error}", path=path
        ) from error


def check_archive(content: bytes, where: str) -> None:
    """Compares bytes with the checksums that torch.save has put among them, which torch does not.

    Raises:
        CorruptCheckpointError: They differ; the message begins with `where`.
    """
    if not content.startswith(_ZIP):
        return  # Whoever unpickles the bytes gives them their meaning.
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for record in archive.infolist():
                # 0 is what torch writes when told to leave checksums out.
                if record.CRC and record.compress_type == zipfile.ZIP_STORED:
                    archive.read(record)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CorruptCheckpointError(f"{where} is damaged: {error}") from error


def _box(fqn: str, tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if DTensor is None or not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    dims = stretches_of(fqn, tensor)
    return tuple(each[0][0] if each else 0 for each in dims), tuple(tensor._local_tensor.shape)


def _made(fqn: str, archive: io.BytesIO) -> Any:
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
            return kind if _may_be_made(kind) else None
    return None


def _may_be_made(kind: type) -> bool:
    """Returns True for classes whose making runs no code that a file could turn against the program."""
    if issubclass(kind, enum.Enum):
        return bool(kind.__members__) and "_missing_" not in vars(kind)
    if not issubclass(kind, torch.Tensor) or not hasattr(kind, "__tensor_flatten__"):
        return False
    return kind.__module__.split(".")[0] in ("torch", "torchao") or _classes.is_registered(kind)


def difference(fqn: str, tensor: Any, made: Any, apart: _wrapped.Apart) -> str:
    """Returns in what a tensor that torch made is another than one to fill; "" where it fits."""
    own = _wrapped.take_apart(fqn, made)
    if own is None:
        return "a plain tensor"
    text = _wrapped.text_of(fqn, made, own)
    unlike = _wrapped.difference(made, apart, Wrapped(text, own.inner), False)
    return unlike or _unlike_parts(tensor, made)


def _unlike_parts(tensor: Any, made: Any) -> str:
    """Returns the first inner tensor that has another shape or dtype in the two."""
    if DTensor is not None and isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    if not hasattr(type(tensor), "__tensor_flatten__"):
        same = tensor.shape == made.shape and tensor.dtype == made.dtype
        what = f"{made.dtype}{list(made.shape)}, wanted {tensor.dtype}{list(tensor.shape)}"
        return "" if same else what
    for name in tensor.__tensor_flatten__()[0]:
        if unlike := _unlike_parts(getattr(tensor, name), getattr(made, name)):
            return f"{name} {unlike}"
    return ""


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
