"""The engine's events, as records of Python's `logging`.

The logger is "varve.engine". A record has two more attributes: `rank` (None where the event is no
rank's), and `fields`, a dict of names and values.
"""

from __future__ import annotations

import atexit
import logging

from varve import _core

_LOG = logging.getLogger("varve.engine")


def install() -> None:
    """Sends the engine's events to the logger, from a thread of the engine, until the process ends."""
    _core.set_event_function(_take)
    # No thread of the engine may call Python once the interpreter goes.
    atexit.register(_core.set_event_function, None)


def _take(level: int, rank: int | None, message: str, fields: dict[str, str]) -> None:
    if _LOG.isEnabledFor(level):
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        where = "" if rank is None else f"rank {rank}: "
        _LOG.log(level, "%s%s%s", where, message, shown, extra={"rank": rank, "fields": fields})
