"""async_save by torch's planner, on a thread that does nothing else; for what the engine does not take.

Torch's own thread does not do this:

* The copy is made by several threads of the engine into memory that has been used before, and goes
  nowhere near the tensors' own storages: a save finds its own elements there, whatever became of
  the objects of an earlier one.
* The messages of the ranks in the background go over a channel of their own. So a save neither waits
  behind a collective of the training nor comes between two of them, and needs no CPU backend in the
  caller's group.

Stagers of the caller's are asked for copies as torch asks them.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any, cast

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata

from varve.torch._failures import LOG
from varve.torch.dcp._copy import StateCopy
from varve.torch.dcp._events import log_step
from varve.torch.dcp._executors import executor_of
from varve.torch.dcp._functions import save_plain
from varve.torch.dcp._job import AsyncSave, Job
from varve.torch.dcp._ranks import Group

#: Torch's result where copies are made in the background; torch 2.6 has none.
_Response: Any = getattr(state_dict_saver, "AsyncSaveResponse", None)


def save_by_thread(job: Job, stager: Any) -> Any:
    """Saves a copy on the thread of the group; `stager` makes it, or this package where that is None."""
    executor = executor_of(job.group)
    executor.room.acquire()
    copy: _Copy | None = None
    plain, failure = job.state, job.failure

    def make(plain: dict[str, Any]) -> _Copy:
        return _StagersCopy(stager, plain) if stager else executor.copier.copy(plain)

    try:
        if plain is not None:
            try:
                copy = log_step("stage_state_dict", lambda: make(plain))
            except BaseException as error:
                failure = error  # The others are about to wait for this rank in their threads.
        ranks = job.group.in_background(job.what)
    except BaseException:
        if copy is not None:
            copy.release()
        executor.room.release()
        raise
    out = AsyncSave()
    staged = copy.staged if isinstance(copy, _StagersCopy) else None
    if staged is not None:
        staged.add_done_callback(
            lambda done: _end_staging(
                out, CancelledError() if done.cancelled() else done.exception()
            )
        )
    else:
        _end_staging(out, failure)

    def run() -> None:
        reason: BaseException | None = failure
        metadata = None
        problem: BaseException | None = None
        state: dict[str, Any] = {}
        try:
            if copy is not None:
                try:
                    state = copy.state
                except BaseException as error:  # Torch's CheckpointException is no Exception.
                    reason = error
            metadata = _save(job, ranks, state, reason)
        except BaseException as error:
            problem = error
        finally:
            ranks.close()  # Also where an error has kept this rank from the call.
        # Memory for the next copy is free before the future of this save is done.
        if copy is not None:
            copy.release()
        executor.room.release()
        if problem is None:
            assert metadata is not None
            out.set_result(metadata)
        else:
            if job.group.rank == 0:
                LOG.error("a background save has failed: %s", problem)
            out.set_exception(problem)

    executor.thread.submit(run)
    if failure is not None and not isinstance(failure, Exception):
        raise failure  # Ctrl-C. The thread tells the other ranks.
    if staged is not None:
        return _Response(staging_completion=out.staging_completion, upload_completion=out)
    if failure is None:
        log_step("maybe_synchronize_staging", lambda: _synchronize(stager))
    return out


def _save(job: Job, group: Group, state: dict[str, Any], failure: BaseException | None) -> Metadata:
    """Saves a copy, on the thread; or reports a failure to the other ranks."""
    if failure is None:
        try:
            job.reset()
        except Exception as error:
            failure = error

    def save() -> Metadata:
        return save_plain(
            job.what,
            group,
            state,
            failure,
            job.writer,
            job.planner,
            job.use_collectives,
        )

    return log_step(
        "save",
        save,
        checkpoint_id=job.checkpoint_id,
        storage_writer=job.writer,
        planner=job.planner,
    )


def _synchronize(stager: Any) -> None:
    if stager is not None and stager.should_synchronize_after_execute:
        stager.synchronize_staging()


def _end_staging(out: AsyncSave, failure: BaseException | None) -> None:
    if failure is None:
        out.staging_completion.set_result(None)
    else:
        out.staging_completion.set_exception(failure)


class _StagersCopy:
    """The copy of a state that a caller's stager has made, or a future of it."""

    def __init__(self, stager: Any, state: dict[str, Any]) -> None:
        self._made: Any = stager.stage(state)

    @property
    def staged(self) -> Future[dict[str, Any]] | None:
        """The future, where there is one."""
        return self._made if isinstance(self._made, Future) else None

    @property
    def state(self) -> dict[str, Any]:
        """Waits for it."""
        staged = self.staged
        return cast("dict[str, Any]", self._made if staged is None else staged.result())

    def release(self) -> None:
        """The memory is the stager's."""
        self._made = None


_Copy = StateCopy | _StagersCopy
