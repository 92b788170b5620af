"""Functions that ranks run in test_wrapped_stock.py."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.two_tensor import TwoTensor

import varve.torch


def replicas() -> dict[str, Any]:
    """Returns the state that every data-parallel rank holds: four tensors, and one under two names."""
    state: dict[str, Any] = {f"w{i}": two(i, 256) for i in range(4)}
    state["tied"] = state["w2"]
    return state


def two(fill: float, rows: int = 8) -> TwoTensor:
    return TwoTensor(torch.full((rows, 64), float(fill)), torch.full((rows, 64), float(fill) + 0.5))


def save(rank: int, size: int, path: str) -> None:
    """Saves replicas, a tensor of rank 1 alone, one that differs, and a sharded one."""
    mesh = init_device_mesh("cpu", (size,))
    state = replicas()
    if rank == 1:
        state["own"] = two(9)
    state["differs"] = two(100 + rank)
    state["rows"] = DTensor.from_local(two(rank), mesh, [Shard(0)], run_check=False)
    varve.torch.save(state, path, format="dcp")


def load(rank: int, size: int, path: str) -> bool:
    """Loads replicas into others; True where they are as they were saved."""
    wanted = replicas()
    state = {name: two(-1, 256) for name in wanted}
    varve.torch.load(state, path)
    pairs = ((state[name], wanted[name]) for name in wanted)
    return all(torch.equal(a.a, b.a) and torch.equal(a.b, b.b) for a, b in pairs)
