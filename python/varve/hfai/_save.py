"""`varve.hfai.save`."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from varve import _core, _engine
from varve._arguments import RemoteOverwrite, check_remote_overwrite
from varve.errors import PreconditionError
from varve.hfai._errors import WrongTypeError
from varve.hfai._part import PartBuilder, as_list, checked_others
from varve.torch._coordinator import collective, name_of

#: Seconds that any rank waits for the others, the slowest rank's writing included.
TIMEOUT = 1800.0


def save(
    fname: str | os.PathLike[str],
    model: Module | list[Module],
    optimizer: Optimizer | list[Optimizer] | None = None,
    others: dict[Any, Any] | None = None,
    group: Any = None,
    *,
    remote_overwrite: RemoteOverwrite = "refuse",
) -> None:
    """Saves replicated models and optimizers, each rank a part of them, as the directory `fname`.

    Collective over the group: all ranks call it. A checkpoint at `fname` is replaced (in an object store
    only if `remote_overwrite` says so, and by other rules). It stays what
    readers see until the new one is whole and durable; then the new one takes its place at once, and
    no part of the old one remains. Other files in the directory are kept. Returns on every rank when
    the new checkpoint is durable, or raises the same error on every rank; then the old one is intact.
    `hfai.checkpoint.load` and `torch.load` of each part read what is written.

    Args:
        fname: On storage that all ranks share; parents are made as needed. May be called `latest.pt`. Or a
            name in an object store, "s3://bucket/run/latest.pt".
        model: A module or a list of them, the same on every rank, as with DistributedDataParallel.
            Rank 0's buffers are saved.
        optimizer: An optimizer or a list of them; None for none.
        others: Entries to store beside `model` and `optimizer`: plain values and tensors. Rank 0's
            are saved. The keys "model", "optimizer", "__nshards__" and "__version__" are taken.
        group: A process group; None for all ranks.
        remote_overwrite: Whether the save may remove a checkpoint at `fname` in an object store. Parts have fixed
            names, so an old one has no place beside the new one. "refuse" keeps the old checkpoint and fails.
            "in_place" removes the mark `.varve-uploaded` first, then writes the parts, and writes the mark
            last; until then there is no checkpoint.

    Raises:
        CheckpointExistsError: There is a checkpoint at `fname` in an object store, and `remote_overwrite` is
            "refuse".
        PreconditionError: torch.distributed is not initialized (a RuntimeError); `fname` holds
            something that is no checkpoint; another save of it is under way.
        WrongTypeError: An argument is of the wrong kind (a TypeError and an AssertionError).
        ReservedKeyError: `others` has one of the keys above (an AssertionError).
        InvalidArgumentError: Something in the state cannot be stored; the message has its name.
        OutOfSpaceError, UnavailableError: Writing failed or a rank is lost; each is named.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise PreconditionError(
            "torch.distributed is not initialized: call torch.distributed.init_process_group first, also "
            "for one process"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise WrongTypeError(
            f"`group` is a {type(group).__name__}: want a ProcessGroup that this rank is in, or None"
        )
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    with collective(group, TIMEOUT, name_of("save", fname)) as coordinator:
        try:
            where = _engine.path_text(fname)
            check_remote_overwrite(remote_overwrite)
            models = as_list("model", model, Module)
            optimizers = as_list("optimizer", optimizer, Optimizer)
            parts = PartBuilder(rank, world).build(models, optimizers, checked_others(others))
        except Exception as error:
            _engine.fail(coordinator, f"save {_engine.path_name(fname)}", error, TIMEOUT)
            raise
        overwrite: Literal[True, "in_place"] = (
            "in_place" if remote_overwrite == "in_place" else True
        )
        options = _core.SaveOptions(overwrite=overwrite, format="hfai", timeout=TIMEOUT)
        report = _core.save(parts.engine, where, options, coordinator)
        _engine.log_conflicts(where, report.conflicts)
