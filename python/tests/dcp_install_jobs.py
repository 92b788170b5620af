"""Functions that ranks run in dcp/test_install.py: code that imports torch.distributed.checkpoint alone."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed.checkpoint as torch_dcp
from rank_jobs import SHAPES, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros

import varve.torch.dcp


def by_varve(path: str) -> bool:
    """Tells who has written a DCP checkpoint: Varve's index has checksums under its name."""
    with open(os.path.join(path, ".metadata"), "rb") as index:
        return b"varve" in index.read()


def library_saves(rank: int, size: int, directory: str) -> dict[str, bool]:
    """Saves as a framework does, with Varve and without, and tells by whom each was saved."""
    mesh = init_device_mesh("cpu", (size,))
    state: dict[str, Any] = {"a": distribute_tensor(whole("a"), mesh, [Shard(0)]), "step": 3}
    with varve.torch.dcp.installed():
        torch_dcp.save(state, checkpoint_id=f"{directory}/save")
        torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(f"{directory}/writer"))
        torch_dcp.async_save(state, checkpoint_id=f"{directory}/async").result()
    torch_dcp.save(state, checkpoint_id=f"{directory}/torch")
    names = ("save", "writer", "async", "torch")
    return {name: by_varve(f"{directory}/{name}") for name in names}


def library_loads(rank: int, size: int, directory: str) -> list[str]:
    """Loads each of these checkpoints both ways; returns those that came back otherwise."""
    mesh = init_device_mesh("cpu", (size,))
    wrong = []
    for name in ("save", "writer", "async", "torch"):
        for ours in (True, False):
            state: dict[str, Any] = {"a": zeros(*SHAPES["a"], device_mesh=mesh), "step": 0}
            if ours:
                with varve.torch.dcp.installed():
                    reader = torch_dcp.FileSystemReader(f"{directory}/{name}")
                    torch_dcp.load(state, storage_reader=reader)
            else:
                torch_dcp.load(state, checkpoint_id=f"{directory}/{name}")
            if not torch.equal(state["a"].full_tensor(), whole("a")) or state["step"] != 3:
                wrong.append(f"{name}, installed: {ours}")
    return wrong
