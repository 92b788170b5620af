"""Requests to save or to end: signals, a deadline, files that a person makes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from varve._forks import resend
from varve._manage._place import Place
from varve._manage._policy import Ending
from varve.errors import Error

_LOG = logging.getLogger("varve")

#: Files in the run's directory: making one asks the manager to save, or to save and end.
SAVE_FILE = "varve-save"
STOP_FILE = "varve-stop"

#: Seconds between two looks for these files.
_LOOK = 1.0

#: Seconds in which signals of one kind are one request: a launcher passes on what the processes that it
#: has started were sent too (torchrun under SLURM).
_ECHO = 30.0


class Signals:
    """Notes signals from its construction until `restore`. Only in the main thread, as Python wants it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.received = ""
        self.closing = False  # No further step will be saved.
        self._first: dict[int, float] = {}  # When each signal came first.
        self._closed = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        if not names:
            return
        if threading.current_thread() is not threading.main_thread():
            _LOG.warning(
                "the manager of a run was made outside of the main thread: it does not see %s",
                " and ".join(names),
            )
            return
        for name in names:
            number = signal.Signals[name]
            handler = signal.signal(number, self._note)
            self._before[number] = signal.SIG_DFL if handler is None else handler

    def _note(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        now = time.monotonic()
        if (
            os.getpid() != self._process
        ):  # A forked child: terminate() ends it, the rest is not for it.
            if number == signal.SIGTERM:
                resend(number, before)
        elif self._closed and signal.getsignal(number) == self._note:  # Left by a later manager.
            resend(number, before)
        elif not self._closed and now - self._first.setdefault(number, now) > _ECHO:  # Impatience.
            resend(number, signal.SIG_DFL)
        else:
            if not self.received:
                self.received = signal.Signals(number).name
                # Not here: the signal may have come while this thread holds a lock of the logging.
                told = self.received, self.closing
                threading.Thread(target=_tell, args=told, daemon=True).start()
            if callable(before) and before is not signal.default_int_handler:
                before(number, frame)

    def in_child(self) -> None:
        """Lets SIGTERM end a forked child again.

        `_note` passes over the other signals there. With their default action back they would end the
        child: a launcher sends them to all processes.
        """
        before = self._before.get(signal.SIGTERM)
        if before is not None and signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, before)

    def restore(self) -> None:
        """Puts back the handlers that were there before, where no later one has taken their place."""
        self._closed = True
        with contextlib.suppress(ValueError):  # Not in the main thread: at the end of the process.
            for number, handler in self._before.items():
                if signal.getsignal(number) == self._note:
                    signal.signal(number, handler)


def _tell(name: str, closing: bool) -> None:
    _LOG.warning(
        "%s: the run %s; once more from %d s on ends this process at once",
        name,
        "ends when its saves are durable" if closing else "saves at its next step and ends",
        _ECHO,
    )


class Requests:
    """On rank 0: what the deadline and the files in the run's directory ask for."""

    def __init__(
        self, run: str, place: Place, ending: Ending, clock: Callable[[], float] = time.time
    ) -> None:
        self._run = run
        self._place = place
        self._deadline = ending.unix_deadline()
        self._margin = ending.margin
        self._clock = clock
        self._next_look = 0.0

    def stop(self, slowest_save: float) -> str:
        """Returns why to save and end now, or ""."""
        if self._deadline is not None:
            left = self._deadline - self._clock()
            if left <= max(self._margin, 2 * slowest_save):
                return f"the deadline in {max(left, 0.0):.0f} s"
        return self._file(STOP_FILE) if self._looks() else ""

    def save(self) -> str:
        """Returns why to save now, or "". Called after `stop`."""
        return self._file(SAVE_FILE) if self._looked else ""

    def _looks(self) -> bool:
        now = time.monotonic()
        self._looked = now >= self._next_look
        if self._looked:
            self._next_look = now + _LOOK
        return self._looked

    def _file(self, name: str) -> str:
        """Takes a file away, if it is there."""
        return f"the file {name}" if self._place.take(name) else ""

    def forget(self) -> None:
        """Takes away what was asked of an earlier job."""
        for name in (STOP_FILE, SAVE_FILE):
            try:
                if self._place.read(name) is None:
                    continue
                self._place.remove(name)
            except (OSError, Error) as error:
                _LOG.warning(
                    "the request %s in %s cannot be taken away: %s", name, self._run, error
                )
            else:
                _LOG.warning("%s in %s was for an earlier job, and is removed", name, self._run)

    _looked = False
