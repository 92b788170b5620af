"""hfai.checkpoint's `save`, `load` and `init`, on Varve's engine: change the import and keep the script.

The files are those of hfai.checkpoint 2.0.0, and both read what the other writes. See
docs/other-formats.md for what differs.

Example, on every rank:
    >>> import varve.hfai  # doctest: +SKIP
    >>> varve.hfai.save("latest.pt", model, optimizer, others={"epoch": 3})  # doctest: +SKIP
    >>> state = varve.hfai.load("latest.pt", map_location="cpu")  # doctest: +SKIP
    >>> model.load_state_dict(state["model"])  # doctest: +SKIP
    >>> optimizer.load_state_dict(state["optimizer"])  # doctest: +SKIP
    >>> epoch = state["epoch"]  # doctest: +SKIP
"""

from __future__ import annotations

from varve.hfai._errors import (
    BrokenCheckpointError,
    NoDirectoryError,
    PartsError,
    ReservedKeyError,
    VersionError,
    WrongTypeError,
)
from varve.hfai._init import init
from varve.hfai._load import load
from varve.hfai._save import save

__all__ = [
    "BrokenCheckpointError",
    "NoDirectoryError",
    "PartsError",
    "ReservedKeyError",
    "VersionError",
    "WrongTypeError",
    "init",
    "load",
    "save",
]
