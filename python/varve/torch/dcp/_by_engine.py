"""async_save by a varve.torch.Stager: this package's own, the caller's, or one that submits to the agent.

A stager writes what the engine lays out itself. So it takes saves for which torch's default planner would
name the same entries, of values that need no pickle, by one file for each rank. The ranks agree on it in
the call, over a channel of their own: a rank that went another way would be waited for. With a stager of
the caller's, all else is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import (  # type: ignore[attr-defined]
    ShardedTensor,
)
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.tensor import DTensor

from varve import _core, _engine, _tree
from varve._core import background
from varve._engine import collector_at_rest
from varve.errors import Error, InvalidArgumentError, UnsupportedError
from varve.torch._background import Save, with_shared
from varve.torch._coordinator import collective, name_of
from varve.torch._handle import SaveHandle
from varve.torch._shards import NUMBERS
from varve.torch._stager import Stager, close_made, stager_of
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._errors import CheckpointError, Group, agree, checkpoint_error
from varve.torch.dcp._events import Step, log_step
from varve.torch.dcp._job import AsyncSave, Job
from varve.torch.dcp._metadata import metadata_of_save
from varve.torch.dcp._names import is_object
from varve.torch.dcp._publish import is_replaceable
from varve.torch.dcp._writer import FileSystemWriter

#: Seconds that ranks wait for each other, as in `varve.torch.async_save`.
_TIMEOUT = 1800.0

#: The owner of the stagers that are made here.
_OWNER = "varve.torch.dcp"

_LOWEST_IS_SAVED = (
    "The save has the value of the lowest of these ranks. Give a value that each rank has for itself a key "
    'of its own, such as f"rank{rank}.name"'
)

#: Begins a save on a stager.
_Begin = Callable[[Stager], SaveHandle]


def engine_takes(job: Job, executor: str, stager: Any) -> bool:
    """Returns True, on all ranks alike, where the engine saves what the planner and the writer would.

    Args:
        job: The save.
        executor: "thread", or "process" for the agent.
        stager: One of the caller's that is to make the copy; None where there is none.
    """
    if not job.use_collectives or _leaves_ranks_out(job.group):
        return False  # The same on all ranks.
    mine = False
    # The way that is taken instead reports an error, to all ranks.
    with contextlib.suppress(Exception), collector_at_rest():
        if stager is None and not (executor == "process" and is_object(job.path)):
            _tensors_of(job)  # In an object store torch's process saves.
            mine = True
        if mine and executor == "process":
            stager_of(job.group.process_group, executor, _TIMEOUT, _OWNER)  # Starts the agent.
    if job.group.alone:
        return mine
    what = name_of("begin a save of", getattr(job.writer, "path", ""))
    with collective(job.group.process_group, _TIMEOUT, what) as coordinator:
        return mine if coordinator is None else coordinator.all_true(mine, _TIMEOUT)


def save_by_engine(job: Job, executor: str) -> AsyncSave:
    """Saves on the stager that is kept for the group."""
    path = job.path
    job.reset()

    def start(begin: _Begin) -> SaveHandle:
        def begin_quietly(stager: Stager) -> SaveHandle:
            handle = begin(stager)
            handle.add_done_callback(lambda _: stager._failures.take())  # The future raises it.
            return handle

        return with_shared(job.group.process_group, executor, _TIMEOUT, begin_quietly, _OWNER)

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
    except Exception as error:
        job.failure = job.failure or error
    try:
        agree(job.what, "state_dict", job.failure, job.group)
    except CheckpointError as error:
        out = AsyncSave()
        out.set_exception(error)
        out.staging_completion.set_exception(error)
        return out
    obstacle = None
    try:
        if not job.use_collectives:
            raise UnsupportedError("use_collectives=False")
        if _leaves_ranks_out(job.group):
            raise UnsupportedError("no_dist=True, and a stager's ranks save together")
        _tensors_of(job)
        stager.memory_budget  # noqa: B018  Raises for one that is closed.
    except Exception as error:  # The others are about to wait for this rank.
        obstacle = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    for rank, reason in enumerate(_gathered(job.group, obstacle)):
        if reason is not None:
            raise UnsupportedError(
                f"{job.what}: a varve.torch.Stager saves by the engine's own plan; rank {rank}: "
                f"{reason}. Leave async_stager out"
            )
    return _save(job, path, lambda begin: begin(stager))


def close_stagers() -> None:
    """Waits for the saves of the stagers that were made here, and closes them."""
    close_made(_OWNER)


def _gathered(group: Group, answer: Any) -> list[Any]:
    """Returns the answers of all ranks, by rank."""
    if group.alone:
        return [answer]
    answers: list[Any] = [None] * group.size
    dist.all_gather_object(answers, answer, group.process_group)
    return answers


def _save(job: Job, path: str, start: Callable[[_Begin], SaveHandle]) -> AsyncSave:
    """Saves a state that the engine takes; `start` calls its argument with the stager to save on."""
    state = job.state
    assert state is not None

    def begin(stager: Stager) -> SaveHandle:
        with collective(stager.process_group, _TIMEOUT, name_of("save", path)) as coordinator:
            save = _core.SaveOptions(format="dcp", overwrite=job.writer.overwrite, timeout=_TIMEOUT)
            options = background.AsyncSaveOptions(save=save)
            content = _engine.Content(state)
            return Save(SaveHandle, content, path, options).start(stager, coordinator)

    handle = log_step("stage_state_dict", lambda: start(begin))
    log_step("maybe_synchronize_staging", lambda: None)
    step = Step(
        "save", checkpoint_id=job.checkpoint_id, storage_writer=job.writer, planner=job.planner
    )
    _engine.warn_of_differences(handle._differing.differing_tensors, _LOWEST_IS_SAVED)
    out = AsyncSave()
    out.staging_completion = handle.staging_completion

    def end(_: Any) -> None:
        failure: BaseException | None = handle.exception()
        rank = 0  # It decides for all, where no rank is known to have failed.
        metadata = None
        if failure is None:
            try:
                with collector_at_rest():
                    metadata = metadata_of_save(_core.Reader(path), path, handle.result().save_id)
            except Exception as error:
                failure, rank = error, job.group.rank
        if failure is not None:
            failure = _as_torchs(job, failure, rank)
        step.end(failure)
        if metadata is not None:
            out.set_result(metadata)
        else:
            out.set_exception(failure)

    handle.add_done_callback(end)
    return out


def _as_torchs(job: Job, error: BaseException, rank: int) -> BaseException:
    """The CheckpointError for an error of the engine; `rank` failed where the error names none."""
    failures: dict[int, BaseException] = {}
    if isinstance(error, Error):
        failures |= error.of_ranks
        rank = rank if error.rank is None else error.rank
    failures = failures or {rank: error}
    wrapped = {failed: _wrap_exception(cause) for failed, cause in failures.items()}
    return checkpoint_error(job.what, CheckpointException("write", wrapped), job.group.rank)


def _leaves_ranks_out(group: Group) -> bool:
    """True where a rank of a job saves alone: the engine takes all ranks for those that save."""
    return group.alone and dist.is_available() and dist.is_initialized()


def _tensors_of(job: Job) -> list[torch.Tensor]:
    """This rank's tensors of a save that the engine makes as torch's planner and the writer would.

    Raises UnsupportedError: why it would make another one.
    """
    if not _writes_plainly(job):
        raise UnsupportedError(
            "the storage is not a FileSystemWriter of varve.torch.dcp with one file for each rank, "
            "without extensions, to a name that can be replaced as a whole"
        )
    if not _plans_plainly(job.planner):
        raise UnsupportedError("the planner is not torch's default one, or does not flatten")
    state = job.state
    assert state is not None
    arrays = TorchArrays()
    flat = _tree.Flattener(0, arrays.is_tensor, arrays.origin)
    try:
        flat.flatten(state)
        for fqn, value in flat.objects:
            _core.encode_value(value, fqn, False)
    except Error as error:
        raise UnsupportedError(f"the state has values that need a pickle: {error}") from error
    leaves = dict((*flat.tensors, *flat.objects))
    torchs, _ = flatten_state_dict(state)
    if leaves.keys() != torchs.keys() or any(torchs[fqn] is not leaves[fqn] for fqn in leaves):
        raise UnsupportedError("the state has entries that torch's planner names in another way")
    tensors = [part for _, tensor in flat.tensors for part in _parts(tensor)]
    if not all(map(_is_plain, tensors)):
        raise UnsupportedError(
            "the state has arrays or tensors that torch's planner takes for values"
        )
    return tensors


def _parts(tensor: Any) -> list[Any]:
    """The memory of a tensor on this rank."""
    if isinstance(tensor, ShardedTensor):
        return [shard.tensor for shard in tensor.local_shards()]
    return [tensor._local_tensor if isinstance(tensor, DTensor) else tensor]


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in NUMBERS
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
    )


def _writes_plainly(job: Job) -> bool:
    writer = job.writer
    return (
        isinstance(writer, FileSystemWriter)
        and writer.writes_plainly()
        and is_replaceable(job.path)
    )


def _plans_plainly(planner: SavePlanner | None) -> bool:
    return planner is None or (
        type(planner) is DefaultSavePlanner
        and planner.flatten_state_dict
        and planner.flatten_sharded_tensors
        and not getattr(planner, "dedup_save_to_lowest_rank", False)
    )
