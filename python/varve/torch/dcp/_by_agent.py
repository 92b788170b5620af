"""async_save by another process: Varve's agent instead of a Python interpreter of torch's.

The agent writes what the engine lays out itself. So it takes saves for which torch's planner would do
what the engine does, of values that need no pickle, by one file for each rank; all else goes to torch's
process. The ranks agree on which of the two it is, for a rank that went the other way would be waited
for.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import (  # type: ignore[attr-defined]
    ShardedTensor,
)
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.tensor import DTensor

import varve.torch
from varve import _engine, _tree
from varve.torch._stager import stager_of
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._errors import Group, checkpoint_error
from varve.torch.dcp._publish import is_replaceable
from varve.torch.dcp._reader import FileSystemReader
from varve.torch.dcp._writer import FileSystemWriter

#: Seconds that ranks wait for each other, as in `varve.torch.async_save`.
_TIMEOUT = 1800.0


def agent_takes(
    group: Group,
    state: dict[str, Any] | None,
    writer: Any,
    planner: SavePlanner | None,
    use_collectives: bool,
) -> bool:
    """True, on all ranks alike, where the agent writes what torch's process would."""
    takes = False
    with contextlib.suppress(Exception):  # Torch will say what is wrong; the others wait for us.
        takes = (
            state is not None
            and use_collectives
            and _writes_plainly(writer)
            and _plans_plainly(planner)
            and _engine.needs_no_pickle(state, TorchArrays())
            and _are_plain(state)
            and stager_of(group.process_group, "process", _TIMEOUT) is not None
        )
    if not dist.is_available() or not dist.is_initialized():
        return takes
    if group.alone:
        return False  # The engine would take all ranks of the job for those that save.
    answers: list[Any] = [None] * dist.get_world_size(group.process_group)
    dist.all_gather_object(answers, takes, group.process_group)
    return all(answers)


def save_by_agent(
    what: str, group: Group, state: dict[str, Any], writer: FileSystemWriter, out: Future[Any]
) -> Future[None]:
    """Hands a copy over; `out` gets the Metadata or the failure. Returns the future of the copy."""
    path = str(writer.path)
    rank = group.rank

    def end(done: varve.torch.SaveHandle) -> None:
        failure: BaseException | None = done.exception()
        try:
            if failure is None:
                out.set_result(FileSystemReader(path).read_metadata())
                return
        except Exception as error:
            failure = error
        assert failure is not None
        failed = CheckpointException("write", {rank: _wrap_exception(failure)})
        out.set_exception(checkpoint_error(what, failed, rank))

    handle = varve.torch.async_save(
        state,
        path,
        process_group=group.process_group,
        executor="process",
        overwrite=writer.overwrite,
        format="dcp",
        timeout=_TIMEOUT,
        on_done=end,
    )
    return handle.staging_completion


def _are_plain(state: dict[str, Any]) -> bool:
    """True where torch's planner takes for tensors what we do: not arrays, nor odd tensors."""
    arrays = TorchArrays()
    flat = _tree.Flattener(0, arrays.is_tensor, arrays.origin)
    flat.flatten(state)
    return all(_is_plain(tensor) for _, tensor in flat.tensors)


def _is_plain(tensor: Any) -> bool:
    if isinstance(tensor, ShardedTensor):
        return all(_is_plain(shard.tensor) for shard in tensor.local_shards())
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
    )


def _writes_plainly(writer: Any) -> bool:
    return (
        type(writer) is FileSystemWriter
        and writer.single_file_per_rank
        and writer.thread_count == 1
        and not writer._transforms
        and is_replaceable(os.path.realpath(writer.path))
    )


def _plans_plainly(planner: SavePlanner | None) -> bool:
    return planner is None or (
        type(planner) is DefaultSavePlanner
        and planner.flatten_state_dict
        and planner.flatten_sharded_tensors
    )
