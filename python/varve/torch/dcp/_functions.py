"""save, async_save and load: torch's own, over Varve's storage, failing alike on all ranks."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from varve._engine import collector_at_rest
from varve.errors import InvalidArgumentError
from varve.torch.dcp._by_engine import engine_takes, save_now
from varve.torch.dcp._compat import fsspec_storage, storage_may_come_second
from varve.torch.dcp._events import logged
from varve.torch.dcp._job import Job
from varve.torch.dcp._names import is_ours
from varve.torch.dcp._plain_plan import PlainLoadPlanner
from varve.torch.dcp._planned import not_planned
from varve.torch.dcp._protocol import load_steps, save_steps
from varve.torch.dcp._ranks import Group, together
from varve.torch.dcp._reader import FileSystemReader
from varve.torch.dcp._stateful import is_stateful, plain_by
from varve.torch.dcp._writer import FileSystemWriter

_T = TypeVar("_T")
_Id = str | os.PathLike[str] | None


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: _Id = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Metadata:
    """Saves a state as a DCP checkpoint, all ranks together: torch's `save` with Varve's writer.

    The engine plans and writes, as `varve.torch.save` does with format="dcp", where it saves what torch's
    default planner and a FileSystemWriter of this package with one file for each rank would; see
    `async_save`. All else is planned by torch's planner, or by the one given.

    Args:
        state_dict: As in torch; objects with `state_dict` and `load_state_dict` are asked for theirs.
        checkpoint_id: The directory, or what `storage_writer` understands.
        storage_writer: Any StorageWriter; by default a FileSystemWriter of this package for paths
            and s3:// names, and what torch finds for other ids.
        planner: Any SavePlanner.
        process_group: As in torch.
        no_dist: This process saves alone.
        use_collectives: False saves without the ranks connected to each other, but for learning at the
            end whether all have succeeded.

    Returns:
        The Metadata, on every rank.

    Raises:
        CheckpointError: Some rank failed; on every rank. Or the ranks are in different calls, by the last names of
            their paths: one that has missed a save. It cannot be told where both have one name.

    Warns:
        ReplicasDifferWarning: Ranks hold different values of a tensor; on the coordinator.
    """
    group = Group(process_group, no_dist)
    job = job_of(checkpoint_id, storage_writer, planner, group, use_collectives)
    job.begin(state_dict)
    if engine_takes(job):
        return save_now(job)
    plain = job.state or {}
    return save_plain(job.what, job.group, plain, job.failure, job.writer, planner, use_collectives)


def job_of(
    checkpoint_id: _Id,
    storage_writer: StorageWriter | None,
    planner: SavePlanner | None,
    group: Group,
    use_collectives: bool,
) -> Job:
    """Returns the save that a call asks for, on the storage that it names."""
    writer: Any = storage_writer
    if writer is None:
        writer = _find(checkpoint_id, FileSystemWriter, reader=False)
    group.storage = class_of_others(storage_writer)
    return Job(
        what=f"save {_name(checkpoint_id, storage_writer)}",
        group=group,
        checkpoint_id=checkpoint_id,
        renames=storage_writer is not None and checkpoint_id is not None,
        writer=writer,
        planner=planner,
        use_collectives=use_collectives,
    )


def save_plain(
    what: str,
    group: Group,
    plain: dict[str, Any],
    failure: BaseException | None,
    writer: Any,
    planner: SavePlanner | None,
    use_collectives: bool = True,
    coordinator: int = 0,
) -> Metadata:
    """Saves a state whose objects have been asked for theirs, or reports a failure to all ranks."""
    if failure is None:
        failure = not_planned(plain, planner)
    if (
        failure is None
        and use_collectives
        and group.size > 1
        and isinstance(writer, FileSystemWriter)
    ):
        planner = planner if planner is not None else DefaultSavePlanner()
        writer.compare_replicas(planner)
    try:
        with (
            collector_at_rest(),
            _as_they_are(planner),
            together(what, group, coordinator) as ranks,
        ):
            return save_steps(
                ranks, group.process_group, plain, writer, planner, use_collectives, failure
            )
    except BaseException:
        if isinstance(writer, FileSystemWriter):
            writer.abandon()
            writer.compare_replicas(None)
        raise


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: _Id = None,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
) -> None:
    """Loads a checkpoint into a state, in place: torch's `load` with Varve's reader.

    Args:
        state_dict: As in torch; all ranks give the same keys.
        checkpoint_id: The directory, or what `storage_reader` understands. Checkpoints of every
            format that Varve opens.
        storage_reader: Any StorageReader; by default a FileSystemReader of this package for paths
            and s3:// names, and what torch finds for other ids.
        planner: Any LoadPlanner.
        process_group: As in torch.
        no_dist: This process loads alone.

    Raises:
        CheckpointError: Some rank failed; on every rank. A failure in `load_state_dict` of an object
            counts.
    """
    what = f"load {_name(checkpoint_id, storage_reader)}"
    group = Group(process_group, no_dist)
    reader: Any = storage_reader
    if reader is None:
        reader = _find(checkpoint_id, FileSystemReader, reader=True)
    failure: BaseException | None = None
    plain: dict[str, Any] = {}
    plain_planner: PlainLoadPlanner | None = None
    try:
        if storage_reader is not None and checkpoint_id is not None:
            reader.reset(checkpoint_id)
        # Sorted: all ranks handle the keys in one order.
        plain = plain_by({key: state_dict[key] for key in sorted(state_dict)})
        if isinstance(reader, FileSystemReader):
            with torch.no_grad() if planner is None else contextlib.nullcontext():
                plain_planner = reader.open(plain if planner is None else None)
    except BaseException as error:  # Also Ctrl-C: the others are about to wait for this rank.
        failure = error
    load_plain(what, group, plain, failure, reader, planner or plain_planner)
    try:
        for key, value in plain.items():
            if is_stateful(state_dict[key]):
                state_dict[key].load_state_dict(value)
            else:
                state_dict[key] = value
    except BaseException as error:  # The others are about to wait for this rank.
        failure = error

    def report() -> None:
        if failure is not None:
            raise failure

    with together(what, group, part="objects") as ranks:
        ranks.each("load_state_dict", report)


def load_plain(
    what: str,
    group: Group,
    plain: dict[str, Any],
    failure: BaseException | None,
    reader: Any,
    planner: LoadPlanner | None,
    coordinator: int = 0,
) -> None:
    """Loads into a state whose objects have been asked for theirs, or reports a failure to all ranks."""
    with collector_at_rest(), _as_they_are(planner), together(what, group, coordinator) as ranks:
        load_steps(ranks, group.process_group, plain, reader, planner, failure)


def save_state_dict(
    state_dict: dict[str, Any],
    storage_writer: StorageWriter,
    process_group: dist.ProcessGroup | None = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: SavePlanner | None = None,
) -> Metadata:
    """Deprecated by torch in favour of `save`. Objects are not asked for their `state_dict`."""
    _deprecated("save_state_dict", "save")
    failure: BaseException | None = None
    try:
        storage_writer.reset()
    except BaseException as error:
        failure = error
    group = Group(process_group, no_dist)
    group.storage = class_of_others(storage_writer)
    return save_plain(
        f"save {_name(None, storage_writer)}",
        group,
        state_dict,
        failure,
        storage_writer,
        planner,
        coordinator=coordinator_rank,
    )


def load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: StorageReader,
    process_group: dist.ProcessGroup | None = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: LoadPlanner | None = None,
) -> None:
    """Deprecated by torch in favour of `load`. Objects are not given what was loaded."""
    _deprecated("load_state_dict", "load")
    failure: BaseException | None = None
    try:
        storage_reader.reset()
        if isinstance(storage_reader, FileSystemReader):
            storage_reader.open()
    except BaseException as error:
        failure = error
    load_plain(
        f"load {_name(None, storage_reader)}",
        Group(process_group, no_dist),
        state_dict,
        failure,
        storage_reader,
        planner,
        coordinator_rank,
    )


def class_of_others(writer: Any) -> str:
    """Returns the class of a caller's writer that is none of this package's, else ""."""
    if writer is None or isinstance(writer, FileSystemWriter):
        return ""
    return type(writer).__name__


def _as_they_are(planner: Any) -> contextlib.AbstractContextManager[Any]:
    """Lets torch's planners take the shards of DTensors as they are, not by operators of their classes.

    Without gradients they do. Planners of others see the gradient mode of the caller.
    """
    ours = (DefaultSavePlanner, DefaultLoadPlanner, PlainLoadPlanner)
    is_ours = planner is None or type(planner) in ours
    return torch.no_grad() if is_ours else contextlib.nullcontext()


def _find(checkpoint_id: _Id, kind: type[_T], reader: bool) -> Any:
    """Returns the storage for an id: Varve's for paths and s3:// names, torch's over fsspec for other schemes."""
    text = os.fsdecode(checkpoint_id) if checkpoint_id else ""
    if not text:
        kind_of = "storage_reader" if reader else "storage_writer"
        raise RuntimeError(f"give a checkpoint_id or a {kind_of}")  # The class is torch's.
    if is_ours(text):
        return kind(checkpoint_id)  # type: ignore[call-arg]
    fsspec = fsspec_storage(reader)
    if fsspec is None or not fsspec.validate_checkpoint_id(text):
        raise InvalidArgumentError(
            f'{text}: no storage serves the scheme "{text.split("://")[0]}://". Paths, file:// and '
            f"s3:// are Varve's; {_fsspec_schemes()}"
        )
    storage = fsspec(checkpoint_id)
    storage.reset(checkpoint_id)
    return storage


def _fsspec_schemes() -> str:
    """Says which schemes torch's storage for URLs serves."""
    try:
        fsspec: Any = importlib.import_module("fsspec")
    except ImportError:
        return "other schemes need the package fsspec, which is not installed"
    schemes = sorted({*fsspec.available_protocols(), *fsspec.registry} - {"file"})
    return (
        f"torch's storage over fsspec serves {', '.join(schemes)}, some of them by further packages"
    )


def _name(checkpoint_id: _Id, storage: Any) -> str:
    known = checkpoint_id if checkpoint_id is not None else getattr(storage, "checkpoint_id", None)
    return str(known) if known is not None else f"by {type(storage).__name__}"


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", FutureWarning, stacklevel=3)


save = storage_may_come_second("storage_writer")(logged(save))
load = storage_may_come_second("storage_reader")(logged(load))
