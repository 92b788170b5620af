"""A run whose result does not depend on the world, for test_manager_chaos.py."""

from __future__ import annotations

import faulthandler
import logging
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import varve
import varve.torch

STEPS = 200
SHAPE = (600, 128)

#: Seconds that no job takes.
_STUCK = 30

#: Every fifth step, and what is kept of them.
EVERY = 5
KEEP = varve.Keep(last=2, every=50, best=1, by="loss")


def update(step: int, w: torch.Tensor, m: torch.Tensor, place: torch.Tensor) -> None:
    """One step of a training in which each element goes its own way."""
    gradient = torch.sin(w + place * step)
    m.mul_(0.9).add_(gradient)
    w.sub_(m, alpha=0.01)


def places() -> torch.Tensor:
    return torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32).reshape(SHAPE) / 1000


def uninterrupted() -> tuple[torch.Tensor, torch.Tensor]:
    w, m, place = torch.zeros(SHAPE), torch.zeros(SHAPE), places()
    for step in range(1, STEPS + 1):
        update(step, w, m, place)
    return w, m


def run(rank: int, size: int, store: str, directory: str, log: str, told: Any) -> None:
    """A job: resumes, trains to the end unless it is killed, and tells from where it went on."""
    logging.basicConfig(filename=log, level=logging.INFO)
    # Where a rank stands still is in the log of the test.
    faulthandler.dump_traceback_later(_STUCK, file=open(f"{log}-{rank}", "w"))  # noqa: SIM115
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))

    def spread(whole: torch.Tensor) -> DTensor:
        return distribute_tensor(whole, mesh, [Shard(0)])

    state = {"w": spread(torch.zeros(SHAPE)), "m": spread(torch.zeros(SHAPE))}
    place = spread(places()).to_local()
    with varve.torch.CheckpointManager(directory, every=EVERY, keep=KEEP, timeout=8) as manager:
        start = manager.resume(state)
        if rank == 0:
            told.put(("resumed", start or 0))
        for step in range((start or 0) + 1, STEPS + 1):
            time.sleep(0.01)
            with torch.no_grad():
                update(step, state["w"].to_local(), state["m"].to_local(), place)
            manager.save(step, state, metrics={"loss": abs(step - 77)})
        manager.save(STEPS, state, force=True)
    if rank == 0:
        told.put(("done", STEPS))
        told.close()
        told.join_thread()
    os._exit(0)
