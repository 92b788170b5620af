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


def _take(level: int, rank: int | None, message: str, fields: dict[str, str], time: float) -> None:
    if not _LOG.isEnabledFor(level):
        return
    shown = "".join(f" {name}={value}" for name, value in fields.items())
    where = "" if rank is None else f"rank {rank}: "
    more = {"rank": rank, "fields": fields}
    text = f"{where}{message}{shown}"
    record = _LOG.makeRecord(_LOG.name, level, __file__, 0, text, (), None, extra=more)
    record.created = time  # Handlers may be slow, and this be late.
    record.msecs = int(time % 1 * 1000)
    _LOG.handle(record)
