"""Logs and warnings of background saves that have failed, so that no failure is silent."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Iterator

from varve._warn import warn
from varve.errors import BY_CODE, CancelledError, Error, InvalidArgumentError

LOG = logging.getLogger("varve")


class Failures:
    """The failed saves of one stager, or of one owner, that no later call has mentioned yet. Threads: all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unmentioned: list[tuple[str, BaseException]] = []

    def add(self, path: str, error: BaseException, tells: bool) -> None:
        """Keeps a failure for the stager's next call. With `tells`, this rank also logs it."""
        with self._lock:
            self._unmentioned.append((path, error))
        if tells:
            LOG.error("a background save has failed: %s", _describe(path, error))

    def forget(self, error: BaseException) -> None:
        """Forgets a failure that a call has raised itself."""
        with self._lock:
            self._unmentioned = [entry for entry in self._unmentioned if entry[1] is not error]

    def take(self) -> tuple[str, BaseException] | None:
        """Returns the newest failure as a sentence and its error, once; None if there is none."""
        with self._lock:
            failed, self._unmentioned = self._unmentioned, []
        if not failed:
            return None
        path, error = failed[-1]
        more = f", and {len(failed) - 1} before it" if len(failed) > 1 else ""
        return f"a background save has failed{more}: {_describe(path, error)}", error


_kept_in: contextvars.ContextVar[Failures | None] = contextvars.ContextVar(
    "varve_failures", default=None
)


@contextlib.contextmanager
def kept_in(failures: Failures) -> Iterator[None]:
    """Lets the saves that begin in the block report to their owner, and to no other user of the stager."""
    token = _kept_in.set(failures)
    try:
        yield
    finally:
        _kept_in.reset(token)


def owners_or(of_stager: Failures) -> Failures:
    """Returns where a save that begins now keeps its failure, and learns of earlier ones."""
    owner = _kept_in.get()
    return of_stager if owner is None else owner


def is_failure(error: BaseException, asked: bool, deadline: float | None) -> bool:
    """Returns False for an intended end: a save that was cancelled, skipped or replaced.

    Args:
        error: How the save ended.
        asked: `cancel` or `abort` was called on this rank.
        deadline: When the save was to be given up (monotonic), if at all.
    """
    if not isinstance(error, CancelledError):
        return True
    return not asked and deadline is not None and time.monotonic() >= deadline


def warn_of_earlier(failures: Failures) -> None:
    """Warns of saves that have failed since the last call."""
    known = failures.take()
    if known is not None:
        warn(known[0], RuntimeWarning)


def raised_again(text: str, error: BaseException) -> Error:
    """Returns an error for a later call, of the class, code, errno, rank and path of the failure.

    `reason` is that of the failure alone: the later call is not refused by a lost stager.
    """
    if not isinstance(error, Error):
        return InvalidArgumentError(text)
    kind = BY_CODE.get(error.code, InvalidArgumentError)
    number = getattr(error, "errno", None)
    return kind(text, path=error.path, rank=error.rank, errno=number)


def log_dropped(path: str, error: BaseException) -> None:
    """Logs that a handle was dropped whose error was never looked at."""
    LOG.error(
        "the handle of a background save was dropped and its error never looked at: %s (keep the handle "
        "and call result() or exception())",
        _describe(path, error),
    )


def _describe(path: str, error: BaseException) -> str:
    return f"{type(error).__name__} ({path}): {error}"
