"""The work after saves and loads of a run: its history, metrics, retention and the user's callbacks.

All of it runs on one thread, which is the manager's own: the thread that writes saves must not wait for it,
nor must training.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from varve import _core
from varve._core import LoadReport, manage
from varve._engine import local_path_text
from varve._manage._costs import Costs
from varve._manage._exposition import Exposition
from varve._manage._history import phases_of
from varve._manage._inputs import is_whole, name_prefix
from varve._manage._places import Job
from varve.errors import CancelledError, Error, InvalidArgumentError, OutOfSpaceError

_LOG = logging.getLogger("varve")

#: Share of the time in which old steps are removed while training goes on.
_BUSY_SHARE = 0.25


@dataclass(eq=False)
class Save:
    """A save under way."""

    step: int
    path: str
    attempt: int
    reason: str
    metrics: dict[str, float]
    began: float  #: Unix time.
    stall: float = 0.0  #: Seconds for which training waited.
    ended: Callable[[Future[Any]], None] = lambda _: None  #: Called when it has ended.
    future: Future[Any] | None = None  #: Once it has begun.


class FollowUp:
    """See the top of this file. Threads: any.

    Attributes:
        costs: The cost of saves; on rank 0.
        may_remove: False while this job goes on from none of the steps that it has found.
    """

    def __init__(self, job: Job) -> None:
        self.costs = Costs()
        self.may_remove = True
        self._warned_of_metric = False
        #: Called with a save that has ended, and whether it is durable.
        self.on_end: Callable[[Save, bool], None] = lambda _save, _durable: None
        self._job = job
        self._run = job.run
        self._keep = job.keep
        self._prefix = name_prefix(job.settings.name)
        self._stands_on = ""  # The step that this job has saved last or goes on from; on rank 0.
        self._metrics: Exposition | None = None
        if job.settings.metrics_file and job.rank == 0:
            self._metrics = Exposition(local_path_text(job.settings.metrics_file), job.run)
        self._guard = threading.Lock()  # Guards what follows.
        self._in_flight: list[Save] = []
        self._failures: list[str] = []
        self._stalled = 0.0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    # ---- what the training thread tells ----

    @property
    def busy(self) -> bool:
        """True while a save is under way."""
        with self._guard:
            return bool(self._in_flight)

    @property
    def under_way(self) -> list[int]:
        """Steps whose saves have not ended."""
        with self._guard:
            return sorted(save.step for save in self._in_flight)

    def give_up(self) -> list[int]:
        """Cancels the saves under way; returns their steps."""
        with self._guard:
            saves = list(self._in_flight)
        return sorted(save.step for save in saves if save.future and save.future.cancel())

    @property
    def failures_in_row(self) -> list[str]:
        """Errors of the last saves, since one was made."""
        with self._guard:
            return list(self._failures)

    @contextlib.contextmanager
    def began(self, save: Save) -> Iterator[None]:
        """Notes a save that begins in the block; where the block raises, forgets it and says that it ended."""
        save.ended = lambda future: self.later(lambda: self._ended(save, future))
        with self._guard:
            self._in_flight.append(save)
        try:
            yield
        except BaseException:
            if self._forget(save):
                self.on_end(save, False)
            raise

    def begins_anew(self, newest: str) -> None:
        """Notes a save by a job that goes on from none of the steps that it has found."""
        if self.may_remove:
            _LOG.warning(
                "%s: this job begins anew, and %s was there: was resume() forgotten? What it saves counts "
                "as newer, and replaces steps of the same numbers; no other step is removed",
                self._run,
                newest,
            )
        self.may_remove = False

    def stalled(self, seconds: float) -> None:
        """Notes time that was spent in a save, which is no time of a step."""
        self._stalled += seconds

    def tick(self, now: float) -> None:
        """Notes that a step is done."""
        with self._guard:
            in_flight = [save.step for save in self._in_flight]
        stalled, self._stalled = self._stalled, 0.0
        self.costs.tick(now, in_flight, stalled)

    def loaded(
        self,
        attempt: int,
        step: int,
        name: str,
        seconds: float,
        report: LoadReport,
        passed_over: Mapping[str, str],
    ) -> None:
        """Notes a resume, on rank 0."""
        self._stands_on = name
        self._job.history.add(
            "load",
            attempt=attempt,
            step=step,
            name=name,
            seconds=round(seconds, 6),
            bytes_read=report.bytes_read,
            bytes_from_agent=report.bytes_from_agent,
            passed_over=dict(passed_over),
            phases=phases_of(report.phases),
            world_size=self._job.size,
        )
        if self._metrics is not None:
            self._metrics.set("varve_resumed_step", step)
            self._metrics.write()

    # ---- the thread ----

    def later(self, work: Callable[[], None]) -> None:
        """Lets the thread do something, after what it was given before."""
        if self._worker is None:
            self._worker = threading.Thread(
                target=_work_off, args=(self._work, self._run), name="varve manager", daemon=True
            )
            self._worker.start()
        self._work.put(work)

    def finish(self, limit: float = math.inf) -> None:
        """Waits until the thread has done what it was given, `limit` seconds at most."""
        if self._worker is None:
            return
        if threading.current_thread() is self._worker:
            raise InvalidArgumentError(
                "a callback of a manager waits for the manager, which waits for the callback"
            )
        done = threading.Event()
        self._work.put(done.set)
        until = time.monotonic() + limit
        while self._worker.is_alive() and not done.wait(1.0):  # Ctrl-C gets through.
            if time.monotonic() >= until:
                return

    def close(self) -> None:
        """Ends the thread."""
        self._work.put(None)

    def _forget(self, save: Save) -> bool:
        """Returns False for a save that was forgotten before."""
        with self._guard:
            known = save in self._in_flight
            if known:
                self._in_flight.remove(save)
            return known

    def _ended(self, save: Save, future: Future[Any]) -> None:
        error = future.exception()
        if not self._forget(save):
            return
        with self._guard:
            if error is None:
                self._failures.clear()
            elif not isinstance(error, CancelledError):
                self._failures.append(str(error))
        if self._job.rank == 0:
            self._note(save, future, error)
            self._job.places.still_ours(self._run)
        self.on_end(save, error is None)
        if error is None:
            if self._job.rank == 0 and self._keep.any:
                # Where saves have ended meanwhile, removals fall behind and the disk would fill.
                self.prune(save.attempt, _BUSY_SHARE if self._work.empty() else 1.0)
            return
        try:
            if self._job.rank == 0 and isinstance(error, OutOfSpaceError):
                self.make_room(save.attempt)
        finally:
            if not isinstance(error, CancelledError):
                self.tell_failure(save.step, error)

    def _note(self, save: Save, future: Future[Any], error: BaseException | None) -> None:
        line: dict[str, Any] = {
            "attempt": save.attempt,
            "step": save.step,
            "reason": save.reason,
            "began": round(save.began, 3),
            "stall_seconds": round(save.stall, 6),
            "metrics": save.metrics,
            "world_size": self._job.size,
        }
        if error is not None:
            self.costs.dropped(save.step)
            self._job.history.add("save", outcome=type(error).__name__, error=str(error), **line)
            if self._metrics is not None:
                self._metrics.count("varve_saves", 1, "failed")
                self._metrics.write()
            return
        report = future.result()
        seconds = float(report.seconds)
        size = _bytes_of(save.path)
        self.costs.ended(save.step, save.stall, seconds)
        self._job.places.forget_restarts()
        self._stands_on = os.path.basename(save.path)
        line |= {
            "seconds": round(seconds, 6),
            "bytes": size,
            "bytes_per_second": round(size / seconds) if seconds > 0 else 0,
            "phases": phases_of(report.phases),
        }
        written = self._job.history.add("save", outcome="done", **line)
        if self._metrics is not None:
            self._metrics.count("varve_saves", 1, "done")
            self._metrics.set("varve_save_bytes", size)
            self._metrics.set("varve_save_seconds", seconds)
            self._metrics.set("varve_stall_seconds", save.stall)
            self._metrics.set("varve_last_save_timestamp_seconds", time.time())
            self._metrics.set("varve_last_step", save.step)
            self._metrics.write()
        if self._job.settings.on_saved is not None:
            self.call(self._job.settings.on_saved, written)

    def call(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Calls a user's function; what it raises costs nothing that follows the save."""
        try:
            callback(*arguments)
        except Exception:
            _LOG.exception("the manager of %s: a callback has failed", self._run)

    def tell_failure(self, step: int, error: BaseException) -> None:
        """Calls the user's function for a save or upload that has failed, if there is one."""
        if self._job.settings.on_failure is not None:
            self.call(self._job.settings.on_failure, step, error)

    def count_upload(self, outcome: str, step: int | None = None) -> None:
        """Notes in the metrics that an upload has ended, of which step if it was made."""

        def count() -> None:
            if self._metrics is not None:
                self._metrics.count("varve_uploads", 1, outcome)
                if step is not None:
                    self._metrics.set("varve_last_uploaded_step", step)
                    self._metrics.set("varve_last_upload_timestamp_seconds", time.time())
                self._metrics.write()

        self.later(count)

    # ---- what goes ----

    def prune_by_rules(self, attempt: int) -> None:
        """Removes what the rules do not keep, if there are any."""
        if self._job.rank == 0 and self._keep.any:
            self.prune(attempt, _BUSY_SHARE)

    def make_room(self, attempt: int) -> None:
        """Removes what the rules do not keep, where no save has been made before.

        Only while the newest step is the one that this job has saved last or goes on from: the rules keep
        the newest, and would remove that one where the job went back.
        """
        if not self._keep.any:
            return
        steps = [one for one in manage.list_steps(self._run) if one.attempt > 0 and is_whole(one)]
        mine = [one for one in steps if one.name.rstrip("0123456789") == self._prefix]
        if mine and mine[-1].name == self._stands_on:
            self.prune(attempt, 1.0)

    def _check_metric(self, steps: list[manage.PrunedStep]) -> None:
        """Warns, once, where the best are to be kept by a metric that no step has, but others."""
        by = self._keep.by
        known = {name for one in steps for name in one.step.metrics}
        if self._warned_of_metric or by is None or not known or by in known:
            return
        self._warned_of_metric = True
        _LOG.warning(
            "keep: no step of %s has the metric %r, by which the best are to be kept; steps have %s",
            self._run,
            by,
            ", ".join(sorted(known)),
        )

    def prune(self, attempt: int, busy_share: float) -> None:
        """Removes the steps that the rules do not keep."""
        if not self.may_remove or not self._job.places.allows_removal(self._run):
            return
        found = manage.prune(self._run, self._keep.rules(), False, busy_share, self._prefix, True)
        self._check_metric(found)
        for one in found:
            if not one.removed:
                continue
            step = one.step
            self._job.history.add(
                "remove", attempt=attempt, step=step.step, name=step.name, bytes=step.bytes
            )
            if self._metrics is not None:
                self._metrics.count("varve_removed_steps", 1)
                self._metrics.write()

    def collect_garbage(self) -> None:
        """Removes what dead saves of earlier jobs left."""
        removed = _core.collect_garbage(self._run, False)
        if removed:
            _LOG.info("removed what dead saves left in %s: %d paths", self._run, len(removed))


def _work_off(work: queue.SimpleQueue[Callable[[], None] | None], run: str) -> None:
    """The thread. It refers to no FollowUp, whose callbacks may refer to a manager."""
    while (task := work.get()) is not None:
        try:
            task()
        except Error as error:
            _LOG.warning("the manager of %s: after a save: %s", run, error)
        except Exception:
            _LOG.exception("the manager of %s: what follows a save has failed", run)
        del task


def _bytes_of(path: str) -> int:
    try:
        return _core.Reader(path, False).bytes
    except Error as error:  # Another process has removed it.
        _LOG.info("the size of %s is not known: %s", path, error)
        return 0
