"""Folders with a checkpoint for each step, named `step-N`: what is whole, and the removal of old ones."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from concurrent.futures import Future
from typing import Any

import varve
from varve._catalogue import files_lost, names_in, relisted, unread
from varve.errors import CheckpointNotFoundError, CorruptCheckpointError, Error
from varve.integrations._ranks import rank_of_job
from varve.integrations._removal import remove_unless_held

_log = logging.getLogger("varve")

_STEP = re.compile(r"step-(\d+)")

#: One that an overwrite has displaced loads by its name.
_LOADABLE = ("whole", "displaced")


def whole_steps(folder: str) -> list[str]:
    """Returns the names of the whole steps in a folder, the newest first; warns of all others.

    Raises:
        CorruptCheckpointError: There are damaged or empty ones and no whole one.
        UnsupportedError: A newer Varve wrote the newest.
    """
    try:
        entries = varve.list_checkpoints(folder)
    except CheckpointNotFoundError:
        return []
    # In an object store one in quarantine has the name that it had.
    candidates = [entry for entry in entries if entry.state != "quarantined"]
    steps = {one.name: relisted(folder, one) for one in candidates if _STEP.fullmatch(one.name)}
    whole = [name for name, entry in steps.items() if entry.state in _LOADABLE]
    others = [entry for entry in steps.values() if entry.state not in _LOADABLE]
    newest = max((_number(name) for name in whole), default=-1)
    for entry in others:
        error = unread(entry.state, f"resume: {entry.detail}", folder)
        if error is not None and _number(entry.name) > newest:
            raise error
    reasons = {entry.name: f"it is {entry.state} ({entry.detail})" for entry in others}
    damaged = {entry.name: entry.detail for entry in others if entry.state == "damaged"}
    for name in names_in(folder):
        if _STEP.fullmatch(name) and name not in steps:
            lost = files_lost(os.path.join(folder, name))
            reasons[name] = lost or "it holds no checkpoint"
            if lost is not None:
                damaged[name] = lost
    for name, reason in reasons.items():
        _log.warning("resume: %s is passed over: %s", os.path.join(folder, name), reason)
    if damaged and not whole:
        last = max(damaged, key=_number)
        raise CorruptCheckpointError(
            f"resume: no step in {folder} is whole; {last}: {damaged[last]}. `varve "
            "repair` may help. Give another folder to begin anew",
            path=folder,
        )
    return sorted(whole, key=_number, reverse=True)


def _number(name: str) -> int:
    found = _STEP.fullmatch(name)
    assert found is not None
    return int(found[1])


class Purge:
    """Removes old steps, on a thread of its own: on rank 0, when a newer one is durable.

    Args:
        folder: Where the steps are.
        keep: How many whole steps stay; 0 for all.
        every: Steps that are multiples of it stay and do not count; 0 for none.
    """

    def __init__(self, folder: str, keep: int, every: int = 0) -> None:
        self._folder = folder
        self._keep = keep
        self._every = every
        self._saves: queue.Queue[tuple[int, Future[Any] | None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def after(self, step: int, save: Future[Any] | None) -> None:
        """Removes what is surplus once a save has succeeded; None for one that has."""
        if self._keep == 0 or rank_of_job() != 0:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="varve-purge", daemon=True)
            self._thread.start()
        self._saves.put((step, save))

    def close(self) -> None:
        """Waits for the removals."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._saves.put(None)
            thread.join()

    def _run(self) -> None:
        while (asked := self._saves.get()) is not None:
            step, save = asked
            if save is None or save.exception() is None:
                self._remove_before(step)

    def _remove_before(self, step: int) -> None:
        """Removes whole steps up to `step` but the newest; later ones are of another run."""
        try:
            entries = varve.list_checkpoints(self._folder)
            steps = [e.name for e in entries if e.state in _LOADABLE and _STEP.fullmatch(e.name)]
            passing = [n for n in steps if not (self._every and _number(n) % self._every == 0)]
            older = sorted((n for n in passing if _number(n) <= step), key=_number)
            for name in older[: -self._keep]:
                path = os.path.join(self._folder, name)
                _log.info("remove %s: the newest %d steps are kept", path, self._keep)
                remove_unless_held(path)
        except Error as error:  # The next save removes what stays now.
            _log.warning("removing old steps in %s: %s", self._folder, error)
