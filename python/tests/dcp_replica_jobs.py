"""Functions that ranks run in dcp/test_replicas.py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rank_jobs import placed
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import Replicate, Shard

import varve
import varve.torch.dcp as dcp


def _differences(call: Callable[[], Any]) -> list[str]:
    """Texts of the warnings of replicas that differ."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if w.category is varve.ReplicasDifferWarning]


def replicas(rank: int, size: int, directory: str, kind: str) -> dict[str, list[str]]:
    """Saves equal and diverged replicas; returns the warnings by save."""
    large = torch.arange(300_000.0)
    equal = {"model": {"large": large, "small": torch.ones(7), "odd": large[::3]}, "rank": rank}
    diverged = {
        "model": {"large": large + rank, "small": torch.ones(7)},
        "buffers": {f"b{i}": torch.full((3,), float(rank)) for i in range(12)},
        f"own{rank}": torch.full((5,), float(rank)),
    }
    sharded: dict[str, Any] = dict(placed(((size,), (Shard(0),)), True))
    sharded |= {f"r.{name}": t for name, t in placed(((size,), (Replicate(),)), True).items()}

    def save(name: str, state: dict[str, Any], **options: Any) -> list[str]:
        path = os.path.join(directory, name)
        if kind == "async":
            return _differences(lambda: dcp.async_save(state, checkpoint_id=path).result())
        if kind == "deprecated":
            writer = dcp.FileSystemWriter(path)
            return _differences(lambda: dcp.save_state_dict(state, writer))
        return _differences(lambda: dcp.save(state, checkpoint_id=path, **options))

    found = {"equal": save("equal", equal), "sharded": save("sharded", sharded)}
    if kind != "deprecated":  # It does not flatten, but for what torch's planner flattens itself.
        found["diverged"] = save("diverged", diverged)
        loaded = {"model": {"small": torch.zeros(7)}, f"own{rank}": torch.zeros(5)}
        dcp.load(loaded, checkpoint_id=os.path.join(directory, "diverged"))
        assert bool((loaded["model"]["small"] == 1).all())
        assert bool((loaded[f"own{rank}"] == rank).all())
    if kind == "sync":
        planner = DefaultSavePlanner()
        found["planner"] = save("planner", {"w": torch.full((4,), float(rank))}, planner=planner)
        found["casting"] = save("casting", {"w": torch.full((4,), float(rank))}, planner=_Casting())
        found["alone"] = save("alone", {"w": large + rank}, use_collectives=False)
    return found


class _Casting(DefaultSavePlanner):
    """Resolves tensors in a way of its own."""

    def lookup_object(self, index: Any) -> Any:
        return super().lookup_object(index).double().float()
