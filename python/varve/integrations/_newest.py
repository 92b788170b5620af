"""The newest good one of Lightning's checkpoints in a folder."""

from __future__ import annotations

import logging
import math
import os

import varve
from varve._catalogue import damages_left, files_lost, mended, names_in, unread
from varve._engine import is_remote, path_text
from varve.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    Error,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)

_log = logging.getLogger("varve")

_SUFFIX = ".ckpt"


def checkpoints_in(folder: str | os.PathLike[str], mends: bool = False) -> list[str]:
    """Returns the paths of the checkpoints NAME.ckpt in a folder, the one of the highest global step first.

    Checkpoints whose step cannot be read come before all others: `newest_good` warns of them. With `mends`,
    which one rank alone gives, damaged manifests are rebuilt first.
    """
    where = path_text(folder)
    found: list[tuple[float, float, str]] = []
    for path in (os.path.join(where, name) for name in _names_in(where) if name.endswith(_SUFFIX)):
        try:
            # Nothing remote tells which of two with the same step is the newer.
            changed = 0.0 if is_remote(where) else os.stat(path).st_mtime
            found.append((_global_step(path, mends), changed, path))
        except (CheckpointNotFoundError, FileNotFoundError):
            # A directory of the user's, a link to nothing, or a checkpoint without its files.
            if files_lost(path) is not None:
                found.append((math.inf, os.stat(path).st_mtime, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _names_in(folder: str) -> list[str]:
    """Returns what a folder holds; of an object store the checkpoints alone."""
    if not is_remote(folder):
        return names_in(folder)
    try:
        return [entry.name for entry in varve.list_checkpoints(folder)]
    except CheckpointNotFoundError:  # Nothing has this prefix yet.
        return []


def is_there(path: str) -> bool:
    """Returns True if a checkpoint stands at `path`. It may be damaged."""
    try:
        varve.open(path)
    except CheckpointNotFoundError:
        return False
    except Error:
        return True
    return True


def newest_good(folder: str) -> str:
    """Returns the first of `checkpoints_in` of which every byte verifies; warns of each one before it.

    Raises:
        CorruptCheckpointError: There is none.
        UnsupportedError: A newer Varve wrote the newest.
        UnavailableError, PermissionDeniedError: One cannot be read, which is no damage.
    """
    for path in checkpoints_in(folder, mends=True):
        try:
            damages = damages_left(path)
            reason = str(damages[0]) if damages else None
        except (UnsupportedError, UnavailableError, PermissionDeniedError):
            raise
        except CheckpointNotFoundError as error:
            reason = files_lost(path) or str(error)
        except Error as error:
            reason = str(error)
        if reason is None:
            return path
        warn_of(path, reason)
    raise none_is_good(folder)


def whole_in(folder: str) -> list[str]:
    """Returns those of `checkpoints_in` whose index and files are there; warns of the others.

    Raises:
        CorruptCheckpointError: There is none.
        UnsupportedError: A newer Varve wrote the newest.
    """
    found = checkpoints_in(folder, mends=True)
    listed = {entry.name: entry for entry in varve.list_checkpoints(folder)}
    whole = []
    for path in found:
        entry = listed.get(os.path.basename(path))
        lost = files_lost(path) if entry is None else None
        if lost is not None:
            warn_of(path, lost)
        elif entry is None or entry.state in ("whole", "displaced"):
            whole.append(path)
        elif not whole and (error := unread(entry.state, f"resume: {entry.detail}", path)):
            raise error
        else:
            warn_of(path, f"it is {entry.state}: {entry.detail}")
    if not whole:
        raise none_is_good(folder)
    return whole


def warn_of(path: str, reason: str) -> None:
    """Warns of a checkpoint that is not resumed from."""
    _log.warning("resume: %s is passed over: %s", path, reason)


def none_is_good(folder: str) -> CorruptCheckpointError:
    """Returns the error for a folder in which no checkpoint is good."""
    return CorruptCheckpointError(
        f'resume: no checkpoint in {folder} is good; `varve verify` says more. Without ckpt_path="last" '
        "training begins anew",
        path=folder,
    )


def _global_step(path: str, mends: bool) -> float:
    try:
        stored = varve.open(path)
        found = stored["meta.global_step" if "meta.global_step" in stored else "global_step"]
    except CheckpointNotFoundError:
        raise
    except CorruptCheckpointError as error:
        return _global_step(path, False) if mends and mended(path, str(error)) else math.inf
    except Error:
        return math.inf
    return found if isinstance(found, int) else -1
