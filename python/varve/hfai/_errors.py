"""Exceptions that are ours and those of hfai.checkpoint at once: what caught the one catches the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from varve.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    Error,
    InvalidArgumentError,
    PreconditionError,
    UnsupportedError,
)


class WrongTypeError(InvalidArgumentError, TypeError, AssertionError):
    """An argument is of another type than hfai.checkpoint takes."""


class ReservedKeyError(InvalidArgumentError, AssertionError):
    """`others` has a key that the checkpoint uses itself."""


class NoDirectoryError(CheckpointNotFoundError, AssertionError):
    """There is no checkpoint of hfai: no directory, or no parts in it."""


class PartsError(PreconditionError, AssertionError, FileNotFoundError):
    """Parts of the checkpoint are missing."""


class VersionError(UnsupportedError, AssertionError):
    """The checkpoint is of another version than 2.0.0."""


class BrokenCheckpointError(CorruptCheckpointError, AssertionError, RuntimeError):
    """Parts are damaged, belong to different saves, or contradict each other."""


_KINDS: dict[type[Error], type[Error]] = {
    CheckpointNotFoundError: NoDirectoryError,
    PreconditionError: PartsError,
    UnsupportedError: VersionError,
    CorruptCheckpointError: BrokenCheckpointError,
}


@contextlib.contextmanager
def as_hfai_raises(stored: bool = True) -> Iterator[None]:
    """Raises the errors of opening a checkpoint as those that hfai.checkpoint's callers catch.

    With `stored` False those of reading it: what is not supported is then no version.
    """
    try:
        yield
    except Error as error:
        kind = _KINDS.get(type(error))
        if kind is None or (kind is VersionError and not stored):
            raise
        raise kind(str(error), path=error.path, rank=error.rank, reason=error.reason) from None
