"""Functions that ranks run in test_plain_plan.py."""

from __future__ import annotations

import collections
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import varve.torch.dcp as dcp
from varve.torch.dcp._ranks import Ranks


def load_beside_a_dtensor(rank: int, size: int, path: str) -> list[float]:
    """Loads into a plain tensor on rank 0, and into a DTensor on rank 1."""
    mesh = init_device_mesh("cpu", (size,))
    spread = distribute_tensor(torch.zeros(4), mesh, [Replicate()])
    state: dict[str, Any] = {"w": torch.zeros(4) if rank == 0 else spread, "s": 0}
    dcp.load(state, checkpoint_id=path)
    assert state["s"] == 3
    filled = state["w"] if rank == 0 else state["w"].to_local()
    return [float(x) for x in filled]


def states_that_differ(rank: int) -> dict[str, dict[str, Any]]:
    """States whose entries are of other kinds on ranks above 0."""
    tensor = torch.arange(4.0)
    first = rank == 0
    return {
        "lengths": {"x": torch.arange(3.0 + rank), "same": tensor},
        "dtypes": {"x": tensor if first else tensor.double(), "same": tensor},
        "an iterator that has ended": {"it": {"pos": 3} if first else None, "same": tensor},
        "an empty list": {"dl": [{"a": 1}] if first else [], "same": tensor},
        "kinds of dicts": {
            "m": {"a": tensor} if first else collections.OrderedDict(a=tensor),
            "same": tensor,
        },
        "a list and a dict": {"m": [tensor] if first else {"0": tensor}, "same": tensor},
        "one name at two depths": {
            **({"a.b": tensor} if first else {"a": {"b": tensor}}),
            "same": tensor,
        },
        "keys of one text": {"m": {"1": tensor} if first else {1: tensor}, "same": tensor},
    }


def save_states_that_differ(rank: int, size: int, path: str) -> list[str]:
    """Saves each of these, and returns the names of those that torch does not open then."""
    failed = []
    for name, state in states_that_differ(rank).items():
        dcp.save(state, checkpoint_id=f"{path}/{name}")
        dcp.async_save(state, checkpoint_id=f"{path}/{name}").result()
        found = {"same": torch.zeros(4)}
        torch_dcp.load(found, checkpoint_id=f"{path}/{name}")
        if found["same"].tolist() != [0, 1, 2, 3]:
            failed.append(name)
    return failed


def replicas_that_samples_do_not_tell_apart(rank: int, size: int, path: str) -> list[int]:
    """Saves them, and returns the ranks whose values the stored tensor has."""
    tensor = torch.zeros(1_000_000)
    tensor[1000:1010] = tensor[-1010:-1000] = rank + 1
    dcp.save({"seen": tensor}, checkpoint_id=f"{path}/sync")
    dcp.async_save({"seen": tensor}, checkpoint_id=f"{path}/async").result()
    dist.barrier()
    found = []
    for way in ("sync", "async"):
        loaded = {"seen": torch.zeros(1_000_000)}
        torch_dcp.load(loaded, checkpoint_id=Path(path) / way)
        found.append(len(set(loaded["seen"].tolist()) - {0.0}))
    return found


def replicas_that_differ_where_a_warning_is_an_error(rank: int, size: int, path: str) -> str:
    """Saves them, and returns the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            dcp.save({"w": torch.full((4,), float(rank))}, checkpoint_id=f"{path}/c")
        except dcp.CheckpointError as error:
            return str(error)
    return ""


def save_while_a_rank_ends_after_it(rank: int, size: int, path: str) -> tuple[bool, float]:
    """Saves while the last rank gets Ctrl-C when the checkpoint stands; whether it returned, and seconds."""
    combine = Ranks.combine

    def interrupted(self: Any, step: str, *args: Any) -> Any:
        if step == "read":
            raise KeyboardInterrupt
        return combine(self, step, *args)

    if rank == size - 1:
        Ranks.combine = interrupted  # type: ignore[method-assign]
    began = time.monotonic()
    try:
        made = dcp.save({"w": torch.ones(4)}, checkpoint_id=f"{path}/c")
        returned = made.storage_meta is not None
    except KeyboardInterrupt:
        returned = False
    return returned, time.monotonic() - began
