"""The index of a save: what the planner knows of it and what the ranks have written."""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from varve.errors import UnavailableError
from varve.torch.dcp._write import FileSums

#: The version of the format, as torch writes it since 2.7.
_VERSION = "1.0.0"


def complete(
    metadata: Metadata, results: list[list[WriteResult]], directory: str
) -> list[tuple[str, int]]:
    """Fills in where everything is stored; returns the files and their sizes.

    Raises UnavailableError when a chunk or value that the index promises has not been written.
    """
    sums: dict[str, FileSums] = {}
    stored: dict[MetadataIndex, Any] = {}
    for result in (result for of_rank in results for result in of_rank):
        stored[result.index] = result.storage_data
        file = getattr(result, "file", None)
        if file is not None:
            sums[result.storage_data.relative_path] = file
    _check_complete(metadata, stored)
    metadata.version = _VERSION
    metadata.storage_data = stored
    names = dict.fromkeys(info.relative_path for info in stored.values())
    if sums.keys() == names.keys():
        _attach_checksums(metadata, sums)
        return [(name, file.size) for name, file in sums.items()]
    # Somebody has made the results anew, without what Varve had put into them.
    return [(name, os.path.getsize(os.path.join(directory, name))) for name in names]


def _check_complete(metadata: Metadata, stored: dict[MetadataIndex, Any]) -> None:
    entries = metadata.state_dict_metadata.items()
    promised = sum(
        1 if isinstance(entry, BytesStorageMetadata) else len(entry.chunks) for _, entry in entries
    )
    if promised == len(stored):
        return
    # More are promised: either one is missing, or empty shards lie at one place and share an item.
    for fqn, entry in entries:
        if isinstance(entry, BytesStorageMetadata):
            missing = [] if MetadataIndex(fqn) in stored else ["its value"]
        else:
            missing = [
                f"its chunk at {list(chunk.offsets)}"
                for chunk in entry.chunks
                if MetadataIndex(fqn, chunk.offsets) not in stored
            ]
        if missing:
            raise UnavailableError(f'"{fqn}": no rank has written {missing[0]}')


def _attach_checksums(metadata: Metadata, sums: dict[str, FileSums]) -> None:
    """Varve's checksums, as an attribute that torch keeps and ignores."""
    block_bytes = {file.block_bytes for file in sums.values()}
    if len(block_bytes) == 1:
        metadata.varve = {  # type: ignore[attr-defined]
            "block_bytes": block_bytes.pop(),
            "files": {name: (file.size, file.block_crc32c) for name, file in sums.items()},
        }
