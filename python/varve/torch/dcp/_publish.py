"""The place of a save's files until all are written, and the step that makes them a checkpoint.

Three cases, all with the engine's protocols and locks:
  - The name is free, or what stands there may be replaced as a whole: files go into a hidden
    sibling directory that takes the name in one step (src/publish/commit.cc).
  - The directory holds other files too, or cannot be renamed, or ranks save without a coordinator:
    files go there directly, under names that no index of the directory mentions, and one rename of
    the index makes them the checkpoint (src/publish/index_commit.cc).
  - In an object store nothing can be renamed: files go below a name of the save's own in the directory,
    and one write of the index makes them the checkpoint (src/publish/index_commit.cc).
In all of them the old checkpoint's bytes stay as they are until the new one is durable.
"""

from __future__ import annotations

import os

from varve import _core
from varve._engine import log_conflicts
from varve.torch.dcp._names import is_object


class Publication:
    """A save that is under way.

    Attributes:
        directory: Where the ranks write.
        below: The prefix of names of files of `directory` in the index: empty, or a directory and "/".
        first: Number of the first file of each rank; lower ones are taken.
    """

    def __init__(self, path: str, overwrite: bool, rank: int | None, stays: bool) -> None:
        self._commit = _core.FilesCommit(path, overwrite, rank=rank, stays=stays)
        self._path = path
        self.below: str = self._commit.below
        self.directory: str = path if self.below else self._commit.staging
        self.first: int = self._commit.first

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Checks that all files are there with their sizes, and makes them the checkpoint.

        Files of the user's that could not be moved stay where they are and are logged.
        """
        names = [(name.removeprefix(self.below), size) for name, size in files]
        log_conflicts(self._path, self._commit.publish(names, index))

    def abandon(self) -> None:
        """Removes the written files, and unlocks the name. No-op when published."""
        self._commit.abandon()


def begin(path: str, overwrite: bool, rank: int | None = None) -> Publication:
    """Claims a name for a save by the ranks of one group, or begins a rank's own, of which they do not know."""
    where, stays = path, False
    if not is_object(path):
        where = os.path.realpath(path)  # The link's target is written, the link stays.
        stays = rank is None and not is_replaceable(where)
    return Publication(where, overwrite, rank, stays)


def is_replaceable(path: str) -> bool:
    """Returns True where the directory `path`, if there is one, may be replaced as a whole.

    In an object store: where it holds a checkpoint of DCP and nothing else.
    """
    if not is_object(path):
        path = os.path.realpath(path)
        if os.path.isdir(path):
            parent = os.path.dirname(path)
            if os.path.ismount(path) or not os.access(parent, os.W_OK):
                return False
    return _core.dcp_replaces_directory(path)
