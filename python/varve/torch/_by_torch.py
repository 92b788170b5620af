"""Entries of DCP checkpoints that torch has pickled as objects of a class: tensors that are made of others.

torch's own restricted unpickler makes them, and only of classes that the program has imported: subclasses of
torch.Tensor, enums, and what their packages have registered with torch as safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from varve import _classes, _core
from varve._core import storage
from varve._values import Wrapped
from varve.errors import CorruptCheckpointError, Error, UnsupportedError
from varve.torch import _following, _wrapped
from varve.torch._devices import fill, on_host
from varve.torch._shards import Part, Share, is_dtensor, stretches_of

_ZIP = b"PK\x03\x04"
_GETATTR = "builtins.getattr"

_ALLOWED = threading.Lock()


def plan(
    reader: _core.Reader, fqn: str, tensor: Any, apart: _wrapped.Apart
) -> tuple[str, Callable[[], Any]]:
    """Returns how what is stored differs from a tensor to fill, "" where it fits, and what fills it.

    A tensor that cannot be filled in place is returned by the function, to take the old one's place.

    Args:
        reader: A checkpoint.
        fqn: The name there.
        tensor: A DTensor, a Share, or a tensor that is whole.
        apart: The same, taken apart.

    Raises:
        UnsupportedError: It was saved by another layout, or needs a class that the program does not have.
    """
    local, offsets, sizes = _box(fqn, tensor)
    chunk = next((c for c in reader.chunks(fqn) if tuple(c.offsets) == offsets), None)
    if chunk is not None and tuple(chunk.sizes) == sizes:
        made = made_of(reader, fqn, chunk)
        own = None if local is tensor else _wrapped.take_apart(fqn, local)
        tensor, apart = (tensor, apart) if own is None else (local, own)
    else:
        made = whole(reader, fqn)
    if made is None:
        return "a plain tensor", lambda: None
    source = _wrapped.take_apart(fqn, made)
    if source is None:
        return "a plain tensor", lambda: None
    stored = Wrapped(_wrapped.text_of(fqn, made, source), source.inner)
    unlike = _wrapped.difference(tensor, apart, stored, False)
    if unlike or not apart.in_place:
        return unlike, lambda: made
    pairs = list(_pairs(fqn, apart, source))
    unlike = next((said for _, _, said in pairs if said), "")
    return unlike, lambda: _fill(pairs)


def whole(reader: _core.Reader, fqn: str) -> Any:
    """Returns the tensor that is stored, in one chunk or in several; None where a plain one is.

    Raises:
        UnsupportedError: It needs a class that the program does not have, or its chunks make no whole one.
    """
    chunks = reader.chunks(fqn)
    made = [made_of(reader, fqn, chunk) for chunk in chunks]
    if not made or any(each is None for each in made):
        return None
    shape = reader.tensors([fqn])[fqn][1]
    if all(tuple(each.shape) == tuple(shape) for each in made):
        return made[0]
    dims = [
        [[(at, at + size)] for at, size in zip(c.offsets, c.sizes, strict=True)] for c in chunks
    ]
    return _joined(fqn, [Share(shape, *each) for each in zip(dims, made, strict=True)])


def _joined(fqn: str, shares: list[Share]) -> Any:
    """Returns the whole tensor that shares are of."""
    aparts = []
    for share in shares:
        apart = _wrapped.take_apart(fqn, share)
        assert apart is not None
        aparts.append(apart)
    inner: dict[str, Any] = {}
    for name, first in aparts[0].inner.items():
        pieces = [apart.inner[name] for apart in aparts]
        if isinstance(first, Share):
            inner[name] = _joined(f"{fqn}.{name}", pieces)
        elif isinstance(first, Part):
            inner[name] = made = torch.empty(first.shape, dtype=first.dtype)
            for offsets, memory in (shard for piece in pieces for shard in piece.shards):
                made[_slices(offsets, memory)] = memory
        elif all(_same(first, piece) for piece in pieces):
            inner[name] = first
        else:
            raise UnsupportedError(
                f'tensor "{fqn}": each shard of this {aparts[0].name.replace(":", ".")} has a {name} of its own: '
                "only the same layout loads it"
            )
    about = _following.of_whole(aparts[0].attributes, tuple(shares[0].local.shape), shares[0].shape)
    strides = torch.empty(shares[0].shape, device="meta").stride()
    return _wrapped.unflatten(type(shares[0].local), inner, about, shares[0].shape, strides)


def _slices(offsets: Sequence[int], memory: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(offsets, memory.shape, strict=True))


def _same(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    flat = [each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)]
    return bool(torch.equal(*flat))


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
        return  # The program that unpickles the bytes gives them their meaning.
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for record in archive.infolist():
                # 0 is what torch writes when told to leave checksums out.
                if record.CRC and record.compress_type == zipfile.ZIP_STORED:
                    archive.read(record)
    except (zipfile.BadZipFile, EOFError) as error:
        raise CorruptCheckpointError(f"{where} is damaged: {error}") from error


def _box(fqn: str, tensor: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Returns the local tensor of this rank, and the offsets and sizes of its part of the whole."""
    if isinstance(tensor, Share):
        dims, local = tensor.dims, tensor.local
    elif is_dtensor(tensor):
        dims, local = stretches_of(fqn, tensor), tensor._local_tensor
    else:
        return tensor, (0,) * tensor.dim(), tuple(tensor.shape)
    return local, tuple(each[0][0] if each else 0 for each in dims), tuple(local.shape)


def _made(fqn: str, archive: io.BytesIO) -> Any:
    names = torch.serialization.get_unsafe_globals_in_checkpoint(archive)
    kinds: list[Any] = []
    for name in names:
        if name == _GETATTR:
            kinds.append((_member, name))
            continue
        kind = _found(name)
        if kind is None:
            raise UnsupportedError(
                f'tensor "{fqn}": only torch can read this entry: it needs {name}, which the program has '
                "not imported, or which is no tensor"
            )
        kinds.append((_Members(kind), name) if issubclass(kind, enum.Enum) else kind)
    archive.seek(0)
    with _allowing(kinds):
        made = torch.load(archive, map_location="cpu", weights_only=True)
    return made if isinstance(made, torch.Tensor) else None


@contextlib.contextmanager
def _allowing(kinds: list[Any]) -> Iterator[None]:
    """Lets torch's unpickler make objects of some classes, beside those that the program has registered with torch.

    An enum that is registered is replaced by its members (`_Members`) meanwhile, and is registered again then.
    Torch has one such list for a process: saves and loads of Varve change it one after another.
    """
    with _ALLOWED:
        before = torch.serialization.get_safe_globals()
        enums: list[Any] = [entry for entry in before if _is_enum(entry)]
        members: list[Any] = [
            (_Members(entry[0]), entry[1])
            if isinstance(entry, tuple)
            else (_Members(entry), f"{entry.__module__}.{entry.__qualname__}")
            for entry in enums
        ]
        with torch.serialization.safe_globals(enums):
            pass  # Torch takes them from the list at the end.
        try:
            with torch.serialization.safe_globals([*kinds, *members]):
                yield
        finally:
            torch.serialization.add_safe_globals([*enums, *(k for k in kinds if k in before)])


def _is_enum(entry: Any) -> bool:
    """Returns True for an enum in torch's list, alone or with a name."""
    kind = entry[0] if isinstance(entry, tuple) else entry
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


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
        return bool(kind.__members__) and not any(
            "_missing_" in vars(each) for each in _classes_of_enum(kind)
        )
    package = kind.__module__.split(".")[0]
    if issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_flatten__"):
        return package in ("torch", "torchao") or _classes.is_registered(kind)
    return dataclasses.is_dataclass(kind) and (
        package == "torchao" or _classes.is_registered(kind)  # Configurations of tensors.
    )


def _classes_of_enum(kind: type) -> list[type]:
    """Returns an enum and its bases, but for Python's own."""
    return [each for each in kind.__mro__ if each.__module__ not in ("enum", "builtins")]


class _Members:
    """Stands for an enum, of which an unpickler gets the members alone: it may change no object of the class."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __call__(self, value: Any) -> Any:
        """Returns the member with a value."""
        return self.kind(value)


def _member(of: Any, name: Any) -> Any:
    """Stands for getattr, by which Python 3.11 pickles the members of enums."""
    if isinstance(of, _Members) and name in of.kind.__members__:
        return of.kind.__members__[name]
    raise UnsupportedError(f"only torch can read this entry: it needs the attribute {name} of {of}")


def is_wrapper(tensor: Any) -> bool:
    """Returns True for a tensor of a class with torch's protocol of wrappers that is to be taken apart.

    Not for nested ones, which torch pickles well, nor for those that stand for another one until it is there.
    """
    return (
        isinstance(tensor, torch.Tensor)
        and hasattr(type(tensor), "__tensor_flatten__")
        and not tensor.is_nested
        and type(tensor).__name__ != "AsyncCollectiveTensor"
    )


def on_cpu(tensor: Any, copy: bool = False) -> Any:
    """Returns a tensor detached and on the CPU.

    One that is made of others is made of them anew. The operators of some classes lose a part of it.
    """
    if not is_wrapper(tensor):
        return tensor.detach().clone() if copy and tensor.is_cpu else on_host(tensor)
    kind, (names, attributes) = type(tensor), tensor.__tensor_flatten__()
    inner = {name: on_cpu(getattr(tensor, name), copy) for name in names}
    return _wrapped.unflatten(kind, inner, attributes, tensor.shape, tensor.stride())


def _pairs(
    fqn: str, apart: _wrapped.Apart, source: _wrapped.Apart
) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
    """Yields the memory of inner tensors to fill, with what goes there, and in what the two differ."""
    for name, inner in apart.inner.items():
        made = source.inner[name]
        below = _wrapped.take_apart(fqn, inner)
        if below is not None:
            stored = _wrapped.take_apart(fqn, made)
            if stored is None or list(stored.inner) != list(below.inner):
                yield inner, made, f"a {name} of another kind"
            else:
                yield from _pairs(fqn, below, stored)
            continue
        unlike = ""
        if tuple(inner.shape) != tuple(made.shape) or inner.dtype != made.dtype:
            unlike = (
                f"{name} {made.dtype}{list(made.shape)}, wanted {inner.dtype}{list(inner.shape)}"
            )
        if isinstance(inner, Part):
            for offsets, memory in inner.shards:
                yield memory, made[_slices(offsets, memory)], unlike
        else:
            yield inner, made, unlike


def _fill(pairs: list[tuple[torch.Tensor, torch.Tensor, str]]) -> None:
    fill((target, source) for target, source, _ in pairs)
