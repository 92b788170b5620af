"""The places of a run's steps: its directory, and where they are uploaded to."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from varve._core import manage
from varve._manage._contents import misnamed
from varve._manage._history import History
from varve._manage._inputs import Settings, is_whole
from varve._manage._lock import set_pinned_apart, take_lock
from varve._manage._place import Place, place_of
from varve._manage._policy import Keep
from varve._manage._resume import Chooser, log_left_over
from varve.errors import CheckpointNotFoundError, CorruptCheckpointError, Error, PreconditionError

_LOG = logging.getLogger("varve")

#: A step as ranks send it to each other: its number, its name and the place that it is in.
Chosen = dict[str, Any]


class Places:
    """Rank 0's view of both. The run's directory comes first.

    Attributes:
        locks: By place, once they are taken; None for one that could not be locked.
        overtaken: Which other job has one of them now.
    """

    def __init__(
        self, run: str, remote: str, settings: Settings, history: History, place: Place
    ) -> None:
        self.locks: dict[str, manage.RunLock | None] = {}
        self.overtaken = ""
        self._run = run
        self._remote = remote
        places = {run: place, **({remote: place_of(remote)} if remote else {})}
        self._choosers = {
            where: Chooser(where, settings.verify, settings.max_restarts, history, its_place)
            for where, its_place in places.items()
        }

    def take(self) -> tuple[int, str]:
        """Locks both. Returns the number of this attempt, and the name of the newest whole step."""
        self.locks[self._run] = take_lock(self._run)
        steps = manage.list_steps(self._run)
        if self._remote:
            self.locks[self._remote] = take_lock(self._remote)
            steps = manage.list_steps(self._remote) + steps
        newest = next((one.name for one in reversed(steps) if is_whole(one)), "")
        # An earlier job that lives on unseen may have saved nothing yet: its claim's number is lower.
        locks = [lock.number for lock in self.locks.values() if lock is not None]
        return max(1 + max((step.attempt for step in steps), default=0), *locks, 1), newest

    def release(self) -> None:
        """Gives both back; in a forked child, its hold of them."""
        for lock in self.locks.values():
            if lock is not None:
                lock.release()

    def still_ours(self, where: str, if_unknown: bool = True) -> bool:
        """Returns False where another job has taken a place, this or the other. Threads: any.

        Returns `if_unknown` where storage does not answer.
        """
        lock = self.locks.get(where)
        if lock is None or self.overtaken:
            return not self.overtaken
        try:
            lock.check_held()
        except PreconditionError as error:
            self.overtaken = str(error)
            _LOG.error("%s", error)
            return False
        except Error as error:
            # Of the other place the upload will tell.
            level = logging.WARNING if where == self._run else logging.INFO
            _LOG.log(level, "whether %s is still this job's is not known: %s", where, error)
            return if_unknown
        return True

    def allows_removal(self, where: str) -> bool:
        """Returns True where no other job has the place for certain, as far as its storage has locks."""
        unclaimed = self.locks.get(where) is None and manage.is_in_object_store(where)
        return not unclaimed and self.still_ours(where, if_unknown=False)

    def begin_resume(self) -> None:
        """Called before the first `choose` of a resume."""
        for chooser in self._choosers.values():
            chooser.begin()

    def choose(self) -> Chosen | None:
        """Returns the newest good step of both: the local one of equal ones. None where there is none.

        Raises CorruptCheckpointError where there were steps, and none of them is whole.
        """
        best: tuple[manage.RunStep, str] | None = None
        none_is_whole: CorruptCheckpointError | None = None
        for run, chooser in self._choosers.items():
            try:
                step = chooser.choose()
            except CorruptCheckpointError as error:
                none_is_whole = none_is_whole or error
                continue
            if step is not None and (best is None or _age(step) > _age(best[0])):
                best = step, run
        if best is None:
            if none_is_whole is not None:
                raise none_is_whole
            return None
        return {"step": best[0].step, "name": best[0].name, "run": best[1]}

    def find(self, step: int, *, here: bool = False) -> Chosen:
        """Returns the newest whole step of this number, with `here` of the run's directory alone.

        Its entry "later" names the last of the whole steps above it; "" where there is none.
        """
        for run in [self._run] if here else self._choosers:
            steps = [one for one in manage.list_steps(run) if is_whole(one)]
            later = max(steps, key=lambda one: one.step, default=None)
            name = later.name if later is not None and later.step > step else ""
            for one in reversed(steps):
                if one.step == step:
                    return {"step": one.step, "name": one.name, "run": run, "later": name}
        held = "".join(
            f"; {name} {what}: load(state, path) loads it"
            for run in ([self._run] if here else self._choosers)
            for name, what in misnamed(run, step).items()
        )
        raise CheckpointNotFoundError(f"{self._run} has no whole step {step}{held}", path=self._run)

    def pass_over(self, chosen: Chosen, reason: str) -> None:
        """Leaves a damaged step out."""
        self._choosers[chosen["run"]].pass_over(chosen["name"], reason)

    def went_on(self, chosen: Chosen, left_over: list[str]) -> dict[str, str]:
        """Called when a step has loaded, with what the state has no place for.

        Returns the steps that were left out, with the reasons.
        """
        log_left_over(path_of(chosen), left_over)
        passed_over: dict[str, str] = {}
        for chooser in self._choosers.values():
            chooser.settle()
            passed_over |= chooser.passed_over
        set_pinned_apart(self._run, chosen["step"])
        self._choosers[chosen["run"]].note_restart(chosen["name"])
        return passed_over

    def forget_restarts(self) -> None:
        """Called after a save: the run has got further."""
        for chooser in self._choosers.values():
            chooser.forget_restarts()


@dataclass(frozen=True)
class Job:
    """The facts of a manager's job, for the parts of the manager that work after saves."""

    run: str
    settings: Settings
    keep: Keep
    rank: int
    size: int
    history: History
    places: Places


def path_of(chosen: Chosen) -> str:
    """Returns the path of a step."""
    return os.path.join(chosen["run"], chosen["name"])


def _age(step: manage.RunStep) -> tuple[int, int]:
    """A key by which the steps of two places are in the order of their saves."""
    return step.attempt, step.step
