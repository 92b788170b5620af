"""The managers that this process has open, also those without a reference.

1. All that outlives a manager refers to it weakly or not at all: its threads, the signal handlers, the end of the
   interpreter. So one that the program has dropped without `close`, as a cell of a notebook does that
   is run twice or ends with an error, is collected.
2. A manager that is collected without `close` is kept here, and closed when the next one is made or when the
   interpreter ends. Not by the collector: closing waits for saves, and the collector may run on the
   thread that writes them.
3. A second manager of a run is refused at once while a program still refers to the first one. The frames
   of the last uncaught error do not count: Python keeps them to look at them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol

from varve._core import manage
from varve.errors import PreconditionError

_LOG = logging.getLogger("varve")

#: How often the collector runs before a manager counts as one that the program refers to.
_TRIES = 4


class Opened(Protocol):
    """The methods that this calls of a manager."""

    @property
    def run(self) -> str:
        """The run's directory."""

    def _give_up(self, error: BaseException | None) -> None:
        """Closes it for a program that has not."""

    def _leave_to_parent(self) -> None:
        """Closes it in a forked child, without what only the parent has."""


_open: dict[int, tuple[weakref.ref[Any], str]] = {}  # By identity: the manager, and since when.
_abandoned: list[Opened] = []


def note(manager: Opened) -> None:
    """Notes a manager that is open now."""
    _open[id(manager)] = weakref.ref(manager), time.strftime("%Y-%m-%d %H:%M:%S")
    atexit.unregister(close_all)  # After all that managers use, so that it is called first.
    atexit.register(close_all)


def forget(manager: Opened) -> None:
    """Notes that a manager is closed."""
    _open.pop(id(manager), None)


def abandon(manager: Opened) -> None:
    """Takes a manager that is being collected and is not closed."""
    forget(manager)
    _abandoned.append(manager)


def make_way(run: str) -> None:
    """Closes the managers that are abandoned, and sees that this process has no other one of the run.

    Raises PreconditionError where it has.
    """
    for _ in range(_TRIES):
        if not _others(run):
            break
        gc.collect()  # It may be one that only a circle of references keeps,
        time.sleep(0.05)  # or that a thread uses which follows a save up.
    for known, since in _others(run):
        if _only_the_last_error_has(known):
            _close_known(known, getattr(sys, "last_value", None))
            continue
        raise PreconditionError(
            f"this process has the run {run} already: its CheckpointManager of {since} is not closed. Call its "
            "close() before another one is made, or use `with`",
            path=run,
        )
    _close_abandoned(None)


def close_all() -> None:
    """Closes the managers that the program has not closed, as after an error outside of a `with`."""
    with contextlib.suppress(KeyboardInterrupt):  # The interpreter ends already.
        error = getattr(sys, "last_value", None)
        for known, _ in list(_open.values()):
            _close_known(known, error)
        _close_abandoned(error)


def _others(run: str) -> list[tuple[weakref.ref[Any], str]]:
    if manage.is_in_object_store(run):
        return []  # There the manager that was made last has the run.
    where = os.path.realpath(run)
    return [(known, since) for known, since, its in _runs() if os.path.realpath(its) == where]


def _runs() -> Iterator[tuple[weakref.ref[Any], str, str]]:
    for known, since in list(_open.values()):
        manager = known()
        if manager is not None:
            yield known, since, manager.run


def _close_abandoned(error: BaseException | None) -> None:
    while _abandoned:
        manager = _abandoned.pop()
        _LOG.warning(
            "the manager of %s was dropped without close(), and is closed now", manager.run
        )
        _close(manager, error)


def _close(manager: Opened, error: BaseException | None) -> None:
    try:
        manager._give_up(error)
    except Exception:
        _LOG.exception("the manager of %s could not be closed", manager.run)


def _close_known(known: weakref.ref[Any], error: BaseException | None) -> None:
    manager = known()
    if manager is not None:
        _close(manager, error)


def _only_the_last_error_has(known: weakref.ref[Any]) -> bool:
    """Returns True where only frames of the last uncaught error refer to a manager."""
    frames = set(_frames_of(getattr(sys, "last_value", None)))
    holders = gc.get_referrers(known())
    return all(isinstance(one, FrameType) and one in frames for one in holders)


def _frames_of(error: BaseException | None) -> Iterator[FrameType]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        step = error.__traceback__
        while step is not None:
            yield step.tb_frame
            step = step.tb_next
        error = error.__cause__ or error.__context__


def _in_child() -> None:
    """A forked child has neither the threads nor the lock of its parent's managers: closed to it."""
    managers = [known() for known, _ in _open.values()]
    for manager in [*managers, *_abandoned]:
        if manager is not None:
            manager._leave_to_parent()
    _open.clear()
    _abandoned.clear()


os.register_at_fork(after_in_child=_in_child)
