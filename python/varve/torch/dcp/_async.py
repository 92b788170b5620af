"""async_save: saves in the background, by one of two ways that all ranks choose together.

1. By the engine (_by_engine.py), where it would save what torch's default planner and this package's
   writer would: on a stager that is kept from save to save, on one of the caller's, or by the agent
   where a process is asked for.
2. By planners on a thread of this package (_by_thread.py): everything else.

Saves of one group are made in the order of the calls, which is the same on all ranks: a save that goes
another way than the one before waits in the call until that one has ended. Threads, memory and groups
are kept from save to save (_executors.py).
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, state_dict_saver
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.checkpoint.storage import StorageWriter

from varve.torch._stager import Stager
from varve.torch.dcp._by_engine import check_stager, save_by_engine, save_by_stager, stager_takes
from varve.torch.dcp._by_thread import save_by_thread
from varve.torch.dcp._events import logged
from varve.torch.dcp._executors import in_turn
from varve.torch.dcp._functions import job_of
from varve.torch.dcp._ranks import Group

#: Torch 2.6 saves in threads only and has no name for it.
_TYPES: Any = getattr(state_dict_saver, "AsyncCheckpointerType", None)
_THREAD: Any = getattr(_TYPES, "THREAD", None)


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

    Args are those of `save` and of torch's `async_save`. The engine copies and saves, as
    `varve.torch.async_save` does with format="dcp", where it saves what torch's default planner and a
    FileSystemWriter of this package with one file for each rank would: tensors, also on CUDA devices, and
    values that come back as they are without a pickle, to a name that may be replaced as a whole. All else is copied here and
    saved by torch's planner, on a thread. An `async_stager`, or a `storage_writer` with a `stage` of its own, is
    asked for the copy instead. A varve.torch.Stager as `async_stager` copies into its memory and saves by
    its own executor, whatever `async_checkpointer_type` says. It takes what the engine saves, and belongs
    to the caller, who closes it. With AsyncCheckpointerType.PROCESS the agent of this node
    (`varve.agent`) writes what the engine would save.

    At most two saves are under way at once. Saves are made in the order of the calls. Memory and threads
    are kept for the next save until `close`. docs/coming-from-dcp.md says how the two ways differ.

    Returns:
        A future of the Metadata with `staging_completion` and `upload_completion`, which code written
        for either of torch's two kinds of result takes; an AsyncSaveResponse itself when
        `async_stager` stages in the background. A failed save raises CheckpointError from the future,
        on every rank. Callbacks of the future must not wait for another save.

    Raises:
        UnsupportedError: A varve.torch.Stager was given and this save is not made in the default way;
            on every rank.
        InvalidArgumentError: A varve.torch.Stager was given that was made for another process group, or
            that has no process where one is asked for.
    """
    engines = async_stager if isinstance(async_stager, Stager) else None
    if engines is not None:
        process_group = process_group if process_group is not None else engines.process_group
        async_stager = None
    group = Group(process_group, no_dist)
    job = job_of(checkpoint_id, storage_writer, planner, group, use_collectives)
    executor = "thread" if async_checkpointer_type is _THREAD else "process"
    job.ask(state_dict)
    if engines is not None:
        check_stager(engines, job.group, executor == "process")
        return in_turn(job.group, f"stager {id(engines)}", lambda: save_by_stager(job, engines))
    stager = job.writer if async_stager is None and _stages(job.writer) else async_stager
    if stager_takes(job, executor, stager):
        return in_turn(job.group, f"engine's {executor}", lambda: save_by_engine(job, executor))
    return in_turn(job.group, "thread", lambda: save_by_thread(job, stager))


def _stages(writer: Any) -> bool:
    """Returns True for a writer that makes copies in its own way, not in torch's inherited one."""
    stage = getattr(type(writer), "stage", None)
    torchs_own = (BlockingAsyncStager.stage, filesystem.FileSystemWriter.stage)
    return isinstance(writer, AsyncStager) and stage not in torchs_own
