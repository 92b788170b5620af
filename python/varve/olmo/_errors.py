"""Exceptions that are ours and OLMo's at once: what caught the one catches the other."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

from varve.errors import (
    Error,
    InvalidArgumentError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)

_CheckpointBase: Any
_NetworkBase: Any
try:  # Where OLMo is installed, `except OLMoCheckpointError` of its users goes on working.
    _theirs = importlib.import_module("olmo.exceptions")
    _CheckpointBase, _NetworkBase = _theirs.OLMoCheckpointError, _theirs.OLMoNetworkError
except Exception:  # Not installed, or broken by another package.
    _CheckpointBase = _NetworkBase = RuntimeError


class OLMoCheckpointError(Error, _CheckpointBase):  # type: ignore[misc]
    """A checkpoint could not be written or read."""


class OLMoNetworkError(UnavailableError, _NetworkBase):  # type: ignore[misc]
    """A remote storage could not be reached."""


class WrongGroupsError(InvalidArgumentError, AssertionError):
    """The optimizer's groups are not those of the checkpoint."""


class NotPicklableError(InvalidArgumentError, pickle.PicklingError):
    """A state has a value that cannot be pickled."""


class NoFileSystemError(PreconditionError, TimeoutError):
    """The ranks do not see the directory that they are to share."""


class UnknownTypeError(UnsupportedError):
    """`sharded_checkpointer` names no checkpointer."""


@contextlib.contextmanager
def network_errors() -> Iterator[None]:
    """Raises OLMoNetworkError for a storage that could not be reached. Like all of these, it can be pickled."""
    try:
        yield
    except OLMoNetworkError:
        raise
    except UnavailableError as error:
        raise OLMoNetworkError(
            str(error), path=error.path, rank=error.rank, errno=error.errno
        ) from error
