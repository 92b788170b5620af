"""Where the files of a save lie until all of them are there, and how they become a checkpoint.

Three cases:
  - The name is free, or what stands there may be replaced as a whole: files go into a hidden sibling
    directory that takes the name in one step (`Staged`; the engine's protocol with its locks).
  - The directory holds other things too, or cannot be renamed: files go there directly, under names
    that no index of the directory mentions, and one rename of the index makes them the checkpoint
    (`Beside`).
  - Ranks save without talking: as the second, with an index for each rank.
In all of them the old checkpoint's bytes stay as they are until the new one is durable.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Protocol

from varve import _core
from varve.errors import CheckpointExistsError, PreconditionError, UnavailableError
from varve.torch.dcp._durable import make_directories, replace_file, sync_directory

_INDEX = ".metadata"
_RANK_INDEX = re.compile(r"__(\d+)\.metadata")
_DATA = re.compile(r"__(\d+)_(\d+)\.distcp")
_NATIVE = re.compile(r"varve\.json|data-\d+-of-\d+\.safetensors")


class Publication(Protocol):
    """A save that is under way."""

    #: Where the ranks write.
    directory: str
    #: Number of the first file of each rank; lower ones are taken.
    first: int

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Checks that all files are there with their sizes, and makes them the checkpoint."""

    def abandon(self) -> None:
        """Removes what was written. No-op when published."""


def begin(path: str, overwrite: bool) -> Publication:
    """Claims a name for a save by the ranks of one group; on its coordinator."""
    real = os.path.realpath(path)  # What a symlink leads to is written, the link stays.
    try:
        if _is_replaceable(real):
            return Staged(real, overwrite)
        return Beside(real, overwrite)
    except CheckpointExistsError as error:
        raise _exists(path) from error


def begin_local(path: str, overwrite: bool, rank: int) -> Publication:
    """Begins a rank's own save, of which the other ranks know nothing."""
    return Beside(os.path.realpath(path), overwrite, rank)


def _exists(path: str) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"Checkpoint already exists: {path}; overwrite=True would replace it"
    )


def _is_replaceable(path: str) -> bool:
    try:
        names = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return True  # Of a file, the engine says that it is one.
    parent = os.path.dirname(path)
    if os.path.ismount(path) or not os.access(parent, os.W_OK):
        return False
    if any(_NATIVE.fullmatch(name) for name in names):
        return True
    indexes = [name for name in names if name == _INDEX or _RANK_INDEX.fullmatch(name)]
    data = [name for name in names if name.endswith(".distcp")]
    return not names or (bool(indexes) and len(indexes) + len(data) == len(names))


class Staged:
    """A save into a hidden sibling of its name."""

    first = 0

    def __init__(self, path: str, overwrite: bool) -> None:
        self._commit = _core.DcpCommit(path, overwrite)
        self.directory: str = self._commit.staging

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Gives the staging directory its name, in place of what had it."""
        self._commit.publish(files, index)

    def abandon(self) -> None:
        """Removes the staging directory and lets go of the name."""
        self._commit.abandon()


class Beside:
    """A save into a directory that stays, of all ranks or of one."""

    def __init__(self, path: str, overwrite: bool, rank: int | None = None) -> None:
        make_directories(path)
        self.directory = path
        self._rank = rank
        self._index = _INDEX if rank is None else f"__{rank}{_INDEX}"
        self._done = False
        names = os.listdir(path)
        if rank is not None and (_INDEX in names or any(map(_NATIVE.fullmatch, names))):
            raise PreconditionError(
                f"{path} holds a checkpoint that ranks saved together: what one rank saves beside "
                "it would never be read; choose another name"
            )
        if not overwrite and (
            self._index in names or (rank is None and any(map(_RANK_INDEX.fullmatch, names)))
        ):
            raise _exists(path)
        self.first = 1 + max((number for _, number in self._own(names)), default=-1)

    def publish(self, files: list[tuple[str, int]], index: bytes) -> None:
        """Replaces the index; then what only the old one named is removed."""
        for name, size in files:
            self._check(name, size)
        sync_directory(self.directory)
        replace_file(os.path.join(self.directory, self._index), index)
        self._done = True
        new = {name for name, _ in files}
        self._remove(name for name, _ in self._own(os.listdir(self.directory)) if name not in new)
        if self._rank is None:
            self._remove(filter(_RANK_INDEX.fullmatch, os.listdir(self.directory)))

    def abandon(self) -> None:
        """Removes the files that no index mentions yet."""
        if not self._done:
            names = os.listdir(self.directory)
            self._remove(name for name, number in self._own(names) if number >= self.first)

    def _own(self, names: list[str]) -> list[tuple[str, int]]:
        """The data files that this save may replace, with their numbers."""
        found = [match for name in names if (match := _DATA.fullmatch(name))]
        return [(match[0], int(match[2])) for match in found if self._rank in (None, int(match[1]))]

    def _check(self, name: str, size: int) -> None:
        path = os.path.join(self.directory, name)
        try:
            there = os.path.getsize(path)
        except FileNotFoundError:
            raise UnavailableError(f"{path} is missing: do the ranks share this storage?") from None
        if there != size:
            raise UnavailableError(f"{path} has {there} bytes, its writer reported {size}")

    def _remove(self, names: Iterable[str]) -> None:
        """Best effort: what stays is mentioned nowhere, and the next save removes it."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, name))
