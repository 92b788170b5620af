"""The reports of the jobs, as a table of timings and as a plot of the losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes


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


@dataclass
class Panel:
    """What one panel of the plot shows: a run that was killed while it saved, and resumed.

    whole: steps with a loadable checkpoint. killed: the step whose save was, if one was. resumed_from: the step
    that the next job went on from. apart: the largest difference of a loss from the reference's.
    remark: what the kill has left, in a few words.
    """

    title: str
    parts: Sequence[Part]
    whole: Sequence[int]
    killed: int | None
    resumed_from: int
    apart: float
    remark: str

    @property
    def last_before_kill(self) -> int:
        """The last step that the killed job trained."""
        return max(self.parts[0].losses)


def plot_losses(path: Path, reference: Part, panels: Sequence[Panel]) -> None:
    """Write a PNG with one panel for each run, over the losses of the uninterrupted one."""
    figure, rows = plt.subplots(
        len(panels),
        1,
        figsize=(10, 4.6 * len(panels)),
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for axes, panel in zip(rows[:, 0], panels, strict=True):
        _draw(axes, reference, panel)
    rows[-1, 0].set_xlabel("step")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw(axes: Axes, reference: Part, panel: Panel) -> None:
    axes.plot(*_xy(reference.losses), color="0.85", linewidth=9, label=reference.label)
    axes.axvspan(
        panel.resumed_from + 0.5,
        panel.last_before_kill + 0.5,
        color="tab:red",
        alpha=0.12,
        label=f"steps {panel.resumed_from + 1} to {panel.last_before_kill}: lost, trained again",
    )
    killed, *resumed = panel.parts
    # Hollow and large, so that the steps trained again show inside.
    axes.plot(
        *_xy(killed.losses),
        marker="o",
        markersize=9,
        markerfacecolor="none",
        linewidth=1,
        color="tab:blue",
        label=killed.label,
    )
    for part, marker, color in zip(resumed, "sD^v", ("tab:orange", "tab:green"), strict=False):
        axes.plot(
            *_xy(part.losses),
            marker=marker,
            markersize=4,
            linewidth=1.2,
            color=color,
            label=part.label,
        )
    low, high = min(reference.losses.values()), max(reference.losses.values())
    floor, below = low - 0.06 * (high - low), low - 0.13 * (high - low)
    axes.set_ylim(bottom=low - 0.19 * (high - low))
    axes.plot(
        panel.whole,
        [floor] * len(panel.whole),
        linestyle="none",
        marker="|",
        markersize=11,
        color="black",
        label="a checkpoint that loads",
    )
    if panel.killed is not None:
        axes.plot(
            panel.killed,
            below,
            linestyle="none",
            marker="X",
            markersize=9,
            color="tab:red",
            label=f"step {panel.killed}: SIGKILL while its save was being written",
        )
        axes.annotate(
            panel.remark,
            (panel.killed, below),
            xytext=(10, -3),
            textcoords="offset points",
            color="tab:red",
            fontsize=9,
        )
    axes.text(
        0.25,
        0.92,
        f"largest difference to the uninterrupted run: {panel.apart}",
        transform=axes.transAxes,
        fontsize=10,
        bbox={"facecolor": "white", "edgecolor": "0.7", "boxstyle": "round"},
    )
    axes.set_ylabel("loss (mean cross-entropy per character)")
    axes.set_title(panel.title)
    axes.legend(fontsize=8, loc="upper right")


def _xy(losses: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(losses)
    return steps, [losses[step] for step in steps]
