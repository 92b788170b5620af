"""Saves of two ranks whose result is a folder for from_pretrained: `python -m bench.hf_worker DIR BYTES ROUNDS SETTLE`.

DIR is a directory, or a name in an object store.

Prints the seconds of each arm's saves as JSON. The arms take turns; the first round warms them up.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import varve.torch
from bench.files import fsync_tree, remove

RANKS = 2
_TENSORS = 16
_WIDTH = 2048


def _gathered(state: dict[str, Any], path: str) -> None:
    """What people write without us: whole tensors on rank 0, which writes them in one file."""
    from safetensors.torch import save_file

    whole = {name: tensor.full_tensor() for name, tensor in state.items()}
    if dist.get_rank() == 0:
        os.makedirs(path)
        save_file(whole, f"{path}/model.safetensors", metadata={"format": "pt"})
        fsync_tree(Path(path))
    dist.barrier()


def _gathered_and_sent(state: dict[str, Any], path: str) -> None:
    """The same with a bucket: the file is uploaded from rank 0's disk."""
    import boto3
    from safetensors.torch import save_file

    whole = {name: tensor.full_tensor() for name, tensor in state.items()}
    if dist.get_rank() == 0:
        bucket, key = path.removeprefix("s3://").split("/", 1)
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/model.safetensors"
            save_file(whole, file, metadata={"format": "pt"})
            boto3.client("s3").upload_file(file, bucket, f"{key}/model.safetensors")
    dist.barrier()


def _converted(state: dict[str, Any], path: str) -> None:
    """A save in Varve's format, of which rank 0 makes the folder."""
    varve.torch.save(state, f"{path}-shards")
    if dist.get_rank() == 0:
        varve.convert(f"{path}-shards", path, "hf")
        varve.remove(f"{path}-shards")
    dist.barrier()


def _arms(state: dict[str, Any], remote: bool) -> dict[str, Callable[[str], object]]:
    ours: dict[str, Callable[[str], object]] = {
        "varve": lambda path: varve.torch.save(state, path),
        "varve, hf": lambda path: varve.torch.save(state, path, format="hf"),
    }
    if not remote:
        return {**ours, "gather and save_file": lambda path: _gathered(state, path)}
    return {
        **ours,
        "varve, converted": lambda path: _converted(state, path),
        "gather, save_file and boto3": lambda path: _gathered_and_sent(state, path),
    }


def _clear(path: str, remote: bool) -> None:
    if not remote:
        remove(Path(path))
        return
    import boto3

    bucket, key = path.removeprefix("s3://").split("/", 1)
    boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=key).delete()


def _rank(rank: int, store: str, directory: str, size: int, rounds: int, settle: float) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = size // (2 * _WIDTH * RANKS * _TENSORS)
    state = {
        f"layers.{i}.w": DTensor.from_local(
            torch.randn(rows, _WIDTH).to(torch.bfloat16), mesh, [Shard(0)]
        )
        for i in range(_TENSORS)
    }
    remote = "://" in directory
    arms = list(_arms(state, remote).items())
    seconds: dict[str, list[float]] = {name: [] for name, _ in arms}
    for number in range(rounds + 1):
        for name, save in arms if number % 2 == 0 else reversed(arms):
            path = f"{directory}/folder"
            if rank == 0:
                _clear(path, remote)
                os.sync()
                time.sleep(settle)  # What the arm before has left is freed in the background.
            dist.barrier()
            begin = time.perf_counter()
            save(path)
            if number > 0:
                seconds[name].append(time.perf_counter() - begin)
    if rank == 0:
        _clear(directory, remote)
        print(json.dumps(seconds))
    dist.destroy_process_group()


def main() -> None:
    """Runs the ranks."""
    directory, size, rounds, settle = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
    )
    if "://" not in directory:
        os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _rank, (f"{folder}/store", directory, size, rounds, settle), nprocs=RANKS
        )


if __name__ == "__main__":
    main()
