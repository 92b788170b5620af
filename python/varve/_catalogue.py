"""What can be done with checkpoints on disk besides saving and loading them."""

from __future__ import annotations

import os
from typing import Any

from varve import _core
from varve._engine import path_text

_Path = str | os.PathLike[str]


def list_checkpoints(directory: _Path) -> list[dict[str, Any]]:
    """Lists checkpoints and leftovers in a directory: name, state, detail, step, bytes, world_size.

    `state` is "whole", "incomplete", "damaged", "moved aside", "saving" or "leftover".
    """
    return _core.list_checkpoints(path_text(directory))


def verify(path: _Path) -> list[dict[str, Any]]:
    """Re-reads every byte of a checkpoint; returns the damages: file, begin, end, tensors, problem."""
    return _core.verify(path_text(path))


def repair(path: _Path) -> bool:
    """Rebuilds a checkpoint's index from its data files; True when it was not already right."""
    return _core.repair(path_text(path))


def collect_garbage(directory: _Path, dry_run: bool = False) -> list[str]:
    """Removes what dead saves left in a directory; returns the paths removed (or, dry, to remove)."""
    return _core.collect_garbage(path_text(directory), dry_run)
