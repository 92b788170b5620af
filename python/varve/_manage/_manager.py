"""The manager of a run, for any backend: what `varve.CheckpointManager` and that of `varve.torch` share.

What a call of `save` costs where it does not save: a look at the verdict of rank 0, which has come while the
step was computed (_agreement.py). What follows a save is in _followup.py, where a run goes on in _resume.py.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal

from varve import _arguments
from varve._core import LoadReport, manage
from varve._engine import path_text
from varve._files import Source as FileSource
from varve._files import taken
from varve._manage._agreement import Agreement, Chair, Posted, decoded, encoded
from varve._manage._backend import Backend
from varve._manage._costs import Interval
from varve._manage._endings import Requests, Signals
from varve._manage._followup import FollowUp, Save
from varve._manage._history import History, observed_mtbf
from varve._manage._inputs import (
    Settings,
    check_settings,
    is_whole,
    keep_of,
    measured,
    name_prefix,
    step_number,
    upload_place,
)
from varve._manage._place import place_of
from varve._manage._places import Chosen, Places, path_of
from varve._manage._uploads import Uploads
from varve._tree import is_stateful
from varve.errors import (
    BY_CODE,
    CorruptCheckpointError,
    Error,
    InvalidArgumentError,
    UnavailableError,
)

_LOG = logging.getLogger("varve")

#: The side file with what a manager knows of a step; StepNote in include/varve/manage.h.
_NOTE_NAME = "varve-step.json"

#: Seconds that a resume waits for the agent to write what a killed job has left with it.
_AGENT_PATIENCE = 1800.0

#: Managers that are not closed.
_open: weakref.WeakSet[Manager] = weakref.WeakSet()


class Manager:
    """See `varve.torch.CheckpointManager`, whose docstring is for both."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._run = path_text(settings.run)
        self._every, self._keep, ending = check_settings(settings)
        self._settings = settings
        self._remote = upload_place(settings)
        self._closed = False
        self._timeout = _arguments.seconds("timeout", settings.timeout)
        self._preempted = ""
        self._resumed_from: int | None = None
        self._last: tuple[int, Future[Any]] | None = None
        self._left_behind = ""  # On rank 0: the newest step, until this job goes on from one.
        self._place = place_of(self._run)
        self._history = History(self._run, self._place)
        self._places = Places(self._run, self._remote, settings, self._history, self._place)
        self._attempt = int(self._decide(f"manage {os.path.basename(self._run)}", self._open))
        self._after = FollowUp(
            self._run,
            self._keep,
            name_prefix(settings.name),
            backend.rank,
            backend.size,
            self._history,
            settings.metrics_file,
            settings.on_saved,
            settings.on_failure,
            self._places.forget_restarts,
            self._places.lock,
        )
        self._uploads: Uploads | None = None
        if self._remote:
            self._uploads = Uploads(
                self._run,
                self._remote,
                keep_of(settings.keep_uploaded),
                name_prefix(settings.name),
                backend.background("the uploads of a run"),
                self._history,
                self._after,
                self._places.remote_lock,
                settings.on_failure,
                self._timeout,
            )
            self._uploads.catch_up(self._attempt)
        mtbf = observed_mtbf(self._run) if backend.rank == 0 else None
        self._interval = Interval(self._every, mtbf) if self._every is not None else None
        self._requests = Requests(self._run, self._place, ending)
        if backend.rank == 0:
            self._requests.forget()
        self._signals = Signals(tuple(ending.signals))
        self._last_begin = time.monotonic()
        chair = Chair(self._wishes) if backend.rank == 0 else None
        self._agreement = Agreement(backend.channel(), chair)
        if backend.rank == 0:
            where = {"host": socket.gethostname(), "pid": os.getpid()}
            self._history.add("start", attempt=self._attempt, world_size=backend.size, **where)
            self._after.later(self._after.collect_garbage)
        atexit.register(self._at_exit)
        _open.add(self)

    # ---- for users ----

    @property
    def run(self) -> str:
        """The run's directory."""
        return self._run

    @property
    def preempted(self) -> bool:
        """True once a save was made because the run is to end: leave the loop and call `close`."""
        return bool(self._preempted)

    @property
    def stop_reason(self) -> str:
        """Why it is to end: "SIGTERM on rank 3"; "" where it is not."""
        return self._preempted

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        files: Mapping[str, FileSource] | None = None,
        force: bool = False,
    ) -> Future[Any] | None:
        """Saves if it is time to. To be called after every step, on all ranks, with the same steps.

        Args:
            step: The step that is done, from 0 on.
            state: As in `save` of the package, or a function that returns it, which is called only where a
                save is made.
            metrics: Values by name, for `Keep(best=...)` and the history. Numbers, tensors of one element,
                or functions that return one; they are looked at only where a save is made. Rank 0's count.
            files: As in `save` of the package.
            force: Save whatever the policy says; the same on all ranks.

        Returns:
            The save's future, or None where none was made. A save that fails is logged, counted and
            given to `on_failure`; the future has its error.

        Raises:
            InvalidArgumentError: The ranks are at different steps.
            UnavailableError: A rank is lost, or `max_failures` saves in a row have failed.
        """
        self._usable()
        number = step_number(step)
        if self._backend.rank == 0:
            self._after.tick(time.monotonic())
        verdict = self._agreement.verdict(number, lambda: Posted(number, self._signals.received))
        if verdict.give_up:
            raise UnavailableError(verdict.give_up, path=self._run)
        stop = "" if self._preempted else verdict.stop
        if stop:
            self._preempted = stop
            if self._backend.rank == 0:
                _LOG.warning("the run ends after step %d: %s", number, verdict.stop)
        due = self._every is not None and self._every.at(number)
        reason = stop or verdict.save or ("on demand" if force else "")
        if not reason and due:
            reason = "by its step"
        if not reason:
            return None
        last = self._last
        # Its outcome is the same on all ranks; whether it has ended is not.
        if last is not None and last[0] == number and last[1].exception() is None:
            return last[1]
        return self._begin(number, state, metrics, files, reason)

    def protect(
        self, step: int, state: Any, *, files: Mapping[str, FileSource] | None = None
    ) -> Future[Any]:
        """Leaves a copy of the state with this node's agent, which writes it only if this job ends.

        For each step between saves: a job that is killed loses none of them then. Collective. Needs a
        manager with executor="process", whose memory has room for two copies more; see `defer_save`.
        """
        self._usable()
        number = step_number(step)
        return self._backend.protect(state, self._path(number), self._files(number, {}, files))

    def resume(self, state: Any, **options: Any) -> int | None:
        """Loads the newest good step into `state`, on all ranks, whatever world saved it.

        A damaged step is put into quarantine (a hidden name, listed by `varve ls` with the reason) and
        the next older one is taken, the same on all ranks. I/O errors are raised: they are no damage.

        Args:
            state: As in `load` of the package.
            **options: Further arguments of `load`, such as `strict` and `keys`.

        Returns:
            The step that was loaded, None where there is nothing to resume.

        Raises:
            CorruptCheckpointError: There were steps, and none of them is whole.
            InvalidArgumentError, UnavailableError: As `load`.
        """
        self._usable()
        self._backend.wait_for_agent(self._run, _AGENT_PATIENCE)
        self._outcomes("ok")  # All agents are done before rank 0 looks.
        began = time.monotonic()
        while True:
            chosen = self._decide("choose a step to resume from", self._choose)
            if chosen is None:
                if self._backend.rank == 0:
                    _LOG.info("resume: there is nothing in %s", self._run)
                return None
            report = self._try_load(state, chosen, options)
            if report is not None:
                return self._went_on(chosen, report, time.monotonic() - began)

    def restore(self, step: int, state: Any, **options: Any) -> LoadReport:
        """Loads one step, and goes on from there: what is saved then is newer than what was left behind.

        Raises CheckpointNotFoundError where there is no such step, and what `load` raises.
        """
        self._usable()
        number = step_number(step)
        chosen = self._decide(f"find step {number}", lambda: self._places.find(number))
        began = time.monotonic()
        report = self._backend.load(state, path_of(chosen), options)
        self._attempt += 1
        self._went_on(chosen, report, time.monotonic() - began)
        return report

    def steps(self) -> list[manage.RunStep]:
        """Returns the steps of the run, from the oldest to the newest, with those that are not whole."""
        return manage.list_steps(self._run)

    def latest(self) -> manage.RunStep | None:
        """Returns the newest whole step; None where there is none."""
        whole = [step for step in self.steps() if is_whole(step)]
        return whole[-1] if whole else None

    def best(
        self, by: str | None = None, mode: Literal["min", "max"] | None = None
    ) -> manage.RunStep | None:
        """Returns the whole step with the best value of a metric; None where none has it.

        Args:
            by: The metric; by default that of `keep`.
            mode: "min" or "max"; by default that of `keep`.
        """
        name = by if by is not None else self._keep.by
        if name is None:
            raise InvalidArgumentError('best: by which metric? Such as best(by="loss")')
        known = [
            step
            for step in self.steps()
            if is_whole(step) and step.metrics.get(name, float("nan")) == step.metrics.get(name)
        ]
        if not known:
            return None
        sign = -1 if (mode or self._keep.mode) == "max" else 1
        return min(reversed(known), key=lambda step: sign * step.metrics[name])

    def pin(self, step: int, why: str = "") -> None:
        """Keeps a step from being removed by rules, until `unpin`. By any rank, for itself."""
        manage.pin(path_of(self._places.find(step_number(step), here=True)), why)

    def unpin(self, step: int) -> None:
        """Takes the pin of a step away."""
        manage.unpin(path_of(self._places.find(step_number(step), here=True)))

    def wait(self) -> None:
        """Waits for the saves under way and what follows them: uploads, history, retention, callbacks."""
        self._usable()
        self._drain()

    def close(self) -> None:
        """Waits for the saves under way, removes what the rules do not keep, and ends. Again at will."""
        self._close("done")

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        self._close("done", error)

    # ---- opening and closing ----

    def _open(self) -> int:
        """On rank 0: locks the run; returns the number of this attempt."""
        attempt, self._left_behind = self._places.take()
        return attempt

    def _at_exit(self) -> None:
        """Closes a manager that the program has not closed, as after an error outside of a `with`."""
        self._close("never closed", getattr(sys, "last_value", None))

    def _close(self, outcome: str, error: BaseException | None = None) -> None:
        if self._closed:
            return
        try:
            self._drain(once_more=error is None)
            if self._backend.rank == 0 and self._keep.any and self._last is not None:
                self._after.later(lambda: self._after.prune(self._attempt, 1.0))
            self._after.finish()
        except BaseException:
            if self._uploads is not None:
                self._uploads.abort()
            raise
        finally:
            self._closed = True
            atexit.unregister(self._at_exit)
            self._signals.restore()
            self._place.close()
            self._agreement.close()
            if self._uploads is not None:
                self._uploads.close()
            self._after.close()
            self._backend.close()
            if self._backend.rank == 0:
                failed = isinstance(error, Exception) and not self._preempted
                outcome = outcome if error is None else f"{type(error).__name__}: {error}"
                outcome = self._preempted or outcome
                self._history.add("end", attempt=self._attempt, outcome=outcome, failed=failed)
            self._places.release()

    def _drain(self, once_more: bool = True) -> None:
        self._backend.drain()
        self._after.finish()
        if self._uploads is not None:
            self._uploads.drain(once_more)
            self._after.finish()

    def _usable(self) -> None:
        if self._closed:
            raise InvalidArgumentError(f"the manager of {self._run} is closed")

    # ---- agreement ----

    def _decide(self, what: str, action: Callable[[], Any]) -> Any:
        """Returns what rank 0's action returns, on all ranks; raises its error on all of them."""
        with self._backend.call(what) as call:
            told: list[Any] = []
            if self._backend.rank == 0:
                try:
                    told = ["ok", action()]
                except Error as error:
                    if call is None:
                        raise
                    told = [error.code, str(error)]
            if call is not None:
                told = decoded(call.share(encoded(told), self._timeout))
        if told[0] != "ok":
            raise BY_CODE[told[0]](told[1], path=self._run)
        return told[1]

    def _outcomes(self, mine: str) -> set[str]:
        """Returns the outcomes of all ranks."""
        with self._backend.call("compare outcomes") as call:
            if call is None:
                return {mine}
            return {one.decode() for one in call.gather(mine.encode(), self._timeout)}

    def _wishes(self, step: int) -> tuple[str, str, str]:
        """On rank 0, as of now: why to save, why to end, and why to give up. Any thread."""
        stop = self._requests.stop(self._after.costs.slowest)
        save = self._requests.save()
        failures = self._after.failures_in_row
        seconds = self._interval.seconds(self._after.costs) if self._interval is not None else None
        if not save and not self._after.busy and seconds is not None:
            passed = time.monotonic() - self._last_begin
            save = f"{passed:.0f} s have passed" if passed >= seconds else ""
        limit = self._settings.max_failures
        give_up = self._after.overtaken
        if not give_up and limit is not None and len(failures) >= limit:
            give_up = f"{len(failures)} saves in a row have failed in {self._run}, the last with: {failures[-1]}"
        return save, stop, give_up

    # ---- saves ----

    def _begin(
        self,
        step: int,
        state: Any,
        metrics: Mapping[str, Any] | None,
        files: Mapping[str, FileSource] | None,
        reason: str,
    ) -> Future[Any]:
        values = measured(metrics)
        save = Save(step, self._path(step), self._attempt, reason, values, time.time())
        given = self._files(step, values, files)
        if self._left_behind:
            self._after.begins_anew(self._left_behind)
        if callable(state) and not isinstance(state, Mapping) and not is_stateful(state):
            state = state()
        if self._uploads is not None:
            self._uploads.promise(save.path)
        began = self._last_begin = time.monotonic()
        with self._after.began(save):
            future = self._backend.save(state, save.path, given, save.ended)
        save.stall = time.monotonic() - began
        self._after.stalled(save.stall)
        self._last = (step, future)
        return future

    def _files(
        self, step: int, metrics: dict[str, float], files: Mapping[str, FileSource] | None
    ) -> dict[str, bytes]:
        """The side files of a save, with the note; rank 0's count."""
        if self._backend.rank != 0:
            return {}
        found = dict(taken(files))
        if _NOTE_NAME in found:
            raise InvalidArgumentError(f"files: {_NOTE_NAME!r} is the manager's own")
        found[_NOTE_NAME] = manage.step_note(
            step, self._attempt, self._resumed_from, time.time_ns(), metrics
        )
        return found

    def _path(self, step: int) -> str:
        return os.path.join(self._run, self._settings.name.format(step=step))

    # ---- resume ----

    def _choose(self) -> Chosen | None:
        chosen = self._places.choose()
        # The agent may have written steps of the job before since this one was begun.
        newest = max((one.attempt for one in manage.list_steps(self._run)), default=0)
        self._attempt = max(self._attempt, newest + 1)
        return chosen

    def _try_load(
        self, state: Any, chosen: Chosen, options: Mapping[str, Any]
    ) -> LoadReport | None:
        """Loads a step; None where it was damaged, and is out of the way now."""
        report: LoadReport | None = None
        failed: Exception | None = None
        path = path_of(chosen)
        try:
            report = self._backend.load(state, path, options)
        except Exception as error:
            failed = error
        damaged = isinstance(failed, CorruptCheckpointError)
        outcomes = self._outcomes("damaged" if damaged else "failed" if failed else "ok")
        if outcomes == {"ok"}:
            return report
        if "failed" in outcomes or (failed is None and "damaged" not in outcomes):
            if failed is not None:
                raise failed
            raise UnavailableError(f"resume from {path}: another rank has failed", path=path)
        reason = str(failed) if failed is not None else "another rank has found damage"
        self._decide("pass over a damaged step", lambda: self._places.pass_over(chosen, reason))
        return None

    def _went_on(self, chosen: dict[str, Any], report: LoadReport, seconds: float) -> int:
        step = int(chosen["step"])
        self._resumed_from = step
        self._last_begin = time.monotonic()
        self._left_behind, self._after.may_remove = "", True
        self._last = None  # What is saved now is not what was saved under this number before.
        if self._backend.rank == 0:
            passed_over = self._places.went_on(chosen)
            where = path_of(chosen)
            _LOG.info("resumed from step %d (%s) in %.1f s", step, where, seconds)
            self._after.loaded(self._attempt, step, chosen["name"], seconds, report, passed_over)
        return step


def _in_child() -> None:
    """A forked child has neither the threads nor the lock of its parent's managers: closed to it."""
    for manager in list(_open):
        manager._closed = True
        manager._signals.in_child()
        manager._places.release()  # The child's hold of the locks; the parent keeps its own.


os.register_at_fork(after_in_child=_in_child)
