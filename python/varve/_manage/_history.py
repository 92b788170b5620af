"""The history of a run: `varve-history.jsonl` in its directory, a JSON object a line.

In an object store it has an object for each line.
Rank 0 appends one line for each start, save, load, removal, quarantine and end. Every line has `time` (Unix), `event`
and `attempt`; docs/manager.md lists the rest. A line is written by one call, so that lines of a job that was killed
are whole or absent; readers pass over what is no JSON.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from varve._core import Phase
from varve._manage._os_errors import as_error
from varve._manage._place import Place, place_of
from varve.errors import Error

_LOG = logging.getLogger("varve")


class History:
    """The history of a run, to be written. Threads: any.

    A history that cannot be written costs a warning, once, and no checkpoint.
    """

    def __init__(self, run: str, place: Place) -> None:
        self._run = run
        self._place = place
        self._warned = False

    def add(self, event: str, **fields: Any) -> dict[str, Any]:
        """Appends a line; returns it as a dict."""
        line = {"time": round(time.time(), 3), "event": event, **fields}
        text = json.dumps(_finite(line), ensure_ascii=False, allow_nan=False)
        try:
            self._place.add_history(event, text)
        except (OSError, Error) as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("the history of the run %s is not written: %s", self._run, error)
        return line


def read(run: str, wanted: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Returns the lines of a run's history; none where there is none.

    Of events of other kinds than `wanted`, where some are given, a line may have its time alone.
    """
    try:
        for text in place_of(run).history(wanted):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("event"), str):
                yield line
    except Error:
        raise
    except OSError as error:
        advice = "let this user read the file, or move it away"
        raise as_error("read the history", error, advice) from error


def observed_mtbf(run: str) -> float | None:
    """Returns the mean seconds between failures that the history shows; None before the first.

    A start that follows another without an end between them followed a failure, and so does one after an
    end that an error has made. Time in which no job ran does not count.
    """
    failures = 0
    ran = 0.0
    began: float | None = None
    last = 0.0
    for line in read(run, ("start", "end")):
        now = line.get("time")
        if not isinstance(now, (int, float)) or not 0 <= now < 1e12:
            continue  # Also for NaN and what is no time.
        if line["event"] == "start":
            if began is not None:
                failures += 1
                ran += max(last - began, 0.0)
            began = now
        elif line["event"] == "end" and began is not None:
            ran += max(now - began, 0.0)
            began = None
            failures += line.get("failed") is True
        last = now
    return ran / failures if failures and ran > 0 else None


def phases_of(phases: Sequence[Phase]) -> dict[str, dict[str, Any]]:
    """Returns the phases of a report as a history has them."""
    found: dict[str, dict[str, Any]] = {}
    for phase in phases:
        one: dict[str, Any] = {"seconds": round(phase.seconds, 6)}
        if phase.bytes:
            one["bytes"] = phase.bytes
        if phase.slowest_rank is not None:
            one["slowest_rank"] = phase.slowest_rank
            one["slowest_seconds"] = round(phase.slowest_seconds, 6)
        found[phase.name] = one
    return found


def _finite(value: Any) -> Any:
    """Returns the value with numbers that JSON lacks as strings."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
