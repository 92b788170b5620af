"""Functions that ranks run in test_replicas.py and test_ties.py."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import varve.torch

#: Of a save: names of tensors that differ in the report, and texts of warnings.
Outcome = tuple[list[str], list[str]]

ELEMENTS = 300_000  # 1.2 MB: before, each rank would have stored a part of it.


def diverged(rank: int, same: bool = False) -> dict[str, Any]:
    return {
        "w": torch.full((ELEMENTS,), 0.0 if same else float(rank)),
        "mean": torch.full((16,), float(rank)),
        "same": torch.arange(ELEMENTS),
    }


def save_diverged(rank: int, size: int, path: str, how: str, options: dict[str, Any]) -> Outcome:
    state = diverged(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "save":
            report = varve.torch.save(state, path, **options)
            here = __file__
        else:
            handle = varve.torch.async_save(state, path, executor=how, **options)
            report = handle.result()
            here = __file__
    for warning in caught:
        assert warning.filename == here
    return report.differing_tensors, [
        str(w.message) for w in caught if w.category is varve.ReplicasDifferWarning
    ]


def save_diverged_hsdp(rank: int, size: int, path: str) -> Outcome:
    """Two replicas of two shards; the second shard's differ."""
    mesh = init_device_mesh("cpu", (2, 2))
    local = torch.full((ELEMENTS // 2, 3), float(rank % 2))
    if rank == 3:
        local += 100
    state = {"w": DTensor.from_local(local, mesh, [Replicate(), Shard(0)], run_check=False)}
    report = varve.torch.save(state, path)
    return report.differing_tensors, []


def save_sparse(rank: int, size: int, path: str) -> list[int]:
    """Saves rows of each rank's own, none of which a sample covers; returns whose rows are stored."""
    moments = torch.zeros(ELEMENTS)
    moments[20 + rank :: ELEMENTS // 7] = rank + 1.0
    varve.torch.save({"w": moments}, path)
    stored = varve.torch.read(path)["w"]
    return stored.unique().tolist()


def save_flipped_bit(rank: int, size: int, path: str, options: dict[str, Any]) -> Outcome:
    """Differs in one element that no sample covers."""
    tensor = torch.arange(ELEMENTS, dtype=torch.float32)
    if rank == 1:
        tensor[20] += 0.5
    report = varve.torch.save({"w": tensor}, path, **options)
    return report.differing_tensors, []


def save_batch_norm(rank: int, size: int, path: str) -> Outcome:
    """BatchNorm buffers under DDP differ between ranks after a forward pass."""
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(32))
    model(torch.randn(8, 32, generator=torch.Generator().manual_seed(rank)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = varve.torch.save({"model": model.module}, path)
        dist.barrier()
    return report.differing_tensors, [str(w.message) for w in caught]


def save_tied(rank: int, size: int, path: str, kind: str, rows: int, columns: int) -> None:
    """Two names of one memory, as shards by rows or as replicas; "one rank": untied on rank 1."""
    whole = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    mesh = init_device_mesh("cpu", (size,))
    placement = Replicate() if kind == "replicas" else Shard(0)
    embed = distribute_tensor(whole, mesh, [placement])
    other = distribute_tensor(whole.clone(), mesh, [placement])
    head = other if kind == "one rank" and rank == 1 else embed
    varve.torch.save({"embed": embed, "head": head}, path)
