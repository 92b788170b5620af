"""One rank of the script `hosts`: hosts_job.py DIRECTORY KIND."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import varve
import varve.torch


def save_and_load(run: Path) -> None:
    """Saves in each way, and loads along the other dimension."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole = {f"t{i}": torch.randn(64, 64) for i in range(50)}

    def sharded(dim: int) -> dict[str, Any]:
        return {name: distribute_tensor(each, mesh, [Shard(dim)]) for name, each in whole.items()}

    varve.torch.save(sharded(0), run / "first")
    varve.torch.async_save(sharded(0), run / "second").result()
    with varve.torch.CheckpointManager(run / "steps", every=5) as manager:
        for step in range(1, 21):
            manager.save(step, sharded(0))
    for name in ("first", "second", "steps/step-00000020"):
        state = sharded(1)
        for each in state.values():
            each.zero_()
        varve.torch.load(state, run / name)
        assert all(each.full_tensor().equal(whole[key]) for key, each in state.items())
    print(f"rank {dist.get_rank()}: all equal", flush=True)


def lose_a_machine(run: Path, kind: str) -> None:
    """Tells the script to cut the third machine off, and waits for a save that cannot end."""
    rank = dist.get_rank()
    state = {"w": torch.ones(1000), "own": varve.torch.PerRank(torch.zeros(5 << 20))}
    varve.torch.save(state, run / "before")

    def cut() -> None:
        if rank == 0:
            (run.parent / "cut").touch()
        time.sleep(1.5)

    begun = time.monotonic()
    try:
        if kind == "within":
            handle = varve.torch.async_save(state, run / kind, max_write_bandwidth=5 << 20)
            cut()
            handle.result()
        else:
            if kind == "before" or rank == 0:
                cut()
            varve.torch.save(state, run / kind)
        print(f"rank {rank}: saved", flush=True)
    except varve.Error as error:
        print(f"rank {rank}: after {time.monotonic() - begun:.0f} s: {error}", flush=True)
    os._exit(0)  # torch's own end would wait for the lost machine.


def main() -> None:
    dist.init_process_group("gloo")
    del os.environ["GLOO_SOCKET_IFNAME"]
    if not os.environ.get("VARVE_FAN_OUT"):
        os.environ.pop("VARVE_FAN_OUT", None)
    run = Path(sys.argv[1]) / "run"
    if dist.get_rank() == 0:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
    dist.barrier()
    if sys.argv[2] == "all":
        save_and_load(run)
    else:
        lose_a_machine(run, sys.argv[2])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
