"""The removal of old checkpoints by a framework's rules."""

from __future__ import annotations

import functools
import logging
import os

from varve._catalogue import collect_garbage
from varve._core import manage
from varve._engine import path_text
from varve.errors import Error, PreconditionError

_log = logging.getLogger("varve")


def remove_unless_held(path: str) -> bool:
    """Removes a checkpoint; False for one that is pinned, or that is being read or saved: it stays.

    The first removal in a folder also finishes those that a killed job has begun there.
    """
    where = path_text(path)
    _finish_earlier(os.path.dirname(where) or ".")
    try:
        manage.remove_step(where)
    except PreconditionError as error:
        _log.info("%s stays: %s", path, error)
        return False
    return True


@functools.cache
def _finish_earlier(folder: str) -> None:
    """Removes what killed saves and removals have left in a folder; once in a process."""
    try:
        removed = collect_garbage(folder)
    except Error as error:
        _log.warning("removing what killed saves left in %s: %s", folder, error)
        return
    if removed:
        _log.info("removed what killed saves left in %s: %d paths", folder, len(removed))
