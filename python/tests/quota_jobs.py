"""Functions that ranks run in test_quota.py, under no_quota.c. Arguments: rank, size, then their own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch


def state(value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute_tensor(torch.full((8, 64), value), mesh, [Shard(0)]), "n": value}


def assert_holds(path: Path, value: float) -> None:
    assert varve.verify(path) == []
    read = varve.torch.read(path)
    assert read["n"] == value and bool((read["w"] == value).all())


def under_quota(rank: int, size: int, at: str, now: str, job: str, *arguments: Any) -> str:
    """Runs a job of this module. While the file `now` exists no name that matches `at` can be made."""
    os.environ.update(NO_QUOTA_AT=at, NO_QUOTA_NOW=now)
    message: str = globals()[job](rank, size, *arguments)
    return message


def quota_is(used_up: bool) -> None:
    """Sets the quota for all ranks."""
    dist.barrier()
    now = Path(os.environ["NO_QUOTA_NOW"])
    if dist.get_rank() == 0:
        now.touch() if used_up else now.unlink()
    dist.barrier()


def refused(save: Callable[[], object]) -> str:
    try:
        save()
    except varve.OutOfSpaceError as error:
        assert error.errno == errno.EDQUOT, error
        return str(error)
    raise AssertionError("saved though the quota is used up")


def save_in(format: str, path: Path, value: float, **options: Any) -> None:
    varve.torch.save(state(value), path, format=format, **options)


def save_next(rank: int, size: int, root: str, format: str) -> str:
    """The step before stays, and the next save works."""
    run = Path(root)
    save_in(format, run / "step-1", 1)
    quota_is(used_up=True)
    message = refused(lambda: save_in(format, run / "step-2", 2))
    dist.barrier()
    assert os.listdir(run) == ["step-1"]
    assert [one.name for one in varve.list_checkpoints(run)] == ["step-1"]
    assert_holds(run / "step-1", 1)
    quota_is(used_up=False)
    save_in(format, run / "step-2", 2)
    assert_holds(run / "step-2", 2)
    return message


def overwrite(rank: int, size: int, root: str, format: str) -> str:
    """The old checkpoint stays, with the file that a user has put beside it."""
    path = Path(root) / "step-1"
    save_in(format, path, 1)
    if rank == 0:
        (path / "notes.txt").write_text("mine")
    quota_is(used_up=True)
    message = refused(lambda: save_in(format, path, 2, overwrite=True))
    dist.barrier()
    assert os.listdir(root) == ["step-1"]
    assert (path / "notes.txt").read_text() == "mine"
    assert_holds(path, 1)
    quota_is(used_up=False)
    save_in(format, path, 2, overwrite=True)
    assert_holds(path, 2)
    assert (path / "notes.txt").read_text() == "mine"
    return message


def save_apart(rank: int, size: int, root: str, format: str) -> str:
    """Ranks that save without coordination rename a file each."""
    path = Path(root) / "step-1"
    quota_is(used_up=True)
    message = refused(lambda: save_in(format, path, 1, coordinate=False))
    quota_is(used_up=False)
    save_in(format, path, 2, coordinate=False)
    dist.barrier()
    assert_holds(path, 2)
    return message


def save_in_background(rank: int, size: int, root: str, format: str) -> str:
    run = Path(root)
    varve.torch.async_save(state(1), run / "step-1", format=format).result()
    quota_is(used_up=True)
    handle = varve.torch.async_save(state(2), run / "step-2", format=format)
    message = refused(handle.result)
    dist.barrier()
    assert_holds(run / "step-1", 1)
    states = {one.name: one.state for one in varve.list_checkpoints(run)}
    assert states == {"step-1": "whole", "step-2": "failed"}  # A note of what failed.
    quota_is(used_up=False)
    varve.torch.async_save(state(3), run / "step-3", format=format).result()
    assert_holds(run / "step-3", 3)
    return message
