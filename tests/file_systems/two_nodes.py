"""Saves, loads and removes checkpoints as one of two ranks, each on a node of its own; `nfs` starts both.

python3 two_nodes.py RANK DIRECTORY
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch

RANK, RUN = int(sys.argv[1]), sys.argv[2]
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.venv/bin")

#: Checkpoints that stay open, as in a job that evaluates them.
opened: list[Any] = []


def state(value: int) -> dict[str, Any]:
    whole = torch.full((256, 1024), float(value))
    return {"w": distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)])}


def holds(loaded: dict[str, Any], value: int) -> bool:
    return bool((loaded["w"].to_local() == value).all())


def check(path: str, value: int) -> None:
    """Loads on both nodes, then reads and opens on each alone."""
    loaded = state(-1)
    varve.torch.load(loaded, path)
    assert holds(loaded, value), path
    assert bool((varve.torch.read(path)["w"] == value).all()), path
    opened.append(varve.open(path))


def names_that_were_not_there(format: Any) -> None:
    """Each rank has looked for the name before the save."""
    for value in range(3):
        path = f"{RUN}/{format}-{value}"
        assert not os.path.exists(path)
        varve.torch.save(state(value), path, format=format)
        check(path, value)


def names_that_were_another_checkpoint(format: Any) -> None:
    for value in range(100, 104):
        varve.torch.save(state(value), f"{RUN}/{format}", format=format, overwrite=True)
        check(f"{RUN}/{format}", value)


def steps() -> list[str]:
    return sorted(name for name in os.listdir(f"{RUN}/steps") if name.startswith("step-"))


def a_run_that_keeps_two_steps() -> None:
    """Each node has all steps open that it has seen."""
    with varve.torch.CheckpointManager(f"{RUN}/steps", every=1, keep=2) as manager:
        assert manager.resume(state(-1)) is None
        for step in range(1, 6):
            manager.save(step, state(step))
            manager.wait()
            check(f"{RUN}/steps/step-{step:08d}", step)
            dist.barrier()
    resumed = state(-1)
    with varve.torch.CheckpointManager(f"{RUN}/steps", every=1, keep=2) as manager:
        assert manager.resume(resumed) == 5 and holds(resumed, 5)
    opened.clear()
    dist.barrier()
    with varve.torch.CheckpointManager(f"{RUN}/steps", every=1, keep=2) as manager:
        manager.resume(state(-1))
        manager.save(6, state(6))
    dist.barrier()
    if RANK == 1:
        assert len(steps()) <= 3, steps()
        collected = subprocess.run([f"{PROGRAMS}/varve", "gc", f"{RUN}/steps"], check=False)
        assert collected.returncode == 0
        left = [each for each in os.listdir(f"{RUN}/steps") if each.startswith(".step-")]
        assert not left or not RUN.endswith("4.2"), left  # Without locks gc keeps what it finds.


def main() -> None:
    os.environ.update(MASTER_ADDR="10.0.0.10", MASTER_PORT="29511", GLOO_SOCKET_IFNAME="eth0")
    dist.init_process_group("gloo", rank=RANK, world_size=2)
    for format in ("varve", "dcp", "hf"):
        names_that_were_not_there(format)
        names_that_were_another_checkpoint(format)
        print(RUN, f"rank {RANK}", format, "ok", flush=True)
    a_run_that_keeps_two_steps()
    dist.barrier()
    dist.destroy_process_group()
    print("ended")


if __name__ == "__main__":
    main()
