"""Rank files of OLMo's `torch_legacy` layout, made without a process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import (
    ShardedTensorMetadata,
    TensorProperties,
)
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.remote_device import _remote_device


class Sharded:
    """Pickles as a ShardedTensor cut along its rows, of which `rank` holds its own.

    Tests change the attributes before they write: `local` is the stored tensor or None, `shards` is what
    the file says of all ranks.
    """

    def __init__(self, whole: torch.Tensor, rank: int, ranks: int) -> None:
        rows, step = whole.shape[0], -(-whole.shape[0] // ranks)
        cuts = [(min(r * step, rows), min((r + 1) * step, rows)) for r in range(ranks)]
        self.size, self.dtype, self.rank, self.ranks = whole.shape, whole.dtype, rank, ranks
        self.shards = [
            ShardMetadata([a, 0], [b - a, whole.shape[1]], _remote_device(f"rank:{r}/cpu"))
            for r, (a, b) in enumerate(cuts)
            if a < b
        ]
        own = slice(*cuts[rank])
        self.local = whole[own].clone() if own.start < own.stop else None

    def __reduce__(self) -> tuple[Any, ...]:
        properties = TensorProperties(dtype=self.dtype)
        metadata = ShardedTensorMetadata(self.shards, torch.Size(self.size), properties)
        own = [] if self.local is None else [Shard(self.local, self.shards[self.rank])]
        spec = ChunkShardingSpec(0, [shard.placement for shard in self.shards])
        group = ShardedTensor.ProcessGroupState(self.rank, 0, self.ranks, 0)
        stride = (self.size[1], 1)
        wrapper = (ShardedTensor, self.dtype, torch.Size(self.size), stride, 0, torch.strided)
        arguments = (
            torch._utils._rebuild_wrapper_subclass,
            ShardedTensor,
            (*wrapper, torch.device("cpu"), False),
            (own, metadata, group, spec, False),
        )
        return torch._tensor._rebuild_from_type_v2, arguments


def build(model: dict[str, torch.Tensor], ranks: int) -> list[dict[str, Any]]:
    """Makes each rank's state; the moments are twice the parameters."""
    return [
        {
            "model": {name: Sharded(tensor, rank, ranks) for name, tensor in model.items()},
            "optim": {
                "state": {
                    name: {"step": torch.tensor(3.0), "exp_avg": Sharded(tensor * 2, rank, ranks)}
                    for name, tensor in model.items()
                },
                "param_groups": [{"lr": 0.1, "params": list(model), "param_names": list(model)}],
            },
            "global_step": 7,
            "rng": {"seed": rank},
        }
        for rank in range(ranks)
    ]


def write(folder: Path, states: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    for rank, state in enumerate(states):
        torch.save(state, folder / f"rank{rank}.pt")
    (folder / "config.yaml").write_text("run_name: test\n")
    return folder
