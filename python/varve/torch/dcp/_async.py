"""async_save: a copy in memory that is kept, then `save` on a thread that does nothing else.

Where a process is asked for, the agent saves.

Two things that torch's own thread does not have:

* The copy is made by several threads of the engine into memory that has been used before, and goes
  nowhere near the tensors' own storages: what a save finds there is of this save, whatever became of
  the objects of an earlier one.
* What the ranks say to each other in the background goes over a gloo group of its own, so that it
  neither waits behind a collective of the training nor comes between two of them, and needs no CPU
  backend in the caller's group. Saves of one group are made one after the other, in the order of the
  calls, which is the same on all ranks.

Stagers are given by the caller and asked for copies as torch asks them; one of varve.torch copies and
saves by itself, and so does the agent, where a process is asked for (_by_engine.py). Torch's process for
saving is used for what the agent does not take.

Threads, memory and groups are kept from save to save (_executors.py).
"""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import CancelledError, Future
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.checkpoint.storage import StorageWriter

from varve.torch._stager import Stager
from varve.torch._waiting import LOG
from varve.torch.dcp._by_engine import (
    agent_takes,
    check_stager,
    save_by_agent,
    save_by_stager,
)
from varve.torch.dcp._by_torch import save_by_torch, torch_async_save
from varve.torch.dcp._compat import arguments_of
from varve.torch.dcp._copy import StateCopy
from varve.torch.dcp._errors import Group
from varve.torch.dcp._events import log_step, logged
from varve.torch.dcp._executors import executor_of
from varve.torch.dcp._functions import _find, _name, plain_of, save_plain
from varve.torch.dcp._writer import FileSystemWriter

#: Torch 2.6 saves in threads only and has no name for it.
_TYPES: Any = getattr(state_dict_saver, "AsyncCheckpointerType", None)
_THREAD: Any = getattr(_TYPES, "THREAD", None)

#: What torch returns where copies are made in the background; torch 2.6 has none.
_Response: Any = getattr(state_dict_saver, "AsyncSaveResponse", None)


class AsyncSave(Future[Metadata]):
    """A save under way: a future of its Metadata, with the two futures of an AsyncSaveResponse.

    Attributes:
        staging_completion: The copy has been made; done when `async_save` returns, unless a stager
            makes it in the background.
        upload_completion: This future.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.staging_completion: Future[None] = Future()

    @property
    def upload_completion(self) -> AsyncSave:
        """This future."""
        return self


@logged
def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    async_checkpointer_type: Any = _THREAD,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Any:
    """Copies a state, and saves the copy in the background.

    Args are those of `save` and of torch's `async_save`. The copy and the saving are Varve's. An
    `async_stager`, or a `storage_writer` with a `stage` of its own, is asked for the copy instead. A
    varve.torch.Stager as `async_stager` copies into its memory and saves by its own executor, as
    `varve.torch.async_save` does with format="dcp", whatever `async_checkpointer_type` says. It takes
    what is saved in the default way, see below, and belongs to the caller, who closes it.
    With AsyncCheckpointerType.PROCESS the agent of this node (`varve.agent`) writes what is saved in
    the default way: by a FileSystemWriter of this package with one file for each rank, with torch's
    default plan, of values that need no pickle. All else is then saved by torch's process. At most two
    saves are under way at once. Memory and threads are kept for the next save until `close`.

    Returns:
        A future of the Metadata with `staging_completion` and `upload_completion`, which code written
        for either of torch's two kinds of result takes; an AsyncSaveResponse itself when
        `async_stager` stages in the background. A failed save raises CheckpointError from the future,
        on every rank.

    Raises:
        UnsupportedError: A varve.torch.Stager was given and this save is not made in the default way;
            on every rank.
        InvalidArgumentError: A varve.torch.Stager was given that was made for another process group, or
            that has no process where one is asked for.
    """
    what = f"save {_name(checkpoint_id, storage_writer)}"
    engines = async_stager if isinstance(async_stager, Stager) else None
    if engines is not None:
        process_group = process_group if process_group is not None else engines.process_group
        async_stager = None
    group = Group(process_group, no_dist)
    options = arguments_of(
        torch_async_save,
        process_group=process_group,
        async_checkpointer_type=(async_checkpointer_type, _THREAD),
        async_stager=async_stager,
        no_dist=(no_dist, False),
        use_collectives=(use_collectives, True),
    )
    writer: Any = storage_writer
    if writer is None and checkpoint_id:
        writer = _find(checkpoint_id, FileSystemWriter, reader=False)
    if writer is not None and engines is not None:
        check_stager(engines, group, async_checkpointer_type is not _THREAD)
        job = _Job(what, group, checkpoint_id, storage_writer, writer, planner, use_collectives)
        return _save_by(engines, job, state_dict)
    stager = writer if async_stager is None and _stages(writer) else async_stager
    if writer is not None and async_checkpointer_type is _THREAD:
        job = _Job(what, group, checkpoint_id, storage_writer, writer, planner, use_collectives)
        return _save_copy(job, state_dict, stager)
    if writer is not None and stager is None:
        plain, _ = _plain_or_failure(state_dict)
        if storage_writer is not None and checkpoint_id is not None:
            try:
                writer.reset(checkpoint_id)
            except Exception:
                plain = None  # Torch tries it again, and tells all ranks.
        if agent_takes(group, plain, writer, planner, use_collectives):
            assert plain is not None
            out = AsyncSave()
            state = plain
            out.staging_completion = log_step(
                "stage_state_dict", lambda: save_by_agent(what, group, state, writer, out)
            )
            return out
    return save_by_torch(what, group, state_dict, checkpoint_id, writer, planner, options)


def _save_by(stager: Stager, job: _Job, state_dict: dict[str, Any]) -> AsyncSave:
    """Saves on a stager of the caller's."""
    plain, failure = _plain_or_failure(state_dict)
    failure = failure or job.reset()
    out = AsyncSave()
    out.staging_completion = log_step(
        "stage_state_dict",
        lambda: save_by_stager(
            job.what,
            job.group,
            plain,
            failure,
            job.writer,
            job.planner,
            job.use_collectives,
            stager,
            out,
        ),
    )
    return out


def _stages(writer: Any) -> bool:
    """True for a writer that makes copies in a way of its own; torch's inherited way is not one."""
    stage = getattr(type(writer), "stage", None)
    torchs_own = (BlockingAsyncStager.stage, filesystem.FileSystemWriter.stage)
    return isinstance(writer, AsyncStager) and stage not in torchs_own


def _plain_or_failure(state: dict[str, Any]) -> tuple[dict[str, Any] | None, Exception | None]:
    """What `plain_of` gives; a failure is to be told to the other ranks, who are about to wait for us."""
    try:
        return plain_of(state), None
    except Exception as error:
        return None, error


@dataclasses.dataclass
class _Job:
    """What to save a copy with."""

    what: str
    group: Group
    checkpoint_id: str | os.PathLike[str] | None
    given: StorageWriter | None
    writer: Any
    planner: SavePlanner | None
    use_collectives: bool

    def reset(self) -> Exception | None:
        """Gives the caller's writer the name, if there are both. Returns what it failed with."""
        if self.given is not None and self.checkpoint_id is not None:
            try:
                self.writer.reset(self.checkpoint_id)
            except Exception as error:
                return error
        return None

    def save(
        self, group: dist.ProcessGroup | None, state: dict[str, Any], failure: Exception | None
    ) -> Metadata:
        failure = failure or self.reset()
        background = Group(group, self.group.alone)

        def save() -> Metadata:
            return save_plain(
                self.what,
                background,
                state,
                failure,
                self.writer,
                self.planner,
                self.use_collectives,
            )

        return log_step(
            "save",
            save,
            checkpoint_id=self.checkpoint_id,
            storage_writer=self.writer,
            planner=self.planner,
            process_group=group,
        )


def _save_copy(job: _Job, state_dict: dict[str, Any], stager: Any) -> Any:
    """Saves a copy on the thread of the group; `stager` makes it, or we where there is none."""
    executor = executor_of(job.group.process_group, job.group.alone)
    executor.room.acquire()
    copy: _Copy | None = None

    def make(plain: dict[str, Any]) -> _Copy:
        return _StagersCopy(stager, plain) if stager else executor.copier.copy(plain)

    try:
        plain, failure = _plain_or_failure(state_dict)
        if plain is not None:
            try:
                copy = log_step("stage_state_dict", lambda: make(plain))
            except Exception as error:
                failure = error  # The others are about to wait for this rank in their threads.
    except BaseException:
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
        reason = failure
        metadata = None
        problem: BaseException | None = None
        state: dict[str, Any] = {}
        try:
            if copy is not None:
                try:
                    state = copy.state
                except Exception as error:
                    reason = error
            metadata = job.save(executor.group, state, reason)
        except BaseException as error:
            problem = error
        # Room for the next copy before anybody who waits for this save asks for it.
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
    if staged is not None:
        return _Response(staging_completion=out.staging_completion, upload_completion=out)
    if failure is None:
        log_step("maybe_synchronize_staging", lambda: _synchronize(stager))
    return out


def _synchronize(stager: Any) -> None:
    if stager is not None and stager.should_synchronize_after_execute:
        stager.synchronize_staging()


def _end_staging(out: AsyncSave, failure: BaseException | None) -> None:
    if failure is None:
        out.staging_completion.set_result(None)
    else:
        out.staging_completion.set_exception(failure)


class _StagersCopy:
    """What a caller's stager has made of a state, or a future of it."""

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
