"""Python's OSErrors as the errors that the engine raises for the same errno."""

from __future__ import annotations

import errno

from varve.errors import Error, InvalidArgumentError, OutOfSpaceError, UnavailableError

_KINDS: dict[int | None, type[Error]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), OutOfSpaceError),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        InvalidArgumentError,
    ),
}


def as_error(what: str, error: OSError, advice: str = "") -> Error:
    """Returns an error of Varve's that names what was being done, the file, the reason and the advice."""
    path = None if error.filename is None else str(error.filename)
    reason = error.strerror or str(error)
    if error.errno is not None:
        reason += f" (errno {error.errno})"
    text = f"{what} {path}: {reason}" if path else f"{what}: {reason}"
    kind = _KINDS.get(error.errno, UnavailableError)
    return kind(f"{text}; {advice}" if advice else text, path=path, errno=error.errno)
