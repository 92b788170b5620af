"""Functions that ranks run in test_plain_plan.py."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import varve.torch.dcp as dcp


def load_beside_a_dtensor(rank: int, size: int, path: str) -> list[float]:
    """Loads into a plain tensor on rank 0, and into a DTensor on rank 1."""
    mesh = init_device_mesh("cpu", (size,))
    spread = distribute_tensor(torch.zeros(4), mesh, [Replicate()])
    state: dict[str, Any] = {"w": torch.zeros(4) if rank == 0 else spread, "s": 0}
    dcp.load(state, checkpoint_id=path)
    assert state["s"] == 3
    filled = state["w"] if rank == 0 else state["w"].to_local()
    return [float(x) for x in filled]
