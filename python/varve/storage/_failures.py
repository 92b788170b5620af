"""Exceptions of a store's methods, as errors of the engine."""

from __future__ import annotations

import errno
import traceback
from types import TracebackType

from varve.errors import (
    CancelledError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    Error,
    OutOfSpaceError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)

#: The first that fits is the kind of the error.
_KINDS: tuple[tuple[type[BaseException], type[Error]], ...] = (
    (FileNotFoundError, CheckpointNotFoundError),
    (FileExistsError, CheckpointExistsError),
    (PermissionError, PreconditionError),
    (NotImplementedError, UnsupportedError),
    (MemoryError, OutOfSpaceError),
    (EOFError, CorruptCheckpointError),
    (KeyboardInterrupt, CancelledError),
    (SystemExit, CancelledError),
)

_BY_ERRNO: dict[int | None, type[Error]] = {
    errno.ENOSPC: OutOfSpaceError,
    errno.EDQUOT: OutOfSpaceError,
    errno.EFBIG: OutOfSpaceError,
    errno.ESTALE: PreconditionError,
}


def as_error(raised: BaseException, trace: TracebackType | None) -> Error:
    """Returns an error of Varve's for an exception, with its text and where a mistake was made."""
    if isinstance(raised, Error):
        return raised
    text = str(raised) or "no message"
    message = f"{type(raised).__name__}: {text}{_where(raised, trace)}"
    number = raised.errno if isinstance(raised, OSError) else None
    kind = _BY_ERRNO.get(number)
    if kind is None:
        kind = next((ours for one, ours in _KINDS if isinstance(raised, one)), UnavailableError)
    if number is None and isinstance(raised, PermissionError):
        number = errno.EACCES
    return kind(message, errno=number)


def _where(raised: BaseException, trace: TracebackType | None) -> str:
    """Returns where a mistake of a store was made; nothing for an error of the system's."""
    frames = traceback.extract_tb(trace)
    if not frames or isinstance(raised, OSError):
        return ""
    return f" ({frames[-1].filename}:{frames[-1].lineno})"
