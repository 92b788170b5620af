"""Checkpoint ids of this package: paths of file systems, and names in object stores ("s3://bucket/key")."""

from __future__ import annotations

import os

from torch.distributed.checkpoint import filesystem

from varve._core import manage
from varve._engine import path_text
from varve.errors import InvalidArgumentError


class Names(filesystem.FileSystem):
    """torch's file system, of which storages keep one, for names that pathlib would shorten."""

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Returns what a storage has as its `path`."""
        return path if is_object(path) else super().init_path(path)


def is_object(path: str | os.PathLike[str]) -> bool:
    """Returns True for a name in an object store that Varve itself reads and writes."""
    text = os.fsdecode(path)
    return "://" in text and manage.is_in_object_store(text)


def is_ours(checkpoint_id: str | os.PathLike[str]) -> bool:
    """Returns True for paths, with file:// before them or not, and for names in object stores."""
    text = os.fsdecode(checkpoint_id)
    return "://" not in text or text.startswith("file://") or is_object(text)


def name_of(path: str | os.PathLike[str]) -> str:
    """Returns the name by which the engine knows `path`. Raises InvalidArgumentError for other stores."""
    try:
        return path_text(path)
    except InvalidArgumentError as error:
        if "://" not in str(path):
            raise
        raise InvalidArgumentError(
            f"{error}. torch's FsspecWriter writes to other stores"
        ) from None
