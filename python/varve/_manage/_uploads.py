"""Copies of a run's steps in another storage, made while training goes on.

  1. Before a save begins, rank 0 writes the note of a pending upload beside the step
     (src/upload/pending.cc): no retention removes the step before it is uploaded, in no job.
  2. When a save is durable, all ranks make a round on a thread of theirs, which has a channel of its own. Rank
     0 says which steps are to be uploaded: the new one first, then those whose upload failed before, or
     was promised by a job that died. The first round is made when the manager is.
  3. All ranks upload each step together (src/upload/upload.cc). A step that has failed is tried again in
     the next round, after those that have not; where storage or a rank does not answer, the round ends,
     and with it those that waited for it: each would wait as long for the same answer. One that is
     damaged is not tried again by this job. `drain` makes one more round where any was ended so.
  4. Rank 0 removes the note, writes the history and applies the rules there and here.

The copy of a step replaces what has its name there, unless a later job has saved that.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from typing import Any

from varve import _core
from varve._core import manage
from varve._core.uploads import UploadOptions
from varve._manage._followup import FollowUp, Save
from varve._manage._inputs import keep_of, name_prefix
from varve._manage._places import Job
from varve._upload import Background, Copy
from varve.errors import CancelledError, CorruptCheckpointError, Error, UnavailableError

_LOG = logging.getLogger("varve")

#: Seconds after which the note of a step that is not there is forgotten: an agent may still write it.
_FORGET_AFTER = 86400.0


class Uploads:
    """One rank's part in the uploads of a run. Threads: any; rounds run on one thread."""

    def __init__(self, job: Job, to: str, channel: Any, after: FollowUp, timeout: float) -> None:
        self._job = job
        self._run = job.run
        self._rank = job.rank
        self._to = to
        self._keep = keep_of(job.settings.keep_uploaded)
        self._after = after
        self._timeout = timeout
        self._attempt = 0
        self._damaged: set[str] = set()
        self._failed: set[str] = set()  # Steps whose save has failed in this job.
        self._not_uploaded: set[str] = set()  # Steps whose upload has failed in this job.
        self._lost = False
        self._aborted = False
        # When storage last gave no answer, and its error.
        self._down: tuple[float, str] | None = None
        self._skipped = False  # A round was ended without a try.
        self._thread = Background(channel)
        self._guard = threading.Lock()
        self._promised: Counter[str] = Counter()  # Saves under way, or that wait for their round.
        after.on_end = self._ended

    # ---- what the manager tells ----

    def promise(self, path: str) -> None:
        """Notes that a step which is about to be saved is to be uploaded."""
        if self._rank != 0:
            return
        with self._guard:
            self._promised[path] += 1
            self._failed.discard(path)
        try:
            _core.uploads.note_pending_upload(path, self._target(path))
        except Error as error:
            _LOG.warning("a crash would forget the upload of %s: %s", path, error)

    def catch_up(self, attempt: int) -> None:
        """Uploads what earlier jobs have promised."""
        self._later(attempt, "")

    def drain(self, once_more: bool = True) -> None:
        """Waits for the uploads under way.

        With `once_more`, for which all ranks call it, what was given up without a try is tried.
        """
        self._thread.drain()
        if self._skipped and once_more:
            self._skipped = False
            self._later(self._attempt, "")
            self._thread.drain()

    def abort(self) -> None:
        """Ends the upload under way, and all rounds. Steps that are not uploaded stay pending."""
        self._aborted = True
        self._thread.abort()

    def close(self) -> None:
        """Waits, and ends the thread."""
        self._thread.close()

    def _ended(self, save: Save, durable: bool) -> None:
        """Uploads a step that is durable, and what was not uploaded before."""
        if durable:
            self._later(save.attempt, save.path)
        else:
            self._failed.add(save.path)
            self._redeem(save.path)

    def _redeem(self, path: str) -> None:
        with self._guard:
            self._promised[path] -= 1

    def _later(self, attempt: int, first: str) -> None:
        asked = time.monotonic()
        self._thread.later(lambda: self._round(attempt, first, asked))

    # ---- a round ----

    def _target(self, path: str) -> str:
        return os.path.join(self._to, os.path.basename(path))

    def _round(self, attempt: int, first: str, asked: float) -> None:
        self._attempt = attempt
        if first:
            self._redeem(first)
        if self._lost or self._aborted:
            return
        try:
            steps, why = self._agreed(first, asked)
            for index, (path, target) in enumerate(steps):
                if index > 0 and (self._aborted or self._channel_lost() or not self._goes_on()):
                    break
                if not self._upload(path, target):
                    break
            else:
                self._skipped = self._skipped and bool(why)  # All that was pending was tried.
        finally:
            if self._channel_lost():
                self._lost = True
                _LOG.error(
                    "%s: a rank was lost in an upload; this job uploads nothing more, and the next one "
                    "makes up for it",
                    self._run,
                )

    def _channel_lost(self) -> bool:
        return self._thread.coordinator is not None and self._thread.coordinator.lost

    def _goes_on(self) -> bool:
        """Returns what rank 0 says: False where another job has taken the place in this round."""
        told = b"go" if self._rank == 0 and self._job.places.still_ours(self._to) else b""
        if self._thread.coordinator is not None:
            told = self._thread.coordinator.share(told, self._timeout)
        return bytes(told) == b"go"

    def _agreed(self, first: str, asked: float) -> tuple[list[tuple[str, str]], str]:
        """Returns what rank 0 says is to be uploaded, paths and targets, or why nothing is."""
        told = b""
        if self._rank == 0:
            steps: list[tuple[str, str]] = []
            why = ""
            tried = True
            if self._down is not None and asked < self._down[0]:
                tried = False
                why = f"not tried, since this failed a moment ago: {self._down[1]}"
            else:
                try:
                    steps = self._due(first)
                except Error as error:
                    why = f"which steps are to be uploaded is not known: {error}"
                    if isinstance(error, UnavailableError):
                        self._down = (time.monotonic(), str(error))
            told = json.dumps([steps, why, tried]).encode()
        if self._thread.coordinator is not None:
            told = self._thread.coordinator.share(told, self._timeout)
        steps, why, tried = json.loads(told)
        self._skipped = self._skipped or not tried
        if why:
            self._failed_before(first, why)
        return [(path, target) for path, target in steps], why

    def _failed_before(self, first: str, why: str) -> None:
        """Tells that an upload was not even begun, on every rank."""
        if not first:  # Of earlier jobs, or a last try: no save is to be told.
            if self._rank == 0:
                _LOG.error("%s: no step is uploaded to %s: %s", self._run, self._to, why)
            return
        text = f"upload {first} to {self._target(first)}: {why}"
        self._tell(
            _step_of(first), first, UnavailableError(text, path=first), "after the next save"
        )

    def _due(self, first: str) -> list[tuple[str, str]]:
        """On rank 0: the new step, and those that are pending and not being saved."""
        if not self._job.places.still_ours(self._to):
            return []
        pending = {
            os.fsdecode(path): os.fsdecode(to)
            for path, to in _core.uploads.pending_uploads(self._run)
        }
        # Also without a note: if it is there already, its upload does nothing.
        mine = (first, self._target(first))
        due = [mine] if first and self._is_wanted(*mine) else []
        with self._guard:  # Those have a round of their own.
            promised = {path for path, count in self._promised.items() if count > 0}
        busy = promised | self._damaged | {first}
        left = [(path, to) for path, to in pending.items() if path not in busy]
        # A step that fails keeps no other waiting.
        left.sort(key=lambda one: one[0] in self._not_uploaded)
        return due + [one for one in left if self._is_wanted(*one)] if left else due

    def _is_wanted(self, path: str, target: str) -> bool:
        """Returns True for a pending upload that still makes sense; else it is forgotten."""
        name = os.path.basename(path)
        mine = [one for one in manage.list_steps(self._run) if one.name == name]
        if not mine and not os.path.isdir(path):
            # Its save has failed, or it was removed. Or the agent of a dead job still writes it.
            if path in self._failed or _note_age(path) > _FORGET_AFTER:
                _core.uploads.forget_pending_upload(path)
            return False
        there = [one for one in manage.list_steps(os.path.dirname(target)) if one.name == name]
        if mine and there and there[0].attempt > mine[0].attempt:
            _LOG.warning("%s is not uploaded: a later job has saved %s", path, target)
            _core.uploads.forget_pending_upload(path)
            return False
        return True

    def _upload(self, path: str, target: str) -> bool:
        """Uploads a step, by all ranks; returns False where the next one would fail as well."""
        step = _step_of(path)
        options = UploadOptions(overwrite=True, in_place=True, timeout=self._timeout)
        copy = Copy(path, target, options)
        try:
            with self._thread.stoppable() as stop:
                if self._aborted:  # Before the stop was there.
                    return False
                report = copy.make(self._thread.coordinator, stop)
        except Error as error:
            damaged = isinstance(error, CorruptCheckpointError)
            if damaged:
                self._damaged.add(path)
            self._not_uploaded.add(path)
            self._tell(
                step, path, error, "not by this job again" if damaged else "after the next save"
            )
            if isinstance(error, UnavailableError):
                self._down = (time.monotonic(), str(error))
            return not isinstance(error, (UnavailableError, CancelledError))
        if self._rank == 0:
            with self._guard:  # A step that is being saved anew keeps its new note.
                if self._promised[path] <= 0:
                    _core.uploads.forget_pending_upload(path)
            self._note(step, path, "done", bytes=report.bytes, seconds=round(report.seconds, 6))
            self._after.count_upload("done", step)
            self._prune()
        return True

    def _tell(self, step: int, path: str, error: Error, when: str) -> None:
        """Tells the log, the history and the user's function of an upload that has failed."""
        if self._rank == 0:
            _LOG.error("%s; it stays pending and is tried %s", error, when)
            self._note(step, path, type(error).__name__, error=str(error))
            self._after.count_upload("failed")
        self._after.tell_failure(step, error)

    def _note(self, step: int, path: str, outcome: str, **fields: Any) -> None:
        name = os.path.basename(path)
        self._job.history.add(
            "upload",
            attempt=self._attempt,
            step=step,
            name=name,
            to=self._to,
            outcome=outcome,
            **fields,
        )

    def _prune(self) -> None:
        """Applies the rules there, and has them applied here: the step was kept for its upload."""
        attempt = self._attempt
        may_remove = self._keep.any and self._after.may_remove
        if may_remove and self._job.places.allows_removal(self._to):
            prefix = name_prefix(self._job.settings.name)
            try:
                manage.prune(self._to, self._keep.rules(), False, 1.0, prefix, False)
            except Error as error:
                _LOG.warning("old steps in %s were not removed: %s", self._to, error)
        self._after.later(lambda: self._after.prune_by_rules(attempt))


def _step_of(path: str) -> int:
    return _core.step_from_name(os.path.basename(path)) or 0


def _note_age(path: str) -> float:
    """Returns the seconds since the note of a step was written."""
    digits = "".join(f"%{ord(one):x}" if one.isdigit() else one for one in os.path.basename(path))
    note = os.path.join(os.path.dirname(path), f".{digits}.varve-upload")
    try:
        return time.time() - os.stat(note).st_mtime
    except OSError:
        return 0.0
