"""Exceptions: one type per thing the caller can do, all ordinary `Exception`s.

Each also derives from the built-in type that code not knowing Varve would catch.
"""

from __future__ import annotations


class Error(Exception):
    """Base of everything Varve raises."""


class InvalidArgumentError(Error, ValueError):
    """The call is wrong; the message names the argument, tensor or object."""


class CheckpointNotFoundError(Error, FileNotFoundError):
    """No such file, checkpoint or tensor."""


class CheckpointExistsError(Error, FileExistsError):
    """The name is taken: choose another, or pass `overwrite=True`."""


class CorruptCheckpointError(Error):
    """Stored bytes are damaged or missing; the message names file, offset and tensor."""


class OutOfSpaceError(Error, OSError):
    """The storage is full."""


class UnavailableError(Error, OSError):
    """I/O failed or a rank is missing; a retry may help."""


class UnsupportedError(Error, NotImplementedError):
    """Not supported, or written by a newer version of Varve."""


class CancelledError(Error):
    """Stopped on request."""


class PreconditionError(Error, RuntimeError):
    """Refused in the present state, such as while another save of the same name runs."""


class InternalError(Error, RuntimeError):
    """A bug in Varve; please report it."""


class ReplicasDifferWarning(UserWarning):
    """Ranks hold different values under one name; the lowest rank's was saved."""


#: Exception type by status code (varve/status.h).
BY_CODE: dict[int, type[Error]] = {
    1: InvalidArgumentError,
    2: CheckpointNotFoundError,
    3: CheckpointExistsError,
    4: CorruptCheckpointError,
    5: OutOfSpaceError,
    6: UnavailableError,
    7: UnsupportedError,
    8: CancelledError,
    9: PreconditionError,
    10: InternalError,
}
