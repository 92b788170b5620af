"""The policy of a run: when to save, which steps to keep, how it may end."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from varve import _arguments
from varve._core import manage
from varve.errors import InvalidArgumentError


@dataclass(frozen=True)
class Every:
    """When a manager saves.

    Example:
        >>> Every(steps=100)  # doctest: +SKIP
        >>> Every(steps=1000, minutes=20)  # whichever comes first  # doctest: +SKIP
        >>> Every("auto", share=0.01, mtbf_hours=12)  # doctest: +SKIP

    Attributes:
        mode: "auto" chooses the time between saves from what they cost, as measured, and from the time
            between failures; None leaves it to `steps` and `minutes`. The first save is then made after
            a minute, to be measured.
        steps: Save at multiples of so many steps.
        minutes: Save when so many minutes have passed since the last save began, on rank 0's clock.
        share: With "auto", saves never cost more than this share of the time.
        mtbf_hours: With "auto", the mean time between failures of the job. None: as the run's history
            shows it, once there were failures; until then `share` alone decides.
    """

    mode: Literal["auto"] | None = None
    steps: int | None = None
    minutes: float | None = None
    share: float = 0.01
    mtbf_hours: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, "auto"):
            raise _arguments.refuse("Every", self.mode, '"auto", steps=... or minutes=...')
        if self.steps is not None:
            _arguments.count("steps", self.steps)
        for name in ("minutes", "mtbf_hours"):
            if getattr(self, name) is not None:
                _arguments.above_zero(name, getattr(self, name))
        if _arguments.above_zero("share", self.share) > 1:
            raise _arguments.refuse("share", self.share, "a number above 0 and at most 1")
        if self.mode is None and self.steps is None and self.minutes is None:
            raise InvalidArgumentError(
                'Every(): say when: Every(steps=100), Every(minutes=20) or Every("auto"). A manager '
                "with every=None saves on demand alone"
            )

    def at(self, step: int) -> bool:
        """Returns True for a step at which the number of steps alone says to save."""
        return self.steps is not None and step % self.steps == 0


@dataclass(frozen=True)
class Keep:
    """The steps that a manager keeps: those that any rule keeps. Without a rule all stay.

    Whatever the rules, the newest whole step, pinned ones and those that are being read or saved stay.

    Attributes:
        last: The newest so many.
        every: Those whose step is a multiple of this.
        hours: One for each so many hours, the oldest of them.
        newer_than_hours: Those made in the last so many hours.
        best: So many with the best value of a metric, as `save(metrics=...)` was given it. NaN is never
            best.
        by: The name of that metric.
        mode: "min" where the lowest value is the best, or "max".
    """

    last: int | None = None
    every: int | None = None
    hours: float | None = None
    newer_than_hours: float | None = None
    best: int | None = None
    by: str | None = None
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        for name in ("last", "every", "best"):
            if getattr(self, name) is not None:
                _arguments.count(name, getattr(self, name))
        for name in ("hours", "newer_than_hours"):
            if getattr(self, name) is not None:
                _arguments.seconds(name, getattr(self, name), unit="hours")
        if not isinstance(self.by, (str, type(None))):
            raise _arguments.refuse("by", self.by, "the name of a metric")
        if self.mode not in ("min", "max"):
            raise _arguments.refuse("mode", self.mode, '"min" or "max"')
        if (self.best is None) != (self.by is None):
            raise InvalidArgumentError(
                f"Keep(best={self.best!r}, by={self.by!r}): a number of best steps needs the metric's "
                'name and the other way round, such as best=2, by="loss"'
            )
        manage.check_rules(self.rules())

    def rules(self) -> manage.KeepRules:
        """Returns the engine's form of the rules."""
        best = None
        if self.best is not None and self.by is not None:
            best = manage.KeepBest(count=self.best, metric=self.by, highest=self.mode == "max")
        newer = self.newer_than_hours
        return manage.KeepRules(
            last=self.last,
            every_steps=self.every,
            every_time=None if self.hours is None else self.hours * 3600,
            newer_than=None if newer is None else newer * 3600,
            best=best,
        )

    @property
    def any(self) -> bool:
        """True when there is a rule."""
        rules = (self.last, self.every, self.hours, self.newer_than_hours, self.best)
        return any(rule is not None for rule in rules)


def deadline_of_slurm() -> float | None:
    """Returns when SLURM ends this job, Unix time; None outside of SLURM.

    SLURM gives it in SLURM_JOB_END_TIME, from version 22.05 on.
    """
    told = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(told) if told.isdecimal() else None


@dataclass(frozen=True)
class Ending:
    """Signals and a time that end a run early: the manager then saves at the next step and sets `preempted`.

    Attributes:
        signals: Names of signals. SIGTERM is what Kubernetes, SLURM and spot machines send; SIGUSR1 is for
            SLURM's `--signal=USR1@120`. A second signal of the kind, half a minute after the first
            or later, ends the process at once.
        deadline: Unix time or a datetime at which the job is ended; "slurm" asks SLURM_JOB_END_TIME.
        margin: The save begins so many seconds before the deadline, or twice as long as the slowest save
            took, if that is more.
    """

    signals: Iterable[str] = ("SIGTERM", "SIGUSR1")
    deadline: float | datetime.datetime | Literal["slurm"] | None = None
    margin: float = 120.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "signals", tuple(_arguments.names("signals", self.signals)))
        for name in self.signals:
            number = getattr(signal, name, None)
            if not isinstance(number, signal.Signals):
                raise InvalidArgumentError(f"signals: there is no signal {name!r}")
            if number in (signal.SIGKILL, signal.SIGSTOP):
                raise InvalidArgumentError(f"signals: no process learns of {name}")
        _arguments.seconds("margin", self.margin)
        if isinstance(self.deadline, datetime.datetime) and self.deadline.tzinfo is None:
            raise _arguments.refuse("deadline", self.deadline, "a datetime with a time zone")
        if isinstance(self.deadline, str) and self.deadline != "slurm":
            raise _arguments.refuse("deadline", self.deadline, 'a time or "slurm"')
        if not isinstance(self.deadline, (datetime.datetime, str, type(None))):
            _arguments.seconds("deadline", self.deadline)

    def unix_deadline(self) -> float | None:
        """Returns the deadline as Unix time."""
        if self.deadline == "slurm":
            return deadline_of_slurm()
        if isinstance(self.deadline, datetime.datetime):
            return self.deadline.timestamp()
        return None if self.deadline is None else float(self.deadline)
