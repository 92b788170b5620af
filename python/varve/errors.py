"""Exceptions: one type per thing the caller can do, all ordinary `Exception`s.

Each also derives from the built-in types that code not knowing Varve would catch. An error that a system
call or a deadline caused is of a subclass, which derives from the built-in type for its `errno`:
`except PermissionError`, `except TimeoutError` and `except OSError` work. The message is for people;
programs look at the type and at the attributes that every one of them has.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar


class Error(Exception):
    """Base of everything Varve raises.

    Attributes:
        code: The engine's name of the error, one for each type: "NotFound", "DataLoss" (include/varve/status.h).
        rank: The rank that failed, the lowest where several did; None where none is known.
        path: The file or checkpoint that the error is about; None where none is known.
        reason: Finer than the code; "" for most errors. "StagerLost": a new stager can save.
        of_ranks: The error of each rank, by rank, the first 64 of them; empty where the ranks have
            not told each other.
    """

    code: str = "Unknown"
    rank: int | None = None
    path: str | None = None
    reason: str = ""
    of_ranks: Mapping[int, Error] = MappingProxyType({})

    def __new__(cls, *arguments: Any, errno: int | None = None, **_known: Any) -> Error:
        """Makes an error of the subclass for its `errno`, where there is one."""
        kind: type[Error] = cls
        if errno:
            kind = _BY_ERRNO.get((cls, errno)) or _BY_ERRNO.get((cls, None)) or cls
        if issubclass(kind, OSError):
            return OSError.__new__(kind, *arguments[:1])
        return Exception.__new__(kind, *arguments)

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        rank: int | None = None,
        reason: str = "",
        errno: int | None = None,
        of_ranks: Mapping[int, Error] | None = None,
    ) -> None:
        """`errno` is kept by those that are an OSError."""
        super().__init__(message)
        self.rank = rank
        self.path = path
        self.reason = reason
        if of_ranks:
            self.of_ranks = dict(of_ranks)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, self._state())


def _restored(kind: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    """Makes an exception again out of its pickle."""
    error: Error = kind.__new__(kind, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class _OperatingSystemError(Error, OSError):
    """Those errors that are an `OSError`.

    Attributes:
        errno: Of the system call that failed; None where none did.
        strerror: The system's text for it.
        filename: `path`.
    """

    #: `errno` where no system call failed, but the system has a number for what is wrong.
    _usual_errno: ClassVar[int | None] = None

    def __init__(self, message: str = "", *, errno: int | None = None, **known: Any) -> None:
        super().__init__(message, **known)
        self.errno = errno or self._usual_errno
        self.strerror = None if self.errno is None else os.strerror(self.errno)
        self.filename = self.path

    def _state(self) -> dict[str, Any]:
        found = {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return {**self.__dict__, **found}


class InvalidArgumentError(Error, ValueError, TypeError):
    """The call is wrong; the message names the argument, tensor or object."""

    code = "InvalidArgument"


class InvalidPathError(InvalidArgumentError, _OperatingSystemError):
    """The system refuses a path: a file system that is read-only, a name that is too long."""


class PermissionDeniedError(InvalidPathError, PermissionError):
    """The system denies access to a file or directory."""

    _usual_errno = _errno.EACCES


class CheckpointNotFoundError(_OperatingSystemError, FileNotFoundError):
    """No such file, checkpoint or tensor."""

    code = "NotFound"
    _usual_errno = _errno.ENOENT


class CheckpointExistsError(_OperatingSystemError, FileExistsError):
    """The name is taken: choose another, or pass `overwrite=True`."""

    code = "AlreadyExists"
    _usual_errno = _errno.EEXIST


class CorruptCheckpointError(Error):
    """Stored bytes are damaged or missing; the message names file, offset and tensor."""

    code = "DataLoss"


class OutOfSpaceError(_OperatingSystemError):
    """The storage is full (errno ENOSPC, EDQUOT or EFBIG), or memory is (ENOMEM)."""

    code = "OutOfSpace"
    _usual_errno = _errno.ENOSPC


class UnavailableError(_OperatingSystemError):
    """I/O failed or a rank is missing; a retry may help."""

    code = "Unavailable"


class NoAnswerError(UnavailableError, TimeoutError):
    """A rank, an agent or a server has not answered in time."""

    _usual_errno = _errno.ETIMEDOUT


class UnsupportedError(Error, NotImplementedError):
    """Not supported, or written by a newer version of Varve."""

    code = "Unimplemented"


class CancelledError(Error):
    """Stopped on request."""

    code = "Cancelled"


class PreconditionError(Error, RuntimeError):
    """Refused in the present state, such as while another save of the same name runs."""

    code = "FailedPrecondition"


class AccessRefusedError(PreconditionError, _OperatingSystemError, PermissionError):
    """A server refuses access: keys or a login that do not allow what was asked for."""

    _usual_errno = _errno.EACCES


class InternalError(Error, RuntimeError):
    """A bug in Varve; please report it."""

    code = "Internal"


class ReplicasDifferWarning(UserWarning):
    """Ranks hold different values under one name, or held them when they saved."""


#: Exception type by the engine's name of the error.
BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        CheckpointNotFoundError,
        CheckpointExistsError,
        CorruptCheckpointError,
        OutOfSpaceError,
        UnavailableError,
        UnsupportedError,
        CancelledError,
        PreconditionError,
        InternalError,
    )
}

#: Subclass for an error with an `errno`; that for any other one is under None.
_BY_ERRNO: dict[tuple[type[Error], int | None], type[Error]] = {
    (InvalidArgumentError, None): InvalidPathError,
    (InvalidArgumentError, _errno.EACCES): PermissionDeniedError,
    (InvalidArgumentError, _errno.EPERM): PermissionDeniedError,
    (PreconditionError, _errno.EACCES): AccessRefusedError,
    (UnavailableError, _errno.ETIMEDOUT): NoAnswerError,
}

#: `reason` of an error after which a new stager can save.
STAGER_LOST = "StagerLost"
