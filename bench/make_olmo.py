"""Makes checkpoints of many ranks in OLMo's `local` and `torch_legacy` layouts, without FSDP.

    python bench/make_olmo.py DIR --layout local --ranks 1024 --size 4GiB [--parameters 1000]

Every rank's file has the metadata that real FSDP writes (`local`: of all parameters of each flat
parameter; legacy: of all shards of each tensor) and its share of the bytes. The numbers are random, so
that nothing on the way can skip them. Rank files are made in a few processes.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
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
from torch.distributed.fsdp._flat_param import _ShardParamInfo
from torch.distributed.remote_device import _remote_device

WIDTH = 256


def bytes_of(text: str) -> int:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return int(float(text[:-3]) * units[text[-3:]])


class Pickled:
    """Pickles as a ShardedTensor with one local shard; a real one needs a process group."""

    def __init__(self, local: torch.Tensor, rows: int, rank: int, ranks: int) -> None:
        self.local, self.rows, self.rank, self.ranks = local, rows, rank, ranks

    def __reduce__(self) -> tuple[Any, ...]:
        step = -(-self.rows // self.ranks)
        shards = []
        for rank in range(self.ranks):
            begin, end = min(rank * step, self.rows), min((rank + 1) * step, self.rows)
            place = _remote_device(f"rank:{rank}/cpu")
            shards.append(ShardMetadata([begin, 0], [end - begin, WIDTH], place))
        size = torch.Size([self.rows, WIDTH])
        metadata = ShardedTensorMetadata(shards, size, TensorProperties(dtype=torch.float32))
        own = [Shard(self.local, shards[self.rank])]
        spec = ChunkShardingSpec(0, [shard.placement for shard in shards])
        arguments = (ShardedTensor, torch.float32, size, (WIDTH, 1), 0, torch.strided)
        wrapper = (*arguments, torch.device("cpu"), False)
        state = (
            own,
            metadata,
            ShardedTensor.ProcessGroupState(self.rank, 0, self.ranks, 0),
            spec,
            False,
        )
        rebuild = torch._utils._rebuild_wrapper_subclass
        return torch._tensor._rebuild_from_type_v2, (rebuild, ShardedTensor, wrapper, state)


def legacy_rank(folder: Path, ranks: int, tensors: int, rows: int, rank: int) -> None:
    torch.manual_seed(rank)
    step = -(-rows // ranks)
    own = max(0, min((rank + 1) * step, rows) - rank * step)

    def sharded() -> Pickled:
        return Pickled(torch.randn(own, WIDTH), rows, rank, ranks)

    names = [f"blocks.{i}.weight" for i in range(tensors)]
    state = {name: {"step": torch.tensor(3.0), "exp_avg": sharded()} for name in names}
    groups = [{"lr": 0.1, "params": names, "param_names": names}]
    content = {
        "model": {name: sharded() for name in names},
        "optim": {"state": state, "param_groups": groups},
        "global_step": 3,
        "rng": {"seed": rank},
    }
    torch.save(content, folder / f"rank{rank}.pt")


def local_rank(
    folder: Path, ranks: int, parameters: int, shape: tuple[int, int], rank: int
) -> None:
    torch.manual_seed(rank)
    each = 20  # Parameters of one flat parameter.
    elements = shape[0] * shape[1]
    modules, state, names = [], {}, []
    for module in range(parameters // each):
        total = each * elements
        size = -(-total // ranks)
        begin = rank * size
        infos = []
        for i in range(each):
            first, last = max(i * elements, begin), min((i + 1) * elements, begin + size)
            if first < last:
                at = i * elements
                infos.append(
                    _ShardParamInfo(True, first - begin, last - first, first - at, last - at - 1)
                )
                step = {"step": torch.tensor(3.0)}
                moments = {key: torch.randn(last - first) for key in ("exp_avg", "exp_avg_sq")}
                state[module * each + i] = {**step, **moments}
            else:
                infos.append(_ShardParamInfo(False, None, None, None, None))
            names.append(
                f"_fsdp_wrapped_module.blocks.{module}._fsdp_wrapped_module.layers.{i}.weight"
            )
        data = torch.randn(size)
        padding = max(0, min(size, begin + size - total))
        data[size - padding :] = 0
        handle = {
            "flat_param.data": data,
            "flat_param._fqns": [f"layers.{i}.weight" for i in range(each)],
            "flat_param._shapes": [torch.Size(shape)] * each,
            "flat_param._numels": (elements,) * each,
            "flat_param._numels_with_padding": (elements,) * each,
            "flat_param._shard_numel_padded": padding,
            "flat_param._shard_param_infos": tuple(infos),
        }
        modules.append({"name": f"_fsdp_wrapped_module.blocks.{module}", "handles": [handle]})
    groups = [{"lr": 0.1, "params": list(range(parameters)), "param_names": names}]
    torch.save({"modules": modules}, folder / f"model/rank{rank}.pt")
    torch.save({"state": state, "param_groups": groups}, folder / f"optim/rank{rank}.pt")
    torch.save({"global_step": 3, "rng": {"seed": rank}}, folder / f"train/rank{rank}.pt")


def make(folder: Path, layout: str, ranks: int, size: int, parameters: int) -> None:
    """Writes the checkpoint. `size` is that of all tensors, the optimizer's with them."""
    folder.mkdir(parents=True)
    if layout == "local":
        for part in ("model", "optim", "train"):
            (folder / part).mkdir()
        rows = max(1, size // 12 // parameters // WIDTH)
        rank = functools.partial(local_rank, folder, ranks, parameters, (rows, WIDTH))
    else:
        rows = max(1, size // 8 // parameters // WIDTH)
        rank = functools.partial(legacy_rank, folder, ranks, parameters, rows)
    with multiprocessing.get_context("fork").Pool(2, torch.set_num_threads, (1,)) as pool:
        pool.map(rank, range(ranks), 8)
    if layout == "local":
        (folder / "metadata.yaml").write_text(f"world_size: {ranks}\n")
    (folder / "config.yaml").write_text("run_name: made\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=("local", "legacy"), default="local")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--size", type=bytes_of, default=bytes_of("4GiB"))
    parser.add_argument("--parameters", type=int)
    options = parser.parse_args()
    parameters = options.parameters or (1000 if options.layout == "local" else 16)
    make(options.folder, options.layout, options.ranks, options.size, parameters)


if __name__ == "__main__":
    main()
