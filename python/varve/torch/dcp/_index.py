"""The index of a save that a planner plans: what the planner knows of it and what the ranks have written.

Here the planner's own Metadata is pickled, and the engine seals the pickle (SealDcpIndex). The saves that
the engine plans itself have an index by its own encoder (EncodeDcpIndex). This module does not use that,
for three reasons:

  - Only Python can pickle what planners of the caller's put into `planner_data`, and their subclasses of
    Metadata. So the pickle has to stay.
  - Torch has dtypes and layouts that the engine has no names for. Their entries are in the index as torch
    made them.
  - Sealing decodes the index by the decoder that loads use. So the save itself finds out that Varve cannot
    open the checkpoint, and warns.
"""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any

from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
)
from torch.distributed.checkpoint.storage import WriteResult

from varve import _core
from varve._core import storage
from varve.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from varve.torch.dcp._metadata import VERSION
from varve.torch.dcp._write import FileReport

#: Of the index: the last one without frames, so that the engine can add an attribute at the end.
_PROTOCOL = 3


def complete(
    metadata: Metadata, results: list[list[WriteResult]], directory: str
) -> tuple[bytes, list[tuple[str, int]]]:
    """Fills in the place of every entry; returns the pickled index, and the files with their sizes.

    The index carries checksums of the files and of itself. (Where a wrapper of the writer has made
    new results, their checksums are lost, and the index has none.)

    Raises UnavailableError when a chunk or value that the index promises has not been written.
    """
    reports: dict[str, FileReport] = {}
    stored: dict[MetadataIndex, Any] = {}
    for result in (result for of_rank in results for result in of_rank):
        stored[result.index] = result.storage_data
        file = getattr(result, "file", None)
        if file is not None:
            reports[result.storage_data.relative_path] = file
    _check_complete(metadata, stored)
    metadata.version = VERSION
    metadata.storage_data = stored
    names = dict.fromkeys(info.relative_path for info in stored.values())
    index = pickle.dumps(metadata, protocol=_PROTOCOL)
    if reports.keys() == names.keys():
        index = _sealed(index, [(name, file.report) for name, file in reports.items()])
        return index, [(name, file.size) for name, file in reports.items()]
    return index, [(name, storage.size_of(os.path.join(directory, name))) for name in names]


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


def _sealed(index: bytes, reports: list[tuple[str, bytes]]) -> bytes:
    try:
        return _core.seal_dcp_index(index, reports)
    except (UnsupportedError, CorruptCheckpointError, InvalidArgumentError) as error:
        # Dtypes that only torch has, planners with an index of their own: torch reads them back.
        warnings.warn(
            f"this checkpoint gets no checksums, and only torch can open it: {error}", stacklevel=2
        )
        return index
