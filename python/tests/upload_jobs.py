"""What ranks do in test_upload.py."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch


def state_of(size: int) -> dict[str, Any]:
    """A tensor in shards by rows, and one on all ranks."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(1_000_000, dtype=torch.int64).view(-1, 100)
    return {"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": torch.full((1000,), 7.0)}


def save_and_upload(rank: int, size: int, path: str, upload_to: str) -> None:
    varve.torch.save(state_of(size), path, upload_to=upload_to)


def save_where_one_rank_cannot_upload(rank: int, size: int, path: str, upload_to: str) -> str:
    if rank == 1:
        os.environ["AWS_SECRET_ACCESS_KEY"] = "another"
    try:
        varve.torch.save(state_of(size), path, upload_to=upload_to)
    except varve.Error as error:
        return str(error)
    return ""


def save_and_upload_in_the_background(rank: int, size: int, run: str, upload_to: str) -> None:
    state = state_of(size)
    handles = [
        varve.torch.async_save(state, f"{run}/step-{step}", upload_to=f"{upload_to}/step-{step}")
        for step in (1, 2, 3)
    ]
    for handle in handles:
        handle.result(300)


def load_ranks(rank: int, size: int, path: str) -> bool:
    state, want = state_of(size), state_of(size)
    state["w"].to_local().zero_()
    state["b"].zero_()
    varve.torch.load(state, path)
    same = torch.equal(state["w"].to_local(), want["w"].to_local())
    return same and torch.equal(state["b"], want["b"])


def train_with_uploads(rank: int, size: int, run: str, upload_to: str, last: int) -> int:
    """Trains to a step and returns the one that it went on from."""
    state = state_of(size)
    with varve.torch.CheckpointManager(run, every=1, keep=1, upload_to=upload_to) as manager:
        start = manager.resume(state) or 0
        for step in range(start + 1, last + 1):
            manager.save(step, state)
    return start


def save_with_uploads_of_its_own(
    rank: int,
    size: int,
    path: str,
    remotes: list[str | None],
    kind: str,
) -> str:
    """Each rank gives another place to upload to. Returns the error."""
    state = {"w": torch.ones(10), "rank": varve.torch.PerRank(rank)}
    try:
        if kind == "sync":
            varve.torch.save(state, path, upload_to=remotes[rank], timeout=20)
        else:
            handle = varve.torch.async_save(state, path, upload_to=remotes[rank], timeout=20)
            handle.result()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
