"""Warnings that name the user's line."""

from __future__ import annotations

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str, category: type[Warning], through: str = _PACKAGE) -> None:
    """Warns, naming the line outside this package from which it was called.

    Frames of the file `through` are passed over as well.
    """
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, through)):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level + 1)
