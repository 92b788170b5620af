"""The times at which long waits are logged, and the names of ranks."""

from __future__ import annotations

import logging
import time

LOG = logging.getLogger("varve")

#: What a rank says of itself that leaves a call by Ctrl-C.
INTERRUPTED = "was interrupted (Ctrl-C)"

#: Seconds after which a rank that waits for others says so; the intervals double from there.
FIRST_NOTICE = 30.0


class Notices:
    """The times at which a wait is logged: after FIRST_NOTICE seconds, twice that, and so on."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._next = FIRST_NOTICE

    @property
    def seconds(self) -> float:
        """Since the wait began."""
        return time.monotonic() - self.start

    @property
    def until_next(self) -> float:
        """Seconds until the next notice is due."""
        return max(self.start + self._next - time.monotonic(), 0.0)

    def due(self) -> bool:
        """Returns True once for each notice."""
        if self.seconds < self._next:
            return False
        self._next *= 2
        return True


def name_ranks(ranks: list[int]) -> str:
    """Ranks 0 to 3 and 7 as "ranks 0-3, 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
