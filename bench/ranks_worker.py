"""Cold loads of four ranks on one node: `python -m bench.ranks_worker DIR:LAYOUT BYTES ROUNDS SETTLE`.

DIR may be a name in a bucket, s3://bucket/key, on the server that AWS_ENDPOINT_URL_S3 names. Prints the seconds of each arm's loads as JSON: until all ranks have loaded. The arms take turns; the
first round warms them up. Before each load the files leave the page cache, and as much memory as the
cache will take has just been used: in a virtual machine the first use of a page is paid to the
hypervisor. After it, outside the time, every rank compares its tensors.
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
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, zeros

import varve.torch
import varve.torch.dcp
from bench.files import drop_cache, fsync_tree
from bench.s3_arms import S3TorchConnector
from bench.s3_servers import Server

RANKS = 4
LAYOUTS = {"replicated": "each by every rank", "columns": "saved whole, each by columns"}
SHARED, ALONE = "varve.torch.load", "share=False"
DROP_IN, DCP = "varve.torch.dcp, DCP's files", "DCP"
_TENSORS = 16
_WIDTH = 4096


def _arms(state: dict[str, Any], ours: str, theirs: str) -> dict[str, Callable[[], object]]:
    arms: dict[str, Callable[[], object]] = {
        SHARED: lambda: varve.torch.load(state, ours),
        ALONE: lambda: varve.torch.load(state, ours, share=False),
        DROP_IN: lambda: varve.torch.dcp.load(state, checkpoint_id=theirs),
        DCP: lambda: dcp.load(state, checkpoint_id=theirs),
    }
    if _is_remote(ours):
        connector = S3TorchConnector(tuned=False)
        name = theirs.removeprefix("s3://")
        arms[DCP] = lambda: connector.download(_server(), name, state, no_dist=False)
    return arms


def _is_remote(path: str) -> bool:
    return path.startswith("s3://")


def _server() -> Server:
    return Server("radosgw", "s3", os.environ["AWS_ENDPOINT_URL_S3"])


def _rank(rank: int, store: str, where: str, size: int, rounds: int, settle: float) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    directory, layout = where.rsplit(":", 1)
    mesh = init_device_mesh("cpu", (RANKS,))
    placement = Replicate() if layout == "replicated" else Shard(1)
    rows = size // (4 * _WIDTH * _TENSORS)
    state = {
        f"layers.{i}.w": zeros(rows, _WIDTH, device_mesh=mesh, placements=[placement])
        for i in range(_TENSORS)
    }
    ours, theirs = f"{directory}/varve", f"{directory}/dcp"
    arms = list(_arms(state, ours, theirs).items())
    seconds: dict[str, list[float]] = {name: [] for name, _ in arms}
    for number in range(rounds + 1):
        for name, load in arms if number % 2 == 0 else reversed(arms):
            for tensor in state.values():
                tensor.to_local().zero_()
            if rank == 0 and not _is_remote(directory):
                drop_cache(Path(directory))
                time.sleep(settle)
                torch.ones(size * 3 // 2, dtype=torch.uint8)
            dist.barrier()
            begin = time.perf_counter()
            load()
            dist.barrier()
            if number > 0:
                seconds[name].append(time.perf_counter() - begin)
            for i, tensor in enumerate(state.values()):
                assert torch.all(tensor.to_local() == i + 1), (name, i)
    if rank == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def main() -> None:
    """Saves the state from one process, then runs the ranks."""
    where, size, rounds, settle = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    directory = where.rsplit(":", 1)[0]
    rows = size // (4 * _WIDTH * _TENSORS)
    state = {f"layers.{i}.w": torch.full((rows, _WIDTH), i + 1.0) for i in range(_TENSORS)}
    if _is_remote(directory):
        varve.torch.save(state, f"{directory}/varve")
        name = directory.removeprefix("s3://")
        S3TorchConnector(tuned=False).prepare(_server(), f"{name}/dcp", state)
    else:
        os.makedirs(directory)
        varve.torch.save(state, f"{directory}/varve")
        dcp.save(state, checkpoint_id=f"{directory}/dcp", no_dist=True)
        fsync_tree(Path(directory))
    del state
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _rank, (f"{folder}/store", where, size, rounds, float(settle)), nprocs=RANKS
        )


if __name__ == "__main__":
    main()
