"""Metrics of a run as OpenMetrics text in a file, for a node exporter's textfile collector.

docs/manager.md lists names and units. The file is replaced whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

_LOG = logging.getLogger("varve")

#: Name, kind and help of each family. Counters get "_total" where they are written.
_FAMILIES = (
    ("varve_saves", "counter", "Saves of this job that have ended, by outcome."),
    ("varve_save_bytes", "gauge", "Size of the last checkpoint in bytes."),
    ("varve_save_seconds", "gauge", "From the begin of the last save until it was durable."),
    ("varve_stall_seconds", "gauge", "Time for which training waited for the last save."),
    ("varve_last_save_timestamp_seconds", "gauge", "Unix time at which the last save was durable."),
    ("varve_last_step", "gauge", "Step of the last save."),
    ("varve_uploads", "counter", "Uploads of this job that have ended, by outcome."),
    ("varve_last_uploaded_step", "gauge", "Step of the last upload."),
    (
        "varve_last_upload_timestamp_seconds",
        "gauge",
        "Unix time at which the last upload was made.",
    ),
    ("varve_removed_steps", "counter", "Steps that the rules of retention have removed."),
    ("varve_resumed_step", "gauge", "Step from which this job went on; absent for a new run."),
)


class Exposition:
    """The metrics file of a job. Threads: one at a time."""

    def __init__(self, path: str, run: str) -> None:
        self._path = path
        self._run = run
        self._values: dict[str, dict[str, float]] = {}
        self._warned = False
        self.count("varve_saves", 0, "done")
        self.count("varve_saves", 0, "failed")

    def set(self, name: str, value: float) -> None:
        """Sets a gauge."""
        self._values.setdefault(name, {})[""] = value

    def count(self, name: str, more: float, outcome: str = "") -> None:
        """Adds to a counter."""
        values = self._values.setdefault(name, {})
        values[outcome] = values.get(outcome, 0) + more

    def write(self) -> None:
        """Replaces the file. A file that cannot be written costs a warning, once."""
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(self.text())
            os.replace(temporary, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if not self._warned:
                self._warned = True
                _LOG.warning("metrics are not written: %s: %s", self._path, error)

    def text(self) -> str:
        """Returns the file's content."""
        lines: list[str] = []
        for name, kind, told in _FAMILIES:
            values: dict[str, Any] = self._values.get(name, {})
            if not values:
                continue
            lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
            for outcome, value in sorted(values.items()):
                labels = f'run="{_escaped(self._run)}"' + (
                    f',outcome="{outcome}"' if outcome else ""
                )
                suffix = "_total" if kind == "counter" else ""
                lines.append(f"{name}{suffix}{{{labels}}} {value:.17g}")
        return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
