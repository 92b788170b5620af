"""Functions that ranks run in test_cuda_ranks.py. Arguments: rank, size, the stand-in's library, then their own."""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import cuda_stand_in
import torch
import torch.distributed as dist
from cuda_stand_in import on_device
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import varve
import varve.torch
import varve.torch.dcp as dcp


class _Planner(DefaultSavePlanner):
    """One of a caller's, which no save by the engine takes."""


#: Saves a state on all ranks.
SAVES: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "save": varve.torch.save,
    "save, as DCP": lambda state, path: varve.torch.save(state, path, format="dcp"),
    "save, as Hugging Face": lambda state, path: varve.torch.save(state, path, format="hf"),
    "async_save": lambda state, path: varve.torch.async_save(state, path).result(),
    "overlapped": lambda state, path: varve.torch.async_save(
        state, path, staging="overlapped"
    ).result(),
    "drop-in save": lambda state, path: dcp.save(state, checkpoint_id=path),
    "drop-in save, a planner": lambda state, path: dcp.save(
        state, checkpoint_id=path, planner=_Planner()
    ),
    "drop-in async_save": lambda state, path: dcp.async_save(state, checkpoint_id=path).result(),
    "drop-in async_save, a planner": lambda state, path: dcp.async_save(
        state, checkpoint_id=path, planner=_Planner()
    ).result(),
}


def replicas(rank: int, size: int, library: str, directory: str) -> dict[str, list[str]]:
    """Saves replicas on devices in each way, of which some differ; returns what was warned of."""
    cuda_stand_in.install(library)
    large = torch.arange(300_000.0)
    mesh = init_device_mesh("cpu", (size,))
    rows = on_device(torch.arange(16.0).view(4, 4) + rank, rank)
    state = {
        "equal": {"large": on_device(large, rank), "small": on_device(torch.ones(7), rank)},
        "strided": on_device(large.view(500, 600), rank).t(),
        "sharded": DTensor.from_local(rows, mesh, [Shard(0)], run_check=False),
        "replicated": DTensor.from_local(
            on_device(large[:99], rank), mesh, [Replicate()], run_check=False
        ),
        "differs": {
            "large": on_device(large + rank, rank),
            "small": on_device(torch.full((7,), float(rank)), rank),
            "strided": on_device(large.view(600, 500) + rank, rank).t(),
        },
        f"own{rank}": on_device(torch.full((5,), float(rank)), rank),
    }
    found: dict[str, list[str]] = {}
    for kind, save in SAVES.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            save(state, os.path.join(directory, kind, "saved"))
        found[kind] = [str(w.message) for w in caught if w.category is varve.ReplicasDifferWarning]
    return found


def by_columns(rank: int, size: int, library: str, path: str) -> dict[str, Any]:
    """Loads what `replicas` saved by rows into columns on devices; returns this rank's part."""
    cuda_stand_in.install(library)
    mesh = init_device_mesh("cpu", (size,))
    columns = on_device(torch.zeros(8, 2), rank)
    small = on_device(torch.zeros(7), rank)
    state = {
        "sharded": DTensor.from_local(columns, mesh, [Shard(1)], run_check=False),
        "equal": {"small": small},
    }
    report = varve.torch.load(state, path)
    return {
        "device_bytes": report.device_bytes,
        "copied_ahead": report.copied_ahead.tensors,
        "columns": cuda_stand_in.peek(columns).tolist(),
        "small": cuda_stand_in.peek(small).tolist(),
    }


def without_driver(rank: int, size: int, directory: str, library: str | None) -> dict[str, Any]:
    """Saves and loads tensors of devices where the engine can use none; `library` is the driver, if any."""
    if library is not None:
        driver: Any = ctypes.CDLL(library)
        if hasattr(driver, "fake_cuda_fail"):
            driver.fake_cuda_fail(b"cuInit", 100, 0)
    cuda_stand_in.pretend()
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("varve").addHandler(handler)
    wanted = {"a": torch.arange(1000.0), "b": torch.arange(600).view(20, 30).t()}
    state = {name: cuda_stand_in.claim(t.clone(), 0) for name, t in wanted.items()}
    out: dict[str, Any] = {"same": []}
    ahead = []
    for kind in (
        "save",
        "async_save",
        "overlapped",
        "drop-in save",
        "drop-in async_save, a planner",
    ):
        path = os.path.join(directory, kind, "saved")
        made = SAVES[kind](state, path)
        ahead += [made.copied_ahead] if "drop-in" not in kind else []
        into = {n: cuda_stand_in.claim(torch.zeros_like(t), 0) for n, t in wanted.items()}
        ahead.append(varve.torch.load(into, path).copied_ahead)
        out["same"].append(all(torch.equal(into[name], t) for name, t in wanted.items()))
    out["tensors"] = [each.tensors for each in ahead]
    out["problems"] = sorted({each.problem for each in ahead})
    out["logged"] = logged
    try:
        varve.torch.Stager(copy_from_devices=True)
    except varve.Error as error:
        out["stager"] = str(error)
    return out


def a_device_that_fails(rank: int, size: int, library: str, directory: str) -> list[str]:
    """Lets a device of rank 1 fail while its replicas are read to be compared; saves once more."""
    cuda_stand_in.install(library)
    state = {"w": on_device(torch.arange(300_000.0), rank)}
    path = os.path.join(directory, "saved")
    dist.barrier()
    if rank == 1:
        cuda_stand_in.driver.fake_cuda_fail(b"cuEventSynchronize", 719, 0)
    errors = []
    for _ in range(2):
        try:
            dcp.save(state, checkpoint_id=path)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors
