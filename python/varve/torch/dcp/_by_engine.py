"""async_save by a varve.torch.Stager: one of the caller's, or the one that submits saves to the agent.

A stager writes what the engine lays out itself. So it takes saves for which torch's planner would do
what the engine does, of values that need no pickle, by one file for each rank. Where a process is asked
for, all else goes to torch's process; with a stager of the caller's, all else is refused. The ranks agree
on which it is, for a rank that went the other way would be waited for.
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
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch._stager import Stager, close_made, stager_of
from varve.torch._tensors import TorchArrays
from varve.torch.dcp._errors import CheckpointError, Group, agree, checkpoint_error
from varve.torch.dcp._publish import is_replaceable
from varve.torch.dcp._reader import FileSystemReader
from varve.torch.dcp._writer import FileSystemWriter

#: Seconds that ranks wait for each other, as in `varve.torch.async_save`.
_TIMEOUT = 1800.0

#: Whose stagers those are that are made here.
_OWNER = "varve.torch.dcp"


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
            and _obstacle(group, state, writer, planner, use_collectives) is None
            and _agents(group) is not None
        )
    return all(_gathered(group, takes))


def save_by_agent(
    what: str, group: Group, state: dict[str, Any], writer: FileSystemWriter, out: Future[Any]
) -> Future[None]:
    """Submits a copy; `out` gets the Metadata or the failure. Returns the future of the copy."""
    return _save(what, group, state, writer, _agents(group), out)


def check_stager(stager: Stager, group: Group, process: bool) -> None:
    """Raises InvalidArgumentError where a stager of the caller's and other arguments contradict."""
    if group.process_group is not stager.process_group:
        raise InvalidArgumentError("async_stager was made for another process_group")
    if process and stager.executor != "process":
        raise InvalidArgumentError(
            f"async_stager was made with executor={stager.executor!r}; AsyncCheckpointerType.PROCESS "
            'needs one with executor="process"'
        )


def save_by_stager(
    what: str,
    group: Group,
    state: dict[str, Any] | None,
    failure: Exception | None,
    writer: Any,
    planner: SavePlanner | None,
    use_collectives: bool,
    stager: Stager,
    out: Future[Any],
) -> Future[None]:
    """Saves on a stager of the caller's. `out` gets the Metadata or the failure; as `save_by_agent`.

    Raises UnsupportedError, on all ranks alike, for a save that the engine would make otherwise than
    the planner and writer that were given.
    """
    try:
        agree(what, "state_dict", failure, group)
    except CheckpointError as error:
        out.set_exception(error)
        staged: Future[None] = Future()
        staged.set_exception(error)
        return staged
    assert state is not None
    try:
        obstacle = _obstacle(group, state, writer, planner, use_collectives)
        stager.memory_budget  # noqa: B018  Raises for one that is closed.
    except Exception as error:  # The others are about to wait for this rank.
        obstacle = f"{type(error).__name__}: {error}"
    for rank, reason in enumerate(_gathered(group, obstacle)):
        if reason is not None:
            raise UnsupportedError(
                f"{what}: a varve.torch.Stager saves by the engine's own plan; rank {rank}: {reason}. "
                "Leave async_stager out"
            )
    return _save(what, group, state, writer, stager, out)


def close_stagers() -> None:
    """Waits for the saves of the stagers that were made here, and closes them."""
    close_made(_OWNER)


def _agents(group: Group) -> Stager:
    """The stager of the group that submits to the agent."""
    return stager_of(group.process_group, "process", _TIMEOUT, _OWNER)


def _gathered(group: Group, answer: Any) -> list[Any]:
    """The answers of all ranks, by rank."""
    if group.alone:
        return [answer]
    answers: list[Any] = [None] * group.size
    dist.all_gather_object(answers, answer, group.process_group)
    return answers


def _obstacle(
    group: Group,
    state: dict[str, Any],
    writer: Any,
    planner: SavePlanner | None,
    use_collectives: bool,
) -> str | None:
    """Why the engine would not save as torch's planner and the writer do; None where it would."""
    if group.alone and dist.is_available() and dist.is_initialized():
        return "no_dist=True, and the engine takes all ranks of the job for those that save"
    if not use_collectives:
        return "use_collectives=False"
    if not _writes_plainly(writer):
        return (
            "the storage is not a FileSystemWriter of varve.torch.dcp with one file for each rank, "
            "without extensions, to a name that can be replaced as a whole"
        )
    if not _plans_plainly(planner):
        return "the planner is not torch's default one, or does not flatten"
    if not _engine.needs_no_pickle(state, TorchArrays()):
        return "the state has values that need a pickle"
    if not _are_plain(state):
        return "the state has arrays or tensors that torch's planner takes for values"
    return None


def _save(
    what: str,
    group: Group,
    state: dict[str, Any],
    writer: FileSystemWriter,
    stager: Stager,
    out: Future[Any],
) -> Future[None]:
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
        stager=stager,
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
