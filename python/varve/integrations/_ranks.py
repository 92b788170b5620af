"""Decisions of rank 0 that all ranks of a job follow, and loads of values that differ between ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import varve.torch
from varve._arguments import first_names
from varve._manage._decisions import told_by_rank_0
from varve._warn import warn
from varve.errors import ReplicasDifferWarning
from varve.torch._coordinator import collective


def by_rank_0(what: str, decide: Callable[[], Any], timeout: float = 1800.0) -> Any:
    """Returns, on every rank of the job, what `decide` returns on rank 0. Collective.

    The ranks exchange messages as saves do, so it does not matter which backend the job uses.

    Args:
        what: Names the call in messages, the same on all ranks.
        decide: Called on rank 0 alone; returns what JSON can hold.
        timeout: Seconds that ranks wait for each other, `decide` included.

    Raises:
        varve.Error: `decide` has failed; on every rank, with its message.
    """
    return told_by_rank_0(collective(None, timeout, what), what, decide, timeout)


def rank_of_job() -> int:
    """Returns this process's rank; 0 without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def load_own_or_first(state: Any, path: str, **options: Any) -> varve.LoadReport:
    """Loads each rank's own values where as many ranks load as saved, and else the lowest rank's.

    Those are what the framework's own checkpoint would have, of BatchNorm's buffers under
    DistributedDataParallel for example. Warns of them. `options` are those of `varve.torch.load`.
    """
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    try:
        as_saved = varve.torch.open(path).world_size in (None, world)
    except varve.Error:
        as_saved = True  # The load fails as well, on all ranks together.
    report = varve.torch.load(state, path, on_difference="keep" if as_saved else "first", **options)
    if report.merged and rank_of_job() == 0:
        warn(
            f"load {path}: another number of ranks saved, and held different values under one name: "
            f"{first_names(report.merged)}. The lowest rank's value is loaded",
            ReplicasDifferWarning,
        )
    return report
