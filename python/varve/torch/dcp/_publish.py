"""The place of a save's files until all are written, and the step that makes them a checkpoint.

Four cases, all with the engine's protocols and locks:
  - The name is free, or what stands there may be replaced as a whole: files go into a hidden
    sibling directory that takes the name in one step (`Staged`; src/publish/commit.cc).
  - The directory holds other things too, or cannot be renamed: files go there directly, under names
    that no index of the directory mentions, and one rename of the index makes them the checkpoint
    (`InPlace`; src/publish/dcp_in_place.cc).
  - Ranks save without a coordinator: as the second, with an index for each rank.
  - In an object store nothing can be renamed: files go below a name of the save's own in the directory,
    and one write of the index makes them the checkpoint (`Beside`; src/publish/index_commit.cc).
In all of them the old checkpoint's bytes stay as they are until the new one is durable.
"""

from __future__ import annotations

import os
from typing import Protocol

from varve import _core
from varve._engine import log_conflicts
from varve.errors import CheckpointExistsError
from varve.torch.dcp._names import is_object


class Publication(Protocol):
    """A save that is under way."""

    #: Where the ranks write.
    directory: str
    #: Number of the first file of each rank; lower ones are taken.
    first: int
    #: What stands before the names of files in `directory`: empty, or a directory and "/".
    below: str

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Checks that all files are there with their sizes, and makes them the checkpoint."""

    def abandon(self) -> None:
        """Removes the written files. No-op when published."""


def begin(path: str, overwrite: bool) -> Publication:
    """Claims a name for a save by the ranks of one group; on its coordinator."""
    real = os.path.realpath(path)  # The link's target is written, the link stays.
    try:
        if is_object(path):
            return Beside(path, overwrite, None)
        return Staged(real, overwrite) if is_replaceable(real) else InPlace(real, overwrite, None)
    except CheckpointExistsError as error:
        raise _exists(path) from error


def begin_local(path: str, overwrite: bool, rank: int) -> Publication:
    """Begins a rank's own save, of which the other ranks do not know."""
    try:
        if is_object(path):
            return Beside(path, overwrite, rank)
        return InPlace(os.path.realpath(path), overwrite, rank)
    except CheckpointExistsError as error:
        raise _exists(path) from error


def is_replaceable(path: str) -> bool:
    """Returns True where the directory `path`, if there is one, may be replaced as a whole.

    In an object store: where it holds a checkpoint of DCP and nothing else.
    """
    if is_object(path):
        return _core.dcp_replaces_directory(path)
    path = os.path.realpath(path)
    if os.path.isdir(path):
        parent = os.path.dirname(path)
        if os.path.ismount(path) or not os.access(parent, os.W_OK):
            return False
    return _core.dcp_replaces_directory(path)


def _exists(path: str) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"Checkpoint already exists: {path}; overwrite=True would replace it"
    )


class Staged:
    """A save into a hidden sibling of its name."""

    first = 0
    below = ""

    def __init__(self, path: str, overwrite: bool) -> None:
        self._commit = _core.DcpCommit(path, overwrite)
        self._path = path
        self.directory: str = self._commit.staging

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Gives the staging directory its name, in place of what had it.

        Files of the user's that could not be moved stay where they are and are logged.
        """
        log_conflicts(self._path, self._commit.publish(files, index))

    def abandon(self) -> None:
        """Removes the staging directory and unlocks the name."""
        self._commit.abandon()


class InPlace:
    """A save into a directory that stays, of all ranks or of one."""

    below = ""

    def __init__(self, path: str, overwrite: bool, rank: int | None) -> None:
        self._commit = _core.DcpInPlaceCommit(path, overwrite, rank)
        self._path = path
        self.directory: str = self._commit.directory
        self.first: int = self._commit.first

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Replaces the index, then removes the files that only the old one named."""
        log_conflicts(self._path, self._commit.publish(files, index))

    def abandon(self) -> None:
        """Removes the files that no index mentions yet, and unlocks the name."""
        self._commit.abandon()


class Beside:
    """A save into an object store, of all ranks or of one."""

    first = 0

    def __init__(self, path: str, overwrite: bool, rank: int | None) -> None:
        self._commit = _core.DcpCommit(path, overwrite, rank)
        self.directory = path
        self.below = os.path.basename(self._commit.staging) + "/"

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Writes the index, then removes what only the old one named."""
        self._commit.publish([(name.removeprefix(self.below), size) for name, size in files], index)

    def abandon(self) -> None:
        """Removes the files that no index mentions yet."""
        self._commit.abandon()
