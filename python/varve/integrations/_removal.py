"""The removal of old checkpoints by a framework's rules."""

from __future__ import annotations

import logging

from varve._core import manage
from varve._engine import path_text
from varve.errors import PreconditionError

_log = logging.getLogger("varve")


def remove_unless_held(path: str) -> bool:
    """Removes a checkpoint; False for one that is pinned, or that is being read or saved: it stays."""
    try:
        manage.remove_step(path_text(path))
    except PreconditionError as error:
        _log.info("%s stays: %s", path, error)
        return False
    return True
