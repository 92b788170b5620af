"""The history of a run: `varve-history.jsonl` in its directory, a JSON object a line.

Rank 0 appends one line for each start, save, load, removal, quarantine and end. Every line has `time` (Unix), `event`
and `attempt`; docs/manager.md lists the rest. A line is written by one call, so that lines of a job that was killed
are whole or absent; readers pass over what is no JSON.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from varve._core import Phase

_LOG = logging.getLogger("varve")

NAME = "varve-history.jsonl"


class History:
    """The history of a run, to be written. Threads: any.

    A history that cannot be written costs a warning, once, and no checkpoint.
    """

    def __init__(self, run: str) -> None:
        self._path = os.path.join(run, NAME)
        self._lock = threading.Lock()
        self._warned = False

    def add(self, event: str, **fields: Any) -> dict[str, Any]:
        """Appends a line; returns it as a dict."""
        line = {"time": round(time.time(), 3), "event": event, **fields}
        text = json.dumps(_finite(line), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with self._lock:
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                try:
                    os.write(file, text.encode("utf-8", "replace"))
                finally:
                    os.close(file)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("the history of the run is not written: %s: %s", self._path, error)
        return line


def read(run: str) -> Iterator[dict[str, Any]]:
    """Returns the lines of a run's history; none where there is no file."""
    try:
        with open(os.path.join(run, NAME), encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict) and isinstance(line.get("event"), str):
                    yield line
    except FileNotFoundError:
        return


def observed_mtbf(run: str) -> float | None:
    """Returns the mean seconds between failures that the history shows; None before the first.

    A start that follows another without an end between them followed a failure, and so does one after an
    end that an error has made. Time in which no job ran does not count.
    """
    failures = 0
    ran = 0.0
    began: float | None = None
    last = 0.0
    for line in read(run):
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
