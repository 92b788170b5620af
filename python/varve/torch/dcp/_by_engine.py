"""Saves that the engine plans: in the call, or in the background by a varve.torch.Stager.

The engine writes what it lays out itself. So it takes saves for which torch's default planner would
name the same entries, of values that come back as they are without a pickle, by one file for each rank. The ranks agree on it in
the call: a rank that went another way would be waited for. Stagers are this package's own, the caller's, or
submit to the agent. With a stager of the caller's, all else is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from varve import _core, _engine
from varve._core import background, storage
from varve._engine import collector_at_rest
from varve.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from varve.torch._background import Save, cancelled_by_errors, with_shared
from varve.torch._coordinator import collective, name_of
from varve.torch._handle import SaveHandle
from varve.torch._stager import Stager, close_made, stager_of
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._errors import checkpoint_error, from_engine
from varve.torch.dcp._events import Step, log_step
from varve.torch.dcp._job import AsyncSave, Job
from varve.torch.dcp._metadata import metadata_of_index
from varve.torch.dcp._ranks import TIMEOUT, Group, Ranks
from varve.torch.dcp._taken import Description, described, leaves_ranks_out, obstacles

#: The owner of the stagers that are made here.
_OWNER = "varve.torch.dcp"

_LOWEST_IS_SAVED = (
    "The save has the value of the lowest of these ranks. Give a value that each rank has for itself a key "
    'of its own, such as f"rank{rank}.name"'
)

#: Begins a save on a stager.
_Begin = Callable[[Stager], SaveHandle]


def engine_takes(job: Job) -> bool:
    """Returns True, on all ranks alike, where the engine saves what the planner and the writer would."""
    return job.use_collectives and not any(obstacles(job, lambda: described(job)))


def save_now(job: Job) -> Metadata:
    """Saves a state that the engine takes; durable when this returns. Collective.

    Rank 0 reads the index for all: another node may not see the new directory yet. Where a rank ends meanwhile, the
    checkpoint stands, and each of the others reads for itself.
    """
    state, path, group = job.state, job.path, job.group
    assert state is not None
    options = _core.SaveOptions(format="dcp", overwrite=job.writer.overwrite, timeout=TIMEOUT)
    saved = False
    index: bytes | None = None
    failure: BaseException | None = None
    try:
        with group.entered(job.what) as channel:
            content = _engine.Content(state)
            report = _engine.save(content, path, TorchArrays(), channel, options, warns=False)
            saved = True

            def read() -> bytes:
                if group.rank != 0:
                    return b""
                _warn(report)
                return _index(path)

            try:
                index = Ranks(channel).combine("read", read, lambda parts: parts[:1] * group.size)
            except CheckpointException as error:  # All ranks have it: this one leaves in order.
                failure = checkpoint_error(job.what, error, group.rank)
    except Exception as error:
        if not saved or not isinstance(error, UnavailableError):
            step = "read" if saved else "write"
            failure = from_engine(job.what, step, error, 0, group.rank)
    if failure is not None:
        raise failure from failure.__cause__
    try:
        with collector_at_rest():
            made = metadata_of_index(_index(path) if index is None else index, path)
    except Exception as error:
        raise from_engine(job.what, "read", error, group.rank, group.rank) from error
    assert made.storage_meta is not None
    job.writer.save_id = made.storage_meta.save_id
    return made


def stager_takes(job: Job, executor: str, stager: Any) -> bool:
    """Returns True, on all ranks alike, where the stager that is kept for the group makes the save.

    Args:
        job: The save.
        executor: "thread", or "process" for the agent.
        stager: One of the caller's that is to make the copy; None where there is none.
    """
    if not job.use_collectives or leaves_ranks_out(job.group):
        return False  # The same on all ranks.

    def check() -> Description:
        if stager is not None:
            raise UnsupportedError("a stager of the caller's makes the copy")
        description = described(job)
        if executor == "process":
            stager_of(job.group.process_group, executor, TIMEOUT, _OWNER)  # Starts the agent.
        return description

    return not any(obstacles(job, check))  # Errors are reported by the other way.


def save_by_engine(job: Job, executor: str) -> AsyncSave:
    """Saves on the stager that is kept for the group."""
    path = job.path
    job.reset()

    def start(begin: _Begin) -> SaveHandle:
        def begin_quietly(stager: Stager) -> SaveHandle:
            handle = begin(stager)
            handle.add_done_callback(lambda _: stager._failures.take())  # The future raises it.
            return handle

        return with_shared(job.group.process_group, executor, TIMEOUT, begin_quietly, _OWNER)

    return _save(job, path, start)


def check_stager(stager: Stager, group: Group, process: bool) -> None:
    """Raises InvalidArgumentError where a stager of the caller's and other arguments contradict."""
    if group.process_group is not stager.process_group:
        raise InvalidArgumentError("async_stager was made for another process_group")
    if process and stager.executor != "process":
        raise InvalidArgumentError(
            f"async_stager was made with executor={stager.executor!r}; AsyncCheckpointerType.PROCESS "
            'needs one with executor="process"'
        )


def save_by_stager(job: Job, stager: Stager) -> AsyncSave:
    """Saves on a stager of the caller's.

    Raises UnsupportedError, on all ranks alike, for a save that the engine would make otherwise than
    the planner and writer that were given.
    """
    path = ""
    try:
        path = job.path
        job.reset()
    except BaseException as error:
        job.failure = job.failure or error
    failed = job.failed()
    if failed is not None:
        return failed

    def check() -> Description:
        if not job.use_collectives:
            raise UnsupportedError("use_collectives=False")
        if leaves_ranks_out(job.group):
            raise UnsupportedError("no_dist=True, and a stager's ranks save together")
        stager.memory_budget  # noqa: B018  Raises for one that is closed.
        return described(job)

    for rank, reason in enumerate(obstacles(job, check)):
        if reason is not None:
            raise UnsupportedError(
                f"{job.what}: a varve.torch.Stager saves by the engine's own plan; rank {rank}: "
                f"{reason}. Leave async_stager out"
            )
    return _save(job, path, lambda begin: begin(stager))


def close_stagers() -> None:
    """Waits for the saves of the stagers that were made here, and closes them."""
    close_made(_OWNER)


def _save(job: Job, path: str, start: Callable[[_Begin], SaveHandle]) -> AsyncSave:
    """Saves a state that the engine takes; `start` calls its argument with the stager to save on."""
    state = job.state
    assert state is not None

    def begin(stager: Stager) -> SaveHandle:
        handle = SaveHandle()
        calls = collective(stager.process_group, TIMEOUT, name_of("save", path))
        with cancelled_by_errors(handle), calls as coordinator:
            save = _core.SaveOptions(format="dcp", overwrite=job.writer.overwrite, timeout=TIMEOUT)
            options = background.AsyncSaveOptions(save=save)
            content = _engine.Content(state)
            return Save(handle, content, path, options).start(stager, coordinator)

    handle = log_step("stage_state_dict", lambda: start(begin))
    log_step("maybe_synchronize_staging", lambda: None)
    step = Step(
        "save", checkpoint_id=job.checkpoint_id, storage_writer=job.writer, planner=job.planner
    )
    _warn(handle._differing)
    out = AsyncSave()
    out.staging_completion = handle.staging_completion

    def end(_: Any) -> None:
        failure: BaseException | None = handle.exception()
        rank = 0  # It decides for all, where no rank is known to have failed.
        metadata = None
        if failure is None:
            try:
                with collector_at_rest():
                    metadata = metadata_of_index(_index(path), path)
            except Exception as error:
                failure, rank = error, job.group.rank
        if failure is not None:
            failure = from_engine(job.what, "write", failure, rank, job.group.rank)
        step.end(failure)
        if metadata is not None:
            out.set_result(metadata)
        else:
            out.set_exception(failure)

    handle.add_done_callback(end)
    return out


def _warn(report: Any) -> None:
    """Warns of tensors alone: torch's users have values of each rank's own under one name."""
    _engine.warn_of_differences(report.differing_tensors, _LOWEST_IS_SAVED)


def _index(path: str) -> bytes:
    return storage.read_bytes(os.path.join(path, ".metadata"))
