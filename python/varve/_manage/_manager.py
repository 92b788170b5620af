"""The manager of a run, for any backend: what `varve.CheckpointManager` and that of `varve.torch` share.

A call of `save` that saves nothing only looks at the decision of rank 0, which has arrived while the step was
computed (_agreement.py). _followup.py does what follows a save. _resume.py finds the step to go on from.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from varve import _arguments
from varve._core import LoadReport, manage
from varve._engine import path_text
from varve._files import Source as FileSource
from varve._files import taken
from varve._manage import _opened
from varve._manage._agreement import Agreement, Chair, Posted, weakly
from varve._manage._asked import FailedState, FunctionFailed, measured, state_of
from varve._manage._backend import Backend
from varve._manage._closing import drain, end_saves
from varve._manage._contents import other_contents, refuse_checkpoint, tell_of_nothing
from varve._manage._costs import Interval, needs_mtbf
from varve._manage._endings import Requests, Signals
from varve._manage._followup import FollowUp, Save
from varve._manage._history import History, observed_mtbf
from varve._manage._inputs import Settings, check_settings, step_number, upload_place
from varve._manage._lock import warn_of_later_steps
from varve._manage._place import place_of
from varve._manage._places import Chosen, Job, Places, path_of
from varve._manage._policy import Ending
from varve._manage._steps import RunSteps
from varve._manage._uploads import Uploads
from varve.errors import CorruptCheckpointError, InvalidArgumentError, UnavailableError

_LOG = logging.getLogger("varve")

#: The side file with what a manager knows of a step; StepNote in include/varve/manage.h.
_NOTE_NAME = "varve-step.json"

#: The reason of a save after one in which the ranks did not meet: a rank that missed that waits in the next.
_AGAIN = "the save of an earlier step has failed"

#: Seconds that a resume waits for the agent to write what a killed job has left with it.
_AGENT_TIMEOUT = 1800.0


class Manager(RunSteps):
    """See `varve.torch.CheckpointManager`, whose docstring is for both."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._run = path_text(settings.run)
        self._every, self._keep, ending = check_settings(settings)
        self._settings = settings
        self._remote = upload_place(settings)
        self._closed = True  # Until it is whole.
        self._timeout = _arguments.seconds("timeout", settings.timeout)
        self._preempted = ""
        self._resumed_from: int | None = None
        self._last: tuple[int, Future[Any]] | None = None
        self._reached = -1  # The step that this job has gone on from, or saved last.
        self._left_behind = ""  # On rank 0: the newest step, until this job goes on from one.
        self._contents = ""  # On rank 0: what the run holds, where that are no steps.
        self._again = ""
        with contextlib.ExitStack() as undo:  # An error, or Ctrl-C, leaves nothing behind.
            self._begin_job(backend, settings, ending, undo)
            undo.pop_all()
        self._closed = False
        _opened.note(self)

    def _begin_job(
        self, backend: Backend, settings: Settings, ending: Ending, undo: contextlib.ExitStack
    ) -> None:
        undo.callback(backend.close)
        self._place = place_of(self._run)
        undo.callback(self._place.close)
        self._history = History(self._run, self._place)
        self._places = Places(self._run, self._remote, settings, self._history, self._place)
        undo.callback(self._places.release)
        self._mtbf: float | None = None  # On rank 0.
        doing = f"manage {os.path.basename(self._run)}"
        self._attempt = int(backend.of_rank_0(doing, self._open))
        job = Job(
            self._run, settings, self._keep, backend.rank, backend.size, self._history, self._places
        )
        self._after = FollowUp(job)
        undo.callback(self._after.close)
        self._uploads: Uploads | None = None
        if self._remote:
            channel = backend.background("the uploads of a run")
            self._uploads = Uploads(job, self._remote, channel, self._after, self._timeout)
            undo.callback(self._uploads.close)
            undo.callback(self._uploads.abort)
            self._uploads.catch_up(self._attempt)
        self._interval = Interval(self._every, self._mtbf) if self._every is not None else None
        self._requests = Requests(self._run, self._place, ending)
        if backend.rank == 0:
            self._requests.forget()
        self._signals = Signals(tuple(ending.signals))
        undo.callback(self._signals.restore)
        self._last_begin = time.monotonic()
        chair = Chair(weakly(self._wishes, ("", "", ""))) if backend.rank == 0 else None
        self._agreement = Agreement(backend.channel(), chair)
        undo.callback(self._agreement.close)
        if backend.rank == 0:
            where = {"host": socket.gethostname(), "pid": os.getpid()}
            self._history.add("start", attempt=self._attempt, world_size=backend.size, **where)
            self._after.later(self._after.collect_garbage)

    # ---- for users ----

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

        Steps are kept in the order in which they were saved. A step below the one before counts as newer
        than all that the run has, and so do the saves after it; a warning says so.

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
        self._usable(saves=True)
        number = step_number(step)
        if self._backend.rank == 0:
            self._after.tick(time.monotonic())
        verdict = self._agreement.verdict(
            number,
            lambda: Posted(number, self._signals.received),
            lambda: self._backend.tell_past(self._path(number)),
        )
        if verdict.give_up:
            raise UnavailableError(verdict.give_up, path=self._run)
        stop = "" if self._preempted else verdict.stop
        if stop:
            self._preempted = stop
            if self._backend.rank == 0:
                _LOG.warning("the run ends after step %d: %s", number, verdict.stop)
        due = self._every is not None and self._every.at(number)
        again, self._again = self._again, ""
        reason = stop or verdict.save or ("on demand" if force else again)
        reason = reason or ("by its step" if due else "")
        if not reason:
            return None
        last = self._last
        # Its outcome is the same on all ranks; whether it has ended is not.
        if last is not None and last[0] == number and last[1].exception() is None:
            return last[1]
        if stop or force:
            self._backend.make_room()
        return self._begin(number, state, metrics, files, reason)

    def protect(
        self, step: int, state: Any, *, files: Mapping[str, FileSource] | None = None
    ) -> Future[Any]:
        """Leaves a copy of the state with this node's agent, which writes it only if this job ends.

        For each step between saves: a job that is killed loses none of them then. Collective. Needs a
        manager with executor="process", whose memory has room for two copies more; see `defer_save`.
        """
        self._usable(saves=True)
        number = step_number(step)
        self._reach(number)
        return self._backend.protect(state, self._path(number), self._files(number, {}, files))

    def resume(self, state: Any, *, required: bool = False, **options: Any) -> int | None:
        """Loads the newest good step into `state`, on all ranks, whatever world saved it.

        A damaged step is put into quarantine (a hidden name, listed by `varve ls` with the reason) and
        the next older one is taken, the same on all ranks. I/O errors are raised: they are no damage.

        Args:
            state: As in `load` of the package.
            required: Raise where there is nothing to resume, on all ranks.
            **options: Further arguments of `load`, such as `strict` and `keys`.

        Returns:
            The step that was loaded, None where there is nothing to resume. Warns where the run holds
            checkpoints none of which is a step.

        Raises:
            CheckpointNotFoundError: `required`, and there is no step.
            CorruptCheckpointError: There were steps, and none of them is whole.
            InvalidArgumentError, UnavailableError: As `load`.
        """
        self._usable()
        self._backend.drain()  # What this job has saved counts.
        self._backend.wait_for_agent(self._run, _AGENT_TIMEOUT)
        self._backend.outcomes("ok")  # All agents are done before rank 0 looks.
        self._places.begin_resume()
        began = time.monotonic()
        while True:
            chosen = self._backend.of_rank_0("choose a step to resume from", self._choose)
            if chosen is None:
                contents = self._backend.of_rank_0("say what the run holds", lambda: self._contents)
                tell_of_nothing(self._run, contents, required, self._backend.rank == 0)
                return None
            report = self._try_load(state, chosen, options)
            if report is not None:
                return self._went_on(chosen, report, time.monotonic() - began)

    def restore(self, step: int, state: Any, **options: Any) -> LoadReport:
        """Loads one step, and goes on from there: what is saved then is newer than what was left behind.

        Warns where later steps are left behind.

        Raises CheckpointNotFoundError where there is no such step, and what `load` raises.
        """
        self._usable()
        self._backend.drain()
        number = step_number(step)
        chosen = self._backend.of_rank_0(f"find step {number}", lambda: self._places.find(number))
        began = time.monotonic()
        report = self._backend.load(state, path_of(chosen), options)
        self._attempt += 1
        if self._backend.rank == 0 and chosen["later"]:
            warn_of_later_steps(self._run, number, chosen["later"])
        self._went_on(chosen, report, time.monotonic() - began)
        return report

    def wait(self) -> None:
        """Waits for the saves under way and what follows them: uploads, history, retention, callbacks."""
        self._usable()
        drain(self._backend, self._after, self._uploads)

    def close(self) -> None:
        """Waits for the saves under way, removes what the rules do not keep, and ends. Again at will.

        Ctrl-C meanwhile is raised when the saves have ended; Ctrl-C once more cancels them.
        """
        self._close("done")

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        self._close("done", error)

    # ---- opening and closing ----

    def _open(self) -> int:
        """On rank 0: locks the run, and reads what there is; returns the number of this attempt."""
        refuse_checkpoint(self._run)
        _opened.make_way(self._run)
        attempt, self._left_behind = self._places.take()
        self._contents = "" if self._left_behind else other_contents(self._run)
        if needs_mtbf(self._every):
            self._mtbf = observed_mtbf(self._run)
        return attempt

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            _opened.abandon(self)

    def _give_up(self, error: BaseException | None) -> None:
        """Closes it for a program that has not."""
        self._close("never closed", error)

    def _leave_to_parent(self) -> None:
        """Closes it in a forked child, which has neither its threads nor its lock."""
        self._closed = True
        self._signals.in_child()
        self._places.release()  # The child's hold of the locks; the parent keeps its own.

    def _close(self, outcome: str, error: BaseException | None = None) -> None:
        if self._closed:
            return
        self._signals.closing = True
        cause = error
        with contextlib.ExitStack() as ending:  # Each of these is done, whatever the others raise.
            ending.callback(self._places.release)
            ending.callback(lambda: self._note_end(outcome, cause))
            ending.callback(self._backend.close)
            ending.callback(self._after.close)
            if self._uploads is not None:
                ending.callback(self._uploads.close)
            ending.callback(self._agreement.close)
            ending.callback(self._place.close)
            ending.callback(self._signals.restore)
            ending.callback(_opened.forget, self)
            ending.callback(setattr, self, "_closed", True)
            try:
                end_saves(self._run, self._backend, self._after, self._uploads, self._remove, error)
            except BaseException as failure:
                cause = error or failure
                raise

    def _remove(self) -> None:
        if self._backend.rank == 0 and self._last is not None:
            self._after.later(lambda: self._after.make_room(self._attempt))

    def _note_end(self, outcome: str, error: BaseException | None) -> None:
        if self._backend.rank == 0:
            failed = isinstance(error, Exception) and not self._preempted
            outcome = outcome if error is None else f"{type(error).__name__}: {error}"
            self._history.add(
                "end", attempt=self._attempt, outcome=self._preempted or outcome, failed=failed
            )

    def _usable(self, saves: bool = False) -> None:
        # `close` waits for the saves that have begun: it lets no further one begin.
        if self._closed or (saves and self._signals.closing):
            raise InvalidArgumentError(f"the manager of {self._run} is closed")

    # ---- agreement ----

    def _wishes(self) -> tuple[str, str, str]:
        """On rank 0, as of now: why to save, why to end, and why to give up. Any thread."""
        stop = self._requests.stop(self._after.costs.slowest)
        save = self._requests.save()
        failures = self._after.failures_in_row
        seconds = self._interval.seconds(self._after.costs) if self._interval is not None else None
        if not save and not self._after.busy and seconds is not None:
            passed = time.monotonic() - self._last_begin
            save = f"{passed:.0f} s have passed" if passed >= seconds else ""
        limit = self._settings.max_failures
        give_up = self._places.overtaken
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
        values: dict[str, float] = {}
        given: dict[str, bytes] = {}
        failure: Exception | None = None
        self._reach(step)
        try:
            values = measured(metrics)
            given = self._files(step, values, files)
            state = state_of(state)
        except Exception as error:
            if self._backend.size == 1 and not isinstance(error, FunctionFailed):
                raise
            failure, state = error, FailedState(error)  # The save tells the other ranks.
        save = Save(step, self._path(step), self._attempt, reason, values, time.time())
        if self._left_behind:
            self._after.begins_anew(self._left_behind)
        if self._uploads is not None:
            self._uploads.promise(save.path)
        self._last_begin = time.monotonic()
        with self._after.began(save):
            future = save.future = self._backend.save(state, save.path, given, save.ended)
        save.stall = time.monotonic() - self._last_begin
        self._after.stalled(save.stall)
        self._last = (step, future)
        if reason != _AGAIN and future.done() and isinstance(future.exception(), UnavailableError):
            self._again = _AGAIN
        if failure is not None and not isinstance(failure, FunctionFailed):
            raise failure
        return future

    def _reach(self, step: int) -> None:
        """Begins a new attempt where a step is below the last one: saves count in the order of their calls."""
        if step < self._reached:
            self._attempt += 1
            if self._backend.rank == 0:
                warn_of_later_steps(self._run, step, f"step {self._reached}")
        self._reached = step

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
        outcomes = self._backend.outcomes("damaged" if damaged else "failed" if failed else "ok")
        if outcomes == {"ok"}:
            return report
        if "failed" in outcomes or (failed is None and "damaged" not in outcomes):
            if failed is not None:
                raise failed
            raise UnavailableError(f"resume from {path}: another rank has failed", path=path)
        reason = str(failed) if failed is not None else "another rank has found damage"
        self._backend.of_rank_0(
            "pass over a damaged step", lambda: self._places.pass_over(chosen, reason)
        )
        return None

    def _went_on(self, chosen: dict[str, Any], report: LoadReport, seconds: float) -> int:
        step = int(chosen["step"])
        self._resumed_from = self._reached = step
        self._last_begin = time.monotonic()
        self._left_behind, self._after.may_remove = "", True
        self._last = None  # What is saved now is not what was saved under this number before.
        passed_over = self._backend.of_rank_0(
            "go on from a step", lambda: self._places.went_on(chosen, report.unexpected)
        )
        if self._backend.rank == 0:
            _LOG.info("resumed from step %d (%s) in %.1f s", step, path_of(chosen), seconds)
            self._after.loaded(self._attempt, step, chosen["name"], seconds, report, passed_over)
        return step
