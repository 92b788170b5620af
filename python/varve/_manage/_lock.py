"""The checks before a job changes a run: that no other job has it, that pins hold, what it leaves behind."""

from __future__ import annotations

import logging
import os
import time

from varve._core import manage
from varve._manage._inputs import holder, is_whole
from varve.errors import Error, PreconditionError, UnsupportedError

_LOG = logging.getLogger("varve")

#: Seconds in which the lock of a job that was killed becomes free: processes that it started may
#: outlive it for a while.
LONGEST_WAIT = 15.0


def take_lock(run: str) -> manage.RunLock | None:
    """Locks a run; None where it cannot be locked or written to, with a warning.

    Raises PreconditionError, which names the other job, where that does not end in LONGEST_WAIT seconds.
    """
    until = time.monotonic() + LONGEST_WAIT
    waits = False
    while True:
        try:
            return manage.lock_run(run, holder())
        except PreconditionError as error:
            if manage.is_in_object_store(run):  # Keys that may not write there.
                _LOG.warning("%s: nothing can be saved there: %s", run, error)
                return None
            if time.monotonic() >= until:
                raise
            if not waits:
                _LOG.warning("waiting %.0f s for the end of a job: %s", LONGEST_WAIT, error)
            waits = True
            time.sleep(0.2)
        except UnsupportedError as error:
            _LOG.warning("nothing keeps a second job out of %s: %s", run, error)
            return None
        except Error as error:
            if manage.is_in_object_store(run) or not os.path.isdir(run) or os.access(run, os.W_OK):
                raise
            _LOG.warning("%s is not locked, and nothing can be saved there: %s", run, error)
            return None


def set_pinned_apart(run: str, step: int) -> None:
    """Renames pinned steps above `step`, which a job that goes on from there would replace.

    They get a name that no rule counts, and stay loadable. In an object store nothing can be renamed: a
    save of a pinned name fails there, and says so.
    """
    if manage.is_in_object_store(run):
        return
    for one in manage.list_steps(run):
        if one.pin is None or one.step <= step or not is_whole(one) or one.state == "displaced":
            continue
        apart = f"{one.name}-pinned-{one.attempt}"
        try:
            os.rename(os.path.join(run, one.name), os.path.join(run, apart))
        except OSError as error:
            _LOG.warning(
                "%s is pinned (%s), and a save of its number will fail: %s",
                one.name,
                one.pin,
                error,
            )
        else:
            _LOG.warning("%s is pinned (%s): it is now %s", one.name, one.pin, apart)


def warn_of_later_steps(run: str, step: int, later: str) -> None:
    """Warns that a job goes on from a step, or saves one, below a step of the run."""
    _LOG.warning(
        "%s: this job is back at step %d, and the run has %s. From now on each save counts as newer than all "
        "steps that are there: it replaces the one of its number, and to `keep` the others are older. To "
        "keep one of them, rename its directory to a name that does not end with a number, or copy it",
        run,
        step,
        later,
    )
