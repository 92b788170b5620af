"""Measures saves and loads by many real ranks: processes of this machine, with real connections to rank 0.

    python bench/scale/processes.py [--ranks 8,64,512] [--tensors 16] [--dir /dev/shm]

Each tensor has a row of 1 KiB on every rank. The ranks are forked from one process that has imported torch, so 1,024 of
them fit in 24 GiB. They share this machine's processors: the time of a call grows with their number because all of them
work, and not because of rank 0 alone. So the table has both, the time until the last rank has returned and rank 0's CPU.
torch's own process group sends nothing here (backend "fake"): a mesh of gloo has a connection for each pair of ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # Registers the backend.

import varve.torch

_ROW = 256
_LIMIT = 600.0
#: How often each call is made: the first one connects the ranks and settles what they write.
_CALLS = {"save": 3, "load": 2, "async_save": 3}


def _row(rank: int, size: int, value: float) -> torch.Tensor:
    """A rank's row of a tensor, with the attributes that tell its place in the whole."""
    row = torch.full((1, _ROW), value)
    row.global_shape = torch.Size((size, _ROW))  # type: ignore[attr-defined]
    row.global_offsets = [(rank, 0)]  # type: ignore[attr-defined]
    row.local_offsets = [(0, 0)]  # type: ignore[attr-defined]
    row.local_sizes = [(1, _ROW)]  # type: ignore[attr-defined]
    return row


class Ranks:
    """The ranks of one run share it: it has their barrier and the times of their last call."""

    def __init__(self, size: int, tensors: int, directory: str) -> None:
        self.size, self.tensors, self.directory = size, tensors, directory
        context = multiprocessing.get_context("fork")
        self.barrier = context.Barrier(size)
        self.seconds = context.Array("d", size)
        self.cpu = context.Array("d", size)

    def timed(self, rank: int, name: str, call: Callable[[], Any]) -> Any:
        """Makes a call on all ranks at once; rank 0 prints its times."""
        self.barrier.wait(_LIMIT)
        started, cpu = time.perf_counter(), time.process_time()
        result = call()
        self.seconds[rank] = time.perf_counter() - started
        self.cpu[rank] = time.process_time() - cpu
        self.barrier.wait(_LIMIT)
        if rank == 0:
            others = sorted(self.cpu[1:])
            print(
                f"{self.size:6} {name:13} {max(self.seconds):9.3f} {self.cpu[0] * 1000:9.1f} "
                f"{others[len(others) // 2] * 1000:9.1f}",
                flush=True,
            )
        return result

    def run(self, rank: int) -> None:
        store = dist.FileStore(os.path.join(self.directory, "store"), self.size)
        dist.init_process_group("fake", store=store, rank=rank, world_size=self.size)
        state = {f"layer.{i}": _row(rank, self.size, float(rank + i)) for i in range(self.tensors)}
        target = {f"layer.{i}": _row(rank, self.size, -1.0) for i in range(self.tensors)}
        path, later = (os.path.join(self.directory, name) for name in ("saved", "later"))
        calls: dict[str, Callable[[], Any]] = {
            "save": lambda: varve.torch.save(state, path, overwrite=True),
            "load": lambda: varve.torch.load(target, path),
            "async_save": lambda: varve.torch.async_save(state, later, overwrite=True),
        }
        for name, count in _CALLS.items():
            for i in range(count):
                handle = self.timed(rank, name if i else f"{name}, first", calls[name])
                if name == "async_save":
                    handle.result()
        assert all(torch.equal(state[name], target[name]) for name in state)
        self.barrier.wait(_LIMIT)


def _measure(size: int, tensors: int, directory: str) -> bool:
    """Runs the ranks; returns True where all of them succeeded."""
    directory = tempfile.mkdtemp(prefix="varve-processes.", dir=directory)
    ranks = Ranks(size, tensors, directory)
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ranks.run(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
                ranks.barrier.abort()
            os._exit(code)
        children.append(child)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    shutil.rmtree(directory)
    return failed == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="8,64,512")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    assert fake_pg
    torch.set_num_threads(1)
    print(f"{arguments.tensors} tensors, a row of each on every rank")
    print(f"{'ranks':>6} {'call':13} {'all, s':>9} {'0: CPU ms':>9} {'1: CPU ms':>9}")
    sizes = [int(size) for size in arguments.ranks.split(",")]
    if not all(_measure(size, arguments.tensors, arguments.dir) for size in sizes):
        sys.exit("some ranks failed")


if __name__ == "__main__":
    main()
