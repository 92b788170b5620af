"""Where a run goes on: rank 0's choice of a step, and what becomes of damaged ones."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import Any, Literal

from varve import _core
from varve._arguments import first_names
from varve._catalogue import damages_left, mended, unread
from varve._core import manage
from varve._manage._contents import misnamed
from varve._manage._history import History
from varve._manage._place import Place
from varve.errors import CheckpointNotFoundError, CorruptCheckpointError, Error

_LOG = logging.getLogger("varve")

#: In the run's directory: from which step it was restarted how often, without a save since.
RESTARTS_NAME = ".varve-restarts.json"


class Chooser:
    """Rank 0's choice of the step to resume from.

    The newest whole step is chosen: index and commit record are checked, and with verify="full" every
    byte. A damaged one is put into quarantine and the next older one is looked at. A step that cannot be read
    for another reason than damage ends the resume: older state would hide that the storage fails.

    Attributes:
        passed_over: Names of steps that are left out, each with the reason.
    """

    def __init__(
        self,
        run: str,
        verify: Literal["index", "full"],
        max_restarts: int | None,
        history: History,
        place: Place,
    ) -> None:
        self.passed_over: dict[str, str] = {}
        self._damaged: dict[str, str] = {}  # Of those the ones to be set aside.
        self._run = run
        self._verify = verify
        self._max_restarts = max_restarts
        self._history = history
        self._place = place
        self._may_have_restarts = True  # Of this job or an earlier one.
        self._told = False  # Of the misnamed steps.
        self._counted: set[str] = set()  # The steps of which the file counts this job's restart.

    def begin(self) -> None:
        """Forgets what an earlier resume has left out: it may have been saved anew since."""
        self.passed_over.clear()
        self._damaged.clear()

    def choose(self) -> manage.RunStep | None:
        """Returns the step to resume from; None where there is nothing to resume.

        Raises CorruptCheckpointError where there were steps, and none of them is whole; UnsupportedError and
        UnavailableError where the newest may be whole and cannot be read.
        """
        steps = manage.list_steps(self._run)
        if not self._told:
            self._told = True
            for name, what in misnamed(self._run).items():
                _LOG.warning(
                    "resume: %s %s: it counts as no step. load(state, path) loads it; move it elsewhere, "
                    "for a save of that number would replace it",
                    self._path(name),
                    what,
                )
        restarts = self._restarts()
        for place in range(len(steps) - 1, -1, -1):
            step = steps[place]
            if step.name in self.passed_over:
                continue
            if step.state == "incomplete":
                self._leave(step.name, step.detail)
                continue
            error = unread(step.state, f"resume: {step.detail}", self._path(step.name))
            if error is not None:
                raise error
            damage = self._damage(step)
            if damage is not None:
                self.pass_over(step.name, damage)
                continue
            failed = restarts.get(step.name, 0) - (step.name in self._counted)
            older = any(one.state in ("whole", "displaced") for one in steps[:place])
            if self._max_restarts is not None and failed >= self._max_restarts and older:
                self._leave(step.name, f"{failed} restarts from it have ended before the next save")
                continue
            return step
        aside = [one for one in _quarantined(self._run) if one not in self.passed_over]
        if self.passed_over or aside:
            found = [f"{name}: {why}" for name, why in self.passed_over.items()]
            found += [f"{name}: in quarantine" for name in aside]
            raise CorruptCheckpointError(
                f"resume {self._run}: no whole step is left ({'; '.join(found)}). The state may be partly "
                "written; `varve ls` shows what there is, and `varve rm` removes what is in quarantine. To "
                "begin anew, use another directory",
                path=self._run,
            )
        return None

    def _leave(self, name: str, why: str) -> None:
        self.passed_over[name] = why
        _LOG.warning("resume: %s is passed over: %s", self._path(name), why)

    def pass_over(self, name: str, reason: str) -> None:
        """Leaves a damaged step out. It stays where it is until an older one has loaded."""
        self.passed_over[name] = self._damaged[name] = reason
        _LOG.warning("resume: %s is damaged and passed over: %s", self._path(name), reason)

    def settle(self) -> None:
        """Puts the damaged steps that were passed over into quarantine: the run goes on from another.

        Not before: a host that reads badly would set all steps aside, one after the other. For the same
        reason each is read again, whole.
        """
        damaged, self._damaged = self._damaged, {}
        for name, reason in damaged.items():
            path = self._path(name)
            try:
                if not _is_damaged(path):
                    _LOG.warning(
                        "resume: %s stays where it is: a second read finds no damage; does a host "
                        "or a disk read badly?",
                        path,
                    )
                    continue
                hidden = manage.quarantine(path, reason)
            except Error as error:
                _LOG.warning("resume: %s could not be put into quarantine: %s", path, error)
                self._history.add("damaged", name=name, reason=reason)
                continue
            _LOG.warning("resume: %s is now %s", path, os.path.basename(hidden))
            self._history.add("quarantine", name=name, reason=reason, path=os.path.basename(hidden))

    def _damage(self, step: manage.RunStep) -> str | None:
        """Returns what is damaged in a step; None where nothing is. Raises what is no damage."""
        path = self._path(step.name)
        try:
            problem = _index_problem(path)
        except CheckpointNotFoundError:
            if step.state != "damaged":
                raise
            return step.detail  # It has neither an index nor data.
        if problem is not None:
            if not mended(path, problem):
                return problem
            problem = _index_problem(path) or _listed_problem(path)
        elif step.state == "damaged":
            problem = step.detail
        if problem is not None:
            return problem
        if self._verify == "full":
            damages = damages_left(path)
            if damages:
                first = damages[0]
                where = f"{first.file} bytes {first.begin} to {first.end}"
                return f"{len(damages)} damaged stretches, the first: {where}: {first.problem}"
        return None

    def _path(self, name: str) -> str:
        return os.path.join(self._run, name)

    # ---- restarts that led to nothing ----

    def note_restart(self, name: str) -> None:
        """Counts a restart from a step, once for this job until it saves."""
        if name in self._counted:
            return
        self._counted.add(name)
        restarts = self._restarts()
        restarts[name] = restarts.get(name, 0) + 1
        self._write(restarts)

    def forget_restarts(self) -> None:
        """Called after a save: the run has got further."""
        if self._may_have_restarts:
            with contextlib.suppress(OSError, Error):
                self._place.remove(RESTARTS_NAME)
                self._may_have_restarts = False
                self._counted.clear()

    def _restarts(self) -> dict[str, int]:
        try:
            read: Any = json.loads(self._place.read(RESTARTS_NAME) or "{}")
        except (OSError, ValueError, Error):
            return {}
        if not isinstance(read, dict):
            return {}
        return {name: count for name, count in read.items() if isinstance(count, int)}

    def _write(self, restarts: dict[str, int]) -> None:
        try:
            self._place.write(RESTARTS_NAME, json.dumps(restarts))
            self._may_have_restarts = True
        except (OSError, Error) as error:
            _LOG.warning("restarts of the run %s are not counted: %s", self._run, error)


def log_left_over(where: str, unexpected: list[str]) -> None:
    """Logs what the state that was resumed has no place for."""
    if unexpected:
        _LOG.warning(
            "resume: %d entries of %s are in no part of the state and were not loaded: %s",
            len(unexpected),
            where,
            first_names(unexpected, 5),
        )


def _is_damaged(path: str) -> bool:
    """Returns True where bytes of a checkpoint are not what was written."""
    try:
        return bool(_core.verify(path))
    except CorruptCheckpointError:
        return True
    except CheckpointNotFoundError:
        run, name = os.path.split(path)
        if any(one.name == name and one.state == "damaged" for one in manage.list_steps(run)):
            return True  # It has neither an index nor data.
        raise


def _index_problem(path: str) -> str | None:
    """Returns why the index of a checkpoint cannot be read; None where it can."""
    try:
        _core.Reader(path, False)
    except CorruptCheckpointError as error:
        return str(error)
    return None


def _listed_problem(path: str) -> str | None:
    """Returns why a checkpoint with a readable index is listed as not whole; None where it is whole."""
    name = os.path.basename(path)
    states = {one.name: (one.state, one.detail) for one in _core.list_checkpoints(path)}
    state, detail = states.get(name, ("missing", "it is not there any more"))
    return None if state in ("whole", "displaced") else detail


def _quarantined(run: str) -> list[str]:
    """Returns the names that steps in quarantine had."""
    try:
        found = [one for one in _core.list_checkpoints(run) if one.state == "quarantined"]
    except CheckpointNotFoundError:
        return []
    return [one.detail.partition(":")[0] for one in found]
