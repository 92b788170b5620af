"""Loads for frameworks whose own checkpoints hold one rank's value of what differs between ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import varve.torch
from varve._engine import first_names
from varve._warn import warn
from varve.errors import ReplicasDifferWarning


def load_own_or_first(state: Any, path: str, **options: Any) -> varve.LoadReport:
    """Loads each rank's own values where as many ranks load as saved, and else the lowest rank's.

    Those are what the framework's own checkpoint would have, of BatchNorm's buffers under
    DistributedDataParallel for example. Warns of them. `options` are those of `varve.torch.load`.
    """
    joined = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if joined else 1
    try:
        as_saved = varve.torch.open(path).world_size in (None, world)
    except varve.Error:
        as_saved = True  # The load fails as well, on all ranks together.
    report = varve.torch.load(state, path, on_difference="keep" if as_saved else "first", **options)
    if report.merged and (not joined or dist.get_rank() == 0):
        warn(
            f"load {path}: another number of ranks saved, and held different values under one name: "
            f"{first_names(report.merged)}. What is loaded is the lowest rank's",
            ReplicasDifferWarning,
        )
    return report
