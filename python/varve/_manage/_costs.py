"""The cost of saves, as measured while a run trains, and from it the time between saves."""

from __future__ import annotations

import logging
import statistics
from collections import deque

from varve._core import manage
from varve._manage._policy import Every

_LOG = logging.getLogger("varve")

#: Seconds until the first save of "auto".
FIRST_SAVE = 60.0

#: Steps of which the usual time is the median.
_STEPS = 101


class Costs:
    """Stall, slow-down and length of the last saves. Threads: one at a time calls `tick`."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_STEPS)
        self._before: float | None = None
        self._slow: dict[int, float] = {}  # By save under way: what training lost to it so far.
        self.stall: deque[float] = deque(maxlen=5)
        self.background: deque[float] = deque(maxlen=5)
        self.write: deque[float] = deque(maxlen=5)

    def tick(self, now: float, in_flight: list[int], seconds_in_save: float) -> None:
        """Notes the end of a step: the time since the last one, without what `save` itself took.

        `in_flight` are the saves that were written meanwhile.
        """
        if self._before is not None:
            took = max(now - self._before - seconds_in_save, 0.0)
            if not in_flight:
                self._usual.append(took)
            elif self._usual:
                lost = max(took - statistics.median(self._usual), 0.0)
                for save in in_flight:
                    self._slow[save] = self._slow.get(save, 0.0) + lost / len(in_flight)
        self._before = now

    def ended(self, save: int, stall: float, seconds: float) -> None:
        """Notes a save that was made."""
        self.stall.append(stall)
        self.write.append(seconds)
        self.background.append(self._slow.pop(save, 0.0))

    def dropped(self, save: int) -> None:
        """Forgets a save that has failed."""
        self._slow.pop(save, None)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest of the last saves; 0 before the first."""
        return max(self.write, default=0.0)

    def as_engine(self) -> manage.SaveCosts:
        """Returns the medians."""
        return manage.SaveCosts(
            stall=statistics.median(self.stall or [0.0]),
            background=statistics.median(self.background or [0.0]),
            write=statistics.median(self.write or [0.0]),
        )


def needs_mtbf(every: Every | None) -> bool:
    """Returns True where the time between failures that the history shows counts."""
    return every is not None and every.mode == "auto" and every.mtbf_hours is None


class Interval:
    """The time between saves, for `Every(minutes=...)` and `Every("auto")`."""

    def __init__(self, every: Every, mtbf: float | None) -> None:
        self._every = every
        self._mtbf = None if every.mtbf_hours is None else every.mtbf_hours * 3600
        self._mtbf = self._mtbf or mtbf
        self._logged: float | None = None

    def seconds(self, costs: Costs) -> float | None:
        """Returns the time from the begin of a save to that of the next; None: steps alone decide."""
        if self._every.mode != "auto":
            return None if self._every.minutes is None else self._every.minutes * 60
        if not costs.write:
            return FIRST_SAVE
        known = costs.as_engine()
        choice = manage.choose_interval(known, self._mtbf, self._every.share)
        if self._logged is None or not 0.8 < choice.seconds / self._logged < 1.25:
            self._logged = choice.seconds
            _LOG.info(
                "saves every %.0f s: %s (a save stalls training for %.3g s, slows it by %.3g s, takes "
                "%.3g s; %s; saves cost %.2f %% of the time)",
                choice.seconds,
                choice.reason,
                known.stall,
                known.background,
                known.write,
                f"a failure every {self._mtbf / 3600:.3g} h"
                if self._mtbf
                else "no failure is known",
                choice.save_share * 100,
            )
        return choice.seconds
