"""Torch's Metadata of any checkpoint that Varve opens, for which nothing is unpickled, and of one that was just saved."""

from __future__ import annotations

import codecs
import dataclasses
import io
import math
import os
import pickle
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from varve import _core
from varve._core import storage
from varve._values import ObjectLeaf, TensorLeaf
from varve.errors import CheckpointNotFoundError, UnsupportedError
from varve.torch._tensors import _DTYPES
from varve.torch.dcp._compat import StorageInfo

#: The version of the format, as torch writes it since 2.7.
VERSION = "1.0.0"

#: How pickles hold the id of a save, of protocol 2 and of later ones.
_SAVE_ID = re.compile(
    rb"save_id(?:q.|r....|\x94)?(?:\x8c\x24|X\x24\0\0\0)([0-9a-f-]{36})", re.DOTALL
)


@dataclasses.dataclass
class Stored(StorageInfo):
    """The place of a chunk or value, and its name in the engine.

    A planner may give entries of the metadata other names; this stays with them.
    """

    fqn: str = ""
    offsets: tuple[int, ...] = ()


def metadata_of(reader: _core.Reader, load_id: str) -> Metadata:
    """Returns the Metadata of an open checkpoint.

    Chunks are those that are stored. Where they do not cover their tensor, or cover some of it
    twice, there is one chunk instead that stands for all of it: so planners ask for every element,
    and reading says which are missing. Torch's planner skips elements that no chunk has.
    """
    entries: dict[str, Any] = {}
    stored: dict[MetadataIndex, Stored] = {}
    for fqn, (number, shape) in reader.tensors().items():
        chunks = _presented(shape, reader.chunks(fqn))
        entries[fqn] = TensorStorageMetadata(
            TensorProperties(dtype=dtype_of(fqn, number)),
            torch.Size(shape),
            [
                ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                for chunk in chunks
            ],
        )
        for i, chunk in enumerate(chunks):
            stored[MetadataIndex(fqn, chunk.offsets, i)] = Stored(
                chunk.file, chunk.begin, chunk.end - chunk.begin, fqn=fqn, offsets=chunk.offsets
            )
    extents = reader.object_extents()
    for fqn in reader.object_names():
        entries[fqn] = BytesStorageMetadata()
        name, begin, end = extents.get(fqn, ("", 0, 0))
        stored[MetadataIndex(fqn)] = Stored(name, begin, end - begin, fqn=fqn)
    paths = _paths(reader.structure())
    if paths is not None:  # In the order of the state, which is the order of a dict built from it.
        entries = {fqn: entries.pop(fqn) for fqn in paths if fqn in entries} | entries
    return Metadata(
        state_dict_metadata=entries,
        planner_data=paths,
        storage_data=stored,
        storage_meta=StorageMeta(
            checkpoint_id=reader.directory, save_id=_save_id(reader), load_id=load_id
        ),
    )


class _Index(pickle.Unpickler):
    """Reads an index that the engine has made (EncodeDcpIndex): of torch's classes of it, and of nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns a class or constant of an index."""
        if module == "_codecs" or module.partition(".")[0] == "torch":
            found = super().find_class(module, name)
            if isinstance(found, torch.dtype) or found in _MADE_OF:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is in no index that the engine makes")


#: Beside dtypes.
_MADE_OF = (
    Metadata,
    TensorStorageMetadata,
    TensorProperties,
    ChunkStorageMetadata,
    BytesStorageMetadata,
    MetadataIndex,
    StorageInfo,
    StorageMeta,
    _MEM_FORMAT_ENCODING,
    torch.Size,
    torch.serialization._get_layout,
    codecs.encode,
)


def metadata_of_index(index: bytes, path: str) -> Metadata:
    """Returns the Metadata of a checkpoint that the engine has saved, as torch's `save` returns it."""
    metadata: Metadata = _Index(io.BytesIO(index)).load()
    for name in vars(metadata).keys() - {field.name for field in dataclasses.fields(Metadata)}:
        delattr(metadata, name)  # The engine's own.
    assert metadata.storage_meta is not None
    metadata.storage_meta = StorageMeta(checkpoint_id=path, save_id=metadata.storage_meta.save_id)
    return metadata


def dtype_of(fqn: str, number: int) -> torch.dtype:
    """Returns the torch dtype of an engine dtype."""
    if number not in _DTYPES:
        raise UnsupportedError(
            f'tensor "{fqn}": this torch has no dtype {_core.DTYPE_NAMES[number]}'
        )
    return _DTYPES[number]


def _presented(shape: tuple[int, ...], chunks: list[_core.StoredChunk]) -> list[_core.StoredChunk]:
    if sum(math.prod(chunk.sizes) for chunk in chunks) == math.prod(shape):
        return chunks
    first = chunks[0] if chunks else _core.StoredChunk()
    return [
        _core.StoredChunk(
            offsets=(0,) * len(shape),
            sizes=shape,
            file=first.file,
            begin=first.begin,
            end=first.end,
        )
    ]


def _paths(structure: Any) -> dict[str, tuple[str | int, ...]] | None:
    """planner_data as torch's planners keep it: the path of each entry by its name."""
    if structure is None:
        return None
    paths: dict[str, tuple[str | int, ...]] = {}
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), structure)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, (TensorLeaf, ObjectLeaf)):
            paths[".".join(map(str, path))] = path
            continue
        items: list[tuple[str | int, Any]]
        if isinstance(node, Mapping):
            items = [(str(key), item) for key, item in node.items()]
        else:
            items = list(enumerate(node))
        waiting.extend(((*path, part), item) for part, item in reversed(items))
    return paths


def _save_id(reader: _core.Reader) -> str | None:
    """Returns the id that torch's writers give a save. It serves logs, so it is found as text."""
    path = os.path.join(reader.directory, ".metadata")
    if reader.format != "dcp":
        return None
    try:
        index = storage.read_bytes(path)
    except CheckpointNotFoundError:
        return None  # There are those of ranks.
    found = _SAVE_ID.search(index, max(index.rfind(b"save_id"), 0))
    return found[1].decode() if found else None
