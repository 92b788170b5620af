"""The one table: rows are printed and recorded as they are measured, so a timeout loses none."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = ("what", "seconds", "GB/s", "ratio to baseline", "target", "met?")


@dataclass
class Row:
    """One line. `ratio` is the time for the same bytes over the baseline's: below 1 is faster."""

    what: str
    samples: list[float] = field(default_factory=list)
    size: int = 0
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    value: str = ""
    """What the target is about, where that is neither the seconds nor the ratio."""

    @property
    def seconds(self) -> float | None:
        """The median."""
        return statistics.median(self.samples) if self.samples else None

    def cells(self) -> list[str]:
        """Returns the texts of the columns."""
        seconds = self.seconds
        took = "" if seconds is None else f"{seconds:.4f}" if seconds < 1 else f"{seconds:.2f}"
        return [
            self.what,
            self.value or took,
            f"{self.size / seconds / 1e9:.2f}" if self.size and seconds else "",
            "" if self.ratio is None else f"{self.ratio:.3f}",
            self.target,
            {None: "", True: "yes", False: "**NO**"}[self.met],
        ]


class Table:
    """The rows, and the file that they are recorded in."""

    def __init__(self, out: Path | None, header: Mapping[str, Any], deadline: float) -> None:
        self._out = out
        self._header = dict(header)
        self._deadline = deadline
        self._started = time.perf_counter()
        self._rows: list[tuple[str, Row]] = []
        self._scenario = ""
        self._took: dict[str, float] = {}
        self._failures: list[str] = []
        self._remarks: list[str] = []

    @property
    def left(self) -> float:
        """Seconds until the run must have ended."""
        return self._deadline - (time.perf_counter() - self._started)

    def begin(self, scenario: str) -> None:
        """Names the scenario that the next rows are of."""
        self._scenario = scenario
        print(f"\n== {scenario} ({self.left:.0f} s left)", flush=True)

    def end(self, took: float) -> None:
        """Ends a scenario, which took so many seconds."""
        self._took[self._scenario] = round(took, 1)
        self.flush()

    def add(
        self,
        what: str,
        samples: Sequence[float] | None = None,
        size: int = 0,
        *,
        baseline: tuple[float, int] | None = None,
        at_most: float | None = None,
        seconds_at_most: float | None = None,
    ) -> float | None:
        """Adds times, or nothing where the arm did not run; returns the median seconds.

        Args:
            what: The arm.
            samples: Seconds of each round.
            size: Bytes moved in each; 0 where the time is not per byte.
            baseline: Median seconds and bytes of what this is compared with.
            at_most: The target of the ratio.
            seconds_at_most: The target of the seconds.
        """
        row = Row(what, list(samples or []), size)
        seconds = row.seconds
        if seconds is not None and baseline is not None:
            row.ratio = seconds / (size or 1) / (baseline[0] / (baseline[1] or 1))
        if at_most is not None:
            row.target = f"ratio <= {at_most:g}"
            row.met = None if row.ratio is None else row.ratio <= at_most
        if seconds_at_most is not None:
            row.target = f"<= {seconds_at_most:g} s"
            row.met = None if seconds is None else seconds <= seconds_at_most
        if seconds is None:
            row.value = "not measured"
        self._show(row)
        return seconds

    def speed(self, what: str, samples: Sequence[float] | None, size: int, gbs: float) -> None:
        """Adds times whose target is a speed, in 10^9 bytes a second."""
        row = Row(what, list(samples or []), size, target=f">= {gbs:g} GB/s")
        row.met = None if row.seconds is None else size / row.seconds / 1e9 >= gbs
        row.value = "" if samples else "not measured"
        self._show(row)

    def fact(self, what: str, value: float, unit: str, at_most: float | None = None) -> None:
        """Adds a measured value that is no time of a round."""
        row = Row(what, value=f"{value:.4g} {unit}")
        if at_most is not None:
            row.target, row.met = f"<= {at_most:g} {unit}", value <= at_most
        self._show(row)

    def note(self, what: str, reason: str) -> None:
        """Records that something was not measured, and why."""
        self._failures.append(f"{self._scenario}: {what}: {reason}")
        print(f"   ! {what}: {reason}", flush=True)
        self.flush()

    def remark(self, text: str) -> None:
        """Records what explains the figures."""
        self._remarks.append(f"{self._scenario}: {text}")
        print(f"   . {text}", flush=True)
        self.flush()

    def flush(self) -> None:
        """Writes all rows so far to the file."""
        if self._out is None:
            return
        record = {
            "header": self._header,
            "scenario_seconds": self._took,
            "rows": [
                {"scenario": name, "seconds": row.seconds, **asdict(row)}
                for name, row in self._rows
            ],
            "not_measured": self._failures,
            "remarks": self._remarks,
            "markdown": self.markdown(),
        }
        partial = self._out.with_name(self._out.name + ".part")
        partial.write_text(json.dumps(record, indent=1))
        partial.replace(self._out)

    def markdown(self) -> str:
        """Returns the header line, the table and what was not measured."""
        lines = [", ".join(f"{key} {value}" for key, value in self._header.items()), ""]
        lines += [_line(COLUMNS), _line(["---", *["---:"] * 3, "---", "---"])]
        lines += [
            _line([f"{name}: {row.cells()[0]}", *row.cells()[1:]]) for name, row in self._rows
        ]
        lines += ["", *(f"- not measured: {failure}" for failure in self._failures)]
        lines += [f"- {remark}" for remark in self._remarks]
        return "\n".join(lines).rstrip() + "\n"

    def _show(self, row: Row) -> None:
        self._rows.append((self._scenario, row))
        print("   " + "  ".join(cell for cell in row.cells() if cell), flush=True)
        self.flush()

    def in_turns(
        self, arms: Mapping[str, Callable[[], float]], rounds: int, reserve: float = 0.0
    ) -> dict[str, list[float]]:
        """Takes one sample of each arm, then again; an arm that raises is dropped.

        The order turns round by round. Rounds after the first are left out when less than `reserve`
        seconds are left.
        """
        samples: dict[str, list[float]] = {name: [] for name in arms}
        names = list(arms)
        failed = set()
        for turn in range(rounds):
            if turn > 0 and self.left < reserve:
                self.note(f"round {turn + 1} of {rounds}", "no time left")
                break
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if name in failed:
                    continue
                try:
                    samples[name].append(arms[name]())
                except Exception as error:
                    failed.add(name)
                    self.note(name, f"{type(error).__name__}: {str(error)[:300]}")
        return samples


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def baseline_of(samples: Sequence[float] | None, size: int) -> tuple[float, int] | None:
    """Returns what `Table.add` takes as a baseline; None where it was not measured."""
    return (statistics.median(samples), size) if samples else None


def fail(message: str) -> None:
    """Ends the program."""
    print(message, file=sys.stderr)
    sys.exit(2)
