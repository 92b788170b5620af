"""What each job reported, as a table of timings and as a plot of the losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@dataclass
class Part:
    """One job's share of a run.

    losses: by step. seconds: how long each event took, by kind ("step", "loaded", "saved"; "stalled": what a
    save kept training waiting).
    """

    label: str
    wall_seconds: float
    losses: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def read(cls, label: str, wall_seconds: float, events: Path) -> Part:
        """Return what a job wrote down; after a kill, that may end within a line."""
        part = cls(label, wall_seconds)
        for line in events.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                event = json.loads(line)
                if event["event"] == "step":
                    part.losses[event["step"]] = event["loss"]
                part.seconds.setdefault(event["event"], []).append(event["seconds"])
        return part

    def mean(self, event: str) -> str:
        """Return the mean time of an event, or "-" if there was none."""
        times = self.seconds.get(event)
        return f"{sum(times) / len(times):.3f} s" if times else "-"


def timings(parts: Sequence[Part]) -> str:
    """Return a table with a line for each part, its columns aligned."""
    rows = [["job", "steps", "wall", "a step", "a load", "saves", "a save", "stall"]]
    for part in parts:
        steps = f"{min(part.losses)}-{max(part.losses)}"
        saves = str(len(part.seconds.get("saved", [])))
        wall = f"{part.wall_seconds:.1f} s"
        means = [
            part.mean("step"),
            part.mean("loaded"),
            saves,
            part.mean("saved"),
            part.mean("stalled"),
        ]
        rows.append([part.label, steps, wall, *means])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def plot_losses(
    path: Path,
    reference: Part,
    parts: Sequence[Part],
    saved: Sequence[int],
    killed: int,
) -> None:
    """Write a PNG of the uninterrupted run's losses with those of each interrupted part on top.

    saved: steps with a whole checkpoint. killed: the step whose save was.
    """
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    axes.plot(*_xy(reference.losses), color="0.8", linewidth=9, label=reference.label)
    for part, marker in zip(parts, "osD^v", strict=False):
        axes.plot(*_xy(part.losses), marker=marker, markersize=4, linewidth=1.2, label=part.label)
    axes.axvline(killed, color="tab:red", linestyle="--", linewidth=1)
    axes.annotate(
        f"SIGKILL while saving step {killed}",
        (killed, max(reference.losses.values())),
        xytext=(6, -4),
        textcoords="offset points",
        color="tab:red",
    )
    axes.plot(
        saved,
        [min(reference.losses.values()) * 0.9] * len(saved),
        linestyle="none",
        marker="|",
        color="black",
        label="a whole checkpoint",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (mean cross-entropy per character)")
    axes.set_title("Killed while saving, resumed on other world sizes, never interrupted")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _xy(losses: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(losses)
    return steps, [losses[step] for step in steps]
