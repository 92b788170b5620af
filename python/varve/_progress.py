"""Progress for people: what `varve.Progress` shows of a save, a load, a conversion."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Any

#: Seconds between two drawings of a bar.
_BAR_SECONDS = 0.1

#: Reports of other threads may come so many seconds after the one that ended an operation.
_LATE_SECONDS = 0.5

_BAR_WIDTH = 30


class Progress:
    """Shows how far an operation is: a bar on a terminal or in a notebook, now and then a line in a log.

    To be given as `progress=` to `save`, `async_save`, `load`, `verify`, `convert` and `unshard`. Rank 0 alone
    shows anything, of its own share, on standard error, and only of what takes longer than two seconds. One
    object may serve any number of operations, one after the other. In a `with` statement the bar goes when
    the block ends, also when the operation has failed.

    With tqdm installed (`pip install varve[progress]`) the bar is tqdm's, which draws it as a widget in notebooks.

    Example:
        >>> with varve.Progress("save") as progress:  # doctest: +SKIP
        ...     varve.save(state, "run/step-1", progress=progress)

    Threads: any.
    """

    def __init__(self, what: str = "", *, after: float = 2.0, every: float = 10.0) -> None:
        """Shows nothing yet.

        Args:
            what: The operation; begins each line.
            after: Show only what takes longer than so many seconds.
            every: Seconds between the lines of a log.
        """
        self._what = what
        self._after = after
        self._every = every
        self._lock = threading.Lock()  # Guards what follows.
        self._done = 0
        self._total = -1
        self._began = 0.0
        self._ended: float | None = 0.0  # None while an operation runs.
        self._next = 0.0
        self._shown: _Bar | _TqdmBar | _Lines | None = None

    def __call__(self, done: int, total: int) -> None:
        """Notes that `done` of `total` bytes are done."""
        with self._lock:
            now = time.monotonic()
            if not self._belongs(done, total, now):
                return
            if now >= self._next:
                if self._shown is None:
                    self._shown = _display(self._what, self._every)
                self._next = now + self._shown.seconds
                self._shown.show(self._done, total, now - self._began)
            if self._done >= total:
                self._end(now)

    def close(self) -> None:
        """Removes the bar. Again at will; the object stays of use."""
        with self._lock:
            self._end(time.monotonic())

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _belongs(self, done: int, total: int, now: float) -> bool:
        """Notes a report; begins an operation where it is the first of one. False for a late one."""
        if self._ended is not None:
            if total == self._total and done < total and now - self._ended < _LATE_SECONDS:
                return False
        elif total == self._total and done * 2 >= self._done:
            self._done = max(self._done, done)  # Threads overtake each other.
            return True
        self._end(now)
        self._done, self._total = done, total
        self._began, self._ended = now, None
        self._next = now + self._after
        return True

    def _end(self, now: float) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None
        self._ended = now


def rank_of_this_process() -> int:
    """Returns this process's rank, as torch.distributed or the launcher says it; 0 where neither does."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        told = os.environ.get(name, "")
        if told.isdecimal():
            return int(told)
    return 0


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _display(what: str, every: float) -> _Bar | _TqdmBar | _Lines:
    """Returns what shows an operation here."""
    if rank_of_this_process() != 0 or sys.stderr is None or getattr(sys.stderr, "closed", False):
        return _Lines(what, every, silent=True)
    notebook = _in_notebook()
    if not notebook and not sys.stderr.isatty():
        return _Lines(what, every)
    # A terminal that does not know its size has 80 columns; tqdm by itself would draw nothing there.
    columns = 80 if notebook else shutil.get_terminal_size().columns
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Bar(what, columns)
    return _TqdmBar(what, tqdm, None if notebook else columns)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1023.95:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} PiB"


def _figures(done: int, total: int, seconds: float) -> str:
    """Returns " 43%  1.2 GiB of 2.8 GiB  512.0 MiB/s  ETA 0:03"."""
    percent = 100 if total <= 0 else min(100, done * 100 // total)
    text = f"{percent:3d}%  {_size(done)} of {_size(total)}  {_size(done / max(seconds, 1e-6))}/s"
    if 0 < done < total and seconds >= 1:
        left = round(seconds * (total - done) / done)
        hours = f"{left // 3600}:{left // 60 % 60:02d}" if left >= 3600 else f"{left // 60}"
        text += f"  ETA {hours}:{left % 60:02d}"
    return text


def _put(text: str) -> None:
    # A standard error that was closed since must not end the operation.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


class _Lines:
    """Lines in a log; or nothing at all, on other ranks."""

    def __init__(self, what: str, every: float, silent: bool = False) -> None:
        self.seconds = every
        self._begin = f"{what}: " if what else ""
        self._silent = silent

    def show(self, done: int, total: int, seconds: float) -> None:
        if not self._silent:
            _put(f"{self._begin}{_figures(done, total, seconds).strip()}\n")

    def close(self) -> None:
        pass


class _Bar:
    """A bar that is redrawn in its line, by plain means."""

    seconds = _BAR_SECONDS

    def __init__(self, what: str, columns: int) -> None:
        self._begin = f"{what} " if what else ""
        self._columns = max(columns - 1, 1)  # A wrapped line could not be redrawn in place.
        self._drawn = 0

    def show(self, done: int, total: int, seconds: float) -> None:
        filled = _BAR_WIDTH if total <= 0 else min(_BAR_WIDTH, done * _BAR_WIDTH // total)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        text = f"{self._begin}[{bar}] {_figures(done, total, seconds)}"[: self._columns]
        _put("\r" + text.ljust(self._drawn))
        self._drawn = len(text)

    def close(self) -> None:
        if self._drawn:
            _put("\r" + " " * self._drawn + "\r")


class _TqdmBar:
    """tqdm's bar: a widget in a notebook, else text."""

    seconds = _BAR_SECONDS

    def __init__(self, what: str, tqdm: Any, columns: int | None) -> None:
        self._what = what
        self._tqdm = tqdm
        self._columns = columns
        self._bar: Any = None

    def show(self, done: int, total: int, seconds: float) -> None:
        if self._bar is None:
            self._bar = self._tqdm(
                total=total,
                desc=self._what or None,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                leave=False,
                ncols=self._columns,
            )
            self._bar.start_t -= seconds
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
