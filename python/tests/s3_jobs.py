"""What ranks and killed processes do in test_s3.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from async_jobs import state_of as state_of_one
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch

MIB = 1 << 20


def state_of(value: int, size: int, mebibytes: int = 4) -> dict[str, Any]:
    """A tensor in shards by rows, one on all ranks and plain values."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(mebibytes * MIB // 8, dtype=torch.int64).view(-1, 64) + value
    return {
        "w": distribute_tensor(whole, mesh, [Shard(0)]),
        "b": torch.full((1000,), float(value)),
        "step": value,
    }


def save_ranks(rank: int, size: int, path: str, value: int, overwrite: bool) -> None:
    varve.torch.save(state_of(value, size), path, overwrite=overwrite)


def save_asynchronously(rank: int, size: int, path: str) -> None:
    handle = varve.torch.async_save(state_of(3, size), path)
    handle.result(300.0)


def load_ranks(rank: int, size: int, path: str) -> tuple[int, bool]:
    state = state_of(0, size)
    varve.torch.load(state, path)
    want = state_of(state["step"], size)
    same = torch.equal(state["w"].to_local(), want["w"].to_local())
    return state["step"], same and torch.equal(state["b"], want["b"])


def die_in_a_save(path: str, after: float) -> None:
    """Saves 512 MiB over and over, and is killed."""
    state = {"w": torch.zeros(512 * MIB, dtype=torch.uint8)}

    def kill() -> None:
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    while True:
        varve.torch.save(state, path, overwrite=True)


def submit_and_die(path: str, value: int) -> None:
    """Submits one save to the agent, and is killed."""
    handle = varve.torch.async_save(state_of_one(value, 20), path, executor="process")
    handle.wait_staged()
    os.kill(os.getpid(), signal.SIGKILL)


def defer_and_die(rank: int, size: int, prefix: str) -> None:
    """Leaves six deferred saves with the agent, one after the other, and is killed."""
    stager = varve.torch.Stager(executor="process", memory_budget=256 * MIB, timeout=60.0)
    for value in range(1, 7):
        state = {f"rank{rank}": state_of_one(value)["w"], "step": value}
        varve.torch.defer_save(state, f"{prefix}/step-{value}", stager=stager).result()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def train_with_agent_and_die(run: str) -> None:
    """Saves steps 1 to 5 by a manager, and is killed while the agent writes the last."""
    manager = varve.torch.CheckpointManager(run, every=1, executor="process")
    for step in range(1, 6):
        handle = manager.save(step, state_of_one(step))
        assert handle is not None
        handle.wait_staged()
    os.kill(os.getpid(), signal.SIGKILL)


def submit_with_keys_and_die(path: str, seconds: float) -> None:
    """Submits a save whose keys come from a function and end, and is killed."""
    keys = os.environ.pop("AWS_ACCESS_KEY_ID"), os.environ.pop("AWS_SECRET_ACCESS_KEY")
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    expires = time.time() + seconds
    varve.set_s3_credentials(lambda: varve.storage.S3Credentials(*keys, expires=expires))
    handle = varve.torch.async_save(
        state_of_one(7, 20), path, executor="process", max_write_bandwidth=4 * MIB
    )
    handle.wait_staged()
    os.kill(os.getpid(), signal.SIGKILL)
