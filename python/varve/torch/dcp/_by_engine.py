"""Saves that the engine plans: in the call, or in the background by a varve.torch.Stager.

The engine writes what it lays out itself. So it takes saves for which torch's default planner would
name the same entries, of values that come back as they are without a pickle, by one file for each rank. The ranks agree on it in
the call: a rank that went another way would be waited for. Stagers are this package's own, the caller's, or
submit to the agent. With a stager of the caller's, all else is refused.
"""

from __future__ import annotations

import collections
import datetime
import os
import pathlib
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.tensor import DTensor

from varve import _core, _engine, _tree
from varve._core import background, storage
from varve._engine import collector_at_rest
from varve.errors import Error, InvalidArgumentError, UnsupportedError
from varve.torch._background import Save, with_shared
from varve.torch._coordinator import collective, name_of
from varve.torch._handle import SaveHandle
from varve.torch._shards import NUMBERS, ShardedTensor
from varve.torch._stager import Stager, close_made, stager_of
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._compat import flatten_state_dict
from varve.torch.dcp._errors import checkpoint_error, from_engine
from varve.torch.dcp._events import Step, log_step
from varve.torch.dcp._job import AsyncSave, Job
from varve.torch.dcp._metadata import metadata_of_index
from varve.torch.dcp._publish import is_replaceable
from varve.torch.dcp._ranks import TIMEOUT, Group, Ranks, together
from varve.torch.dcp._writer import FileSystemWriter

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
    return job.use_collectives and not any(_obstacles(job, lambda: _check_taken(job)))


def save_now(job: Job) -> Metadata:
    """Saves a state that the engine takes; durable when this returns. Collective.

    Rank 0 reads the Metadata for all: another node may not see the new directory yet.
    """
    state, path, group = job.state, job.path, job.group
    assert state is not None
    options = _core.SaveOptions(format="dcp", overwrite=job.writer.overwrite, timeout=TIMEOUT)
    failure: BaseException | None = None
    try:
        with group.entered(job.what) as channel:
            content = _engine.Content(state)
            _engine.save(content, path, TorchArrays(), channel, options, warn=_warn)

            def read() -> bytes:
                return _index(path) if group.rank == 0 else b""

            index = Ranks(channel).combine("read", read, lambda read: read[:1] * group.size)
            with collector_at_rest():
                made = metadata_of_index(index, path)
            assert made.storage_meta is not None
            job.writer.save_id = made.storage_meta.save_id
            return made
    except CheckpointException as error:
        failure = checkpoint_error(job.what, error, group.rank)
    except Exception as error:
        failure = from_engine(job.what, "write", error, 0, group.rank)
    raise failure from failure.__cause__


def stager_takes(job: Job, executor: str, stager: Any) -> bool:
    """Returns True, on all ranks alike, where the stager that is kept for the group makes the save.

    Args:
        job: The save.
        executor: "thread", or "process" for the agent.
        stager: One of the caller's that is to make the copy; None where there is none.
    """
    if not job.use_collectives or _leaves_ranks_out(job.group):
        return False  # The same on all ranks.

    def check() -> None:
        if stager is not None:
            raise UnsupportedError("a stager of the caller's makes the copy")
        _check_taken(job)
        if executor == "process":
            stager_of(job.group.process_group, executor, TIMEOUT, _OWNER)  # Starts the agent.

    return not any(_obstacles(job, check))  # Errors are reported by the other way.


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

    def check() -> None:
        if not job.use_collectives:
            raise UnsupportedError("use_collectives=False")
        if _leaves_ranks_out(job.group):
            raise UnsupportedError("no_dist=True, and a stager's ranks save together")
        _check_taken(job)
        stager.memory_budget  # noqa: B018  Raises for one that is closed.

    for rank, reason in enumerate(_obstacles(job, check)):
        if reason is not None:
            raise UnsupportedError(
                f"{job.what}: a varve.torch.Stager saves by the engine's own plan; rank {rank}: "
                f"{reason}. Leave async_stager out"
            )
    return _save(job, path, lambda begin: begin(stager))


def close_stagers() -> None:
    """Waits for the saves of the stagers that were made here, and closes them."""
    close_made(_OWNER)


def _obstacles(job: Job, check: Callable[[], None]) -> list[str | None]:
    """Returns why the engine does not take the save, by rank; None where nothing is in the way. Collective."""
    obstacle = None
    interrupt: BaseException | None = None
    try:
        with collector_at_rest():
            check()
    except Exception as error:  # The others are about to wait for this rank.
        obstacle = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    except BaseException as error:
        interrupt = error
    with together(job.what, job.group) as ranks:
        if interrupt is not None:
            raise interrupt
        return ranks.combine("plan", lambda: obstacle, lambda given: [given] * ranks.size)


def _save(job: Job, path: str, start: Callable[[_Begin], SaveHandle]) -> AsyncSave:
    """Saves a state that the engine takes; `start` calls its argument with the stager to save on."""
    state = job.state
    assert state is not None

    def begin(stager: Stager) -> SaveHandle:
        with collective(stager.process_group, TIMEOUT, name_of("save", path)) as coordinator:
            save = _core.SaveOptions(format="dcp", overwrite=job.writer.overwrite, timeout=TIMEOUT)
            options = background.AsyncSaveOptions(save=save)
            content = _engine.Content(state)
            return Save(SaveHandle(), content, path, options).start(stager, coordinator)

    handle = log_step("stage_state_dict", lambda: start(begin))
    log_step("maybe_synchronize_staging", lambda: None)
    step = Step(
        "save", checkpoint_id=job.checkpoint_id, storage_writer=job.writer, planner=job.planner
    )
    _warn(path, handle._differing, None)
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


def _warn(_: str, report: Any, options: Any) -> None:
    """Warns of tensors alone: torch's users have values of each rank's own under one name."""
    _engine.warn_of_differences(report.differing_tensors, _LOWEST_IS_SAVED)


def _index(path: str) -> bytes:
    return storage.read_bytes(os.path.join(path, ".metadata"))


def _leaves_ranks_out(group: Group) -> bool:
    """True where a rank of a job saves alone: the engine takes all ranks for those that save."""
    return group.alone and dist.is_available() and dist.is_initialized()


def _check_taken(job: Job) -> None:
    """Raises UnsupportedError where the engine would make another save than torch's planner and the writer."""
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
            if not _is_exact(value):
                raise UnsupportedError(f'"{fqn}" is, or holds, an object of a class')
    except Error as error:
        raise UnsupportedError(f"the state has values that need a pickle: {error}") from error
    leaves = dict((*flat.tensors, *flat.objects))
    torchs, _ = flatten_state_dict(state)
    if leaves.keys() != torchs.keys() or any(torchs[fqn] is not leaves[fqn] for fqn in leaves):
        raise UnsupportedError("the state has entries that torch's planner names in another way")
    if _leaves_ranks_out(job.group) and any(
        isinstance(tensor, (DTensor, ShardedTensor)) for _, tensor in flat.tensors
    ):
        raise UnsupportedError("this rank saves alone, and holds shards")
    tensors = [part for _, tensor in flat.tensors for part in _parts(tensor)]
    if not all(map(_is_plain, tensors)):
        raise UnsupportedError(
            "the state has arrays or tensors that torch's planner takes for values"
        )


#: Types whose values come back as they are. Of others the engine stores what it can: a dataclass as a dict.
_EXACT = {
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    *(zoneinfo.ZoneInfo, pathlib.PosixPath, pathlib.PurePosixPath, np.ndarray),
    *(torch.Size, torch.dtype, torch.device, torch.Tensor),
}
_SEQUENCES = {tuple, list, set, frozenset}
_MAPPINGS = {dict, collections.OrderedDict, collections.Counter, collections.defaultdict}


def _is_exact(value: Any) -> bool:
    """Returns True for a value that a load gives back with the types that it has."""
    kind = type(value)
    if kind in _MAPPINGS:
        return all(_is_exact(key) and _is_exact(item) for key, item in value.items())
    if kind in _SEQUENCES:
        return all(map(_is_exact, value))
    return kind in _EXACT or isinstance(value, np.generic)


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
        and not (tensor.is_nested or tensor.is_meta)
        and not hasattr(tensor, "__create_write_items__")
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
