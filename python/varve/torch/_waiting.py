"""Waits that Ctrl-C ends, and what is logged of long ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

LOG = logging.getLogger("varve")

#: Seconds after which a rank that waits for others says so; the intervals double from there.
FIRST_NOTICE = 30.0


class Notices:
    """When a wait is to be logged: after FIRST_NOTICE seconds, twice that, and so on."""

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
        """True once for each notice."""
        if self.seconds < self._next:
            return False
        self._next *= 2
        return True


def off_main(call: Callable[[], _T]) -> _T:
    """Runs what may wait for long on a thread of its own, so that Ctrl-C reaches the caller.

    After a KeyboardInterrupt the thread is left to end by itself: `call` must not touch what the
    caller may free.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: list[_T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="varve-wait", daemon=True).start()
    except RuntimeError:  # No thread can start: wait here, where signals wait too.
        return call()
    done.wait()
    if failure:
        raise failure[0]
    return outcome[0]


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
