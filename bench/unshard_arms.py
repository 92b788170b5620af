"""How the original makes whole states of a sharded checkpoint, in our words; for a process of its own.

    python bench/unshard_arms.py threads|processes local|legacy SOURCE TARGET
    python bench/unshard_arms.py load local|legacy SOURCE RANKS     loads the first ranks, no more

Every rank's pickles are loaded by torch, by eight threads or by one process per rank. Their pieces are
copied into whole tensors (for processes in shared memory), which torch.save then writes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

from bench.files import fsync_tree

THREADS = 8
#: Alive at once: each rank has a process of its own.
PROCESSES = 16

#: One piece of a tensor: its name, where it lies in the flattened tensor, its elements.
Piece = tuple[str, int, torch.Tensor]
Shapes = dict[str, tuple[torch.Size, torch.dtype]]


def load(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


# ---- local ----


def local_handles(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for module in model["modules"]:
        for handle in module["handles"]:
            yield clean(module["name"] + "."), handle


def local_pieces(source: Path, rank: int) -> Iterator[Piece]:
    optim = load(source / f"optim/rank{rank}.pt")
    group = optim["param_groups"][0]
    ids = {clean(n): i for i, n in zip(group["params"], group["param_names"], strict=True)}
    for prefix, handle in local_handles(load(source / f"model/rank{rank}.pt")):
        infos = handle["flat_param._shard_param_infos"]
        for fqn, info in zip(handle["flat_param._fqns"], infos, strict=True):
            if not info.in_shard:
                continue
            name, first = prefix + fqn, info.intra_param_start_idx
            begin = info.offset_in_shard
            data = handle["flat_param.data"][begin : begin + info.numel_in_shard]
            yield f"model.{name}", first, data
            for key, value in optim["state"][ids[name]].items():
                yield f"optim.{name}.{key}", first if value.dim() else 0, value


def local_shapes(source: Path) -> Shapes:
    shapes: Shapes = {}
    for prefix, handle in local_handles(load(source / "model/rank0.pt")):
        for fqn, shape in zip(
            handle["flat_param._fqns"], handle["flat_param._shapes"], strict=True
        ):
            shapes[f"model.{prefix}{fqn}"] = (shape, torch.float32)
            shapes[f"optim.{prefix}{fqn}.step"] = (torch.Size(), torch.float32)
            for key in ("exp_avg", "exp_avg_sq"):
                shapes[f"optim.{prefix}{fqn}.{key}"] = (shape, torch.float32)
    return shapes


# ---- torch_legacy ----


def _keep_state(tensor: Any, state: Any) -> None:
    """Replaces ShardedTensor.__setstate__, which needs a process group."""
    tensor._local_shards, tensor._metadata = state[0], state[1]


def legacy_tensors(source: Path, rank: int) -> Iterator[tuple[str, Any]]:
    content = load(source / f"rank{rank}.pt")
    for name, tensor in content["model"].items():
        yield f"model.{name}", tensor
    for name, entries in content["optim"]["state"].items():
        for key, tensor in entries.items():
            yield f"optim.{name}.{key}", tensor


def legacy_pieces(source: Path, rank: int) -> Iterator[Piece]:
    for name, tensor in legacy_tensors(source, rank):
        if not isinstance(tensor, ShardedTensor):
            yield name, 0, tensor
            continue
        width = tensor._metadata.size[1]
        for shard in tensor._local_shards:
            yield name, shard.metadata.shard_offsets[0] * width, shard.tensor.flatten()


def legacy_shapes(source: Path) -> Shapes:
    return {
        name: (tensor._metadata.size, torch.float32)
        if isinstance(tensor, ShardedTensor)
        else (tensor.shape, tensor.dtype)
        for name, tensor in legacy_tensors(source, 0)
    }


LAYOUTS: dict[str, tuple[Callable[[Path, int], Iterator[Piece]], Callable[[Path], Shapes], str]] = {
    "local": (local_pieces, local_shapes, "model/rank*.pt"),
    "legacy": (legacy_pieces, legacy_shapes, "rank*.pt"),
}


def assemble(layout: str, source: Path, target: Path, *, processes: bool) -> None:
    pieces, shapes, pattern = LAYOUTS[layout]
    ranks = len(list(source.glob(pattern)))
    whole = {
        name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes(source).items()
    }
    if processes:
        for tensor in whole.values():
            tensor.share_memory_()

    def fill(rank: int) -> None:
        for name, at, elements in pieces(source, rank):
            whole[name].view(-1)[at : at + elements.numel()] = elements

    if processes:
        global _fill
        _fill = fill
        with multiprocessing.get_context("fork").Pool(PROCESSES, maxtasksperchild=1) as pool:
            pool.map(_call_fill, range(ranks), chunksize=1)
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(fill, range(ranks)))
    target.mkdir()
    for part in ("model", "optim"):
        state = {name: tensor for name, tensor in whole.items() if name.startswith(part)}
        torch.save(state, target / f"{part}.pt")
    fsync_tree(target)


_fill: Callable[[int], None]


def _call_fill(rank: int) -> None:
    torch.set_num_threads(1)
    _fill(rank)


def main(arm: str, layout: str, source: Path, last: str) -> None:
    ShardedTensor.__setstate__ = _keep_state  # type: ignore[method-assign]
    if arm != "load":
        assemble(layout, source, Path(last), processes=arm == "processes")
        return
    for rank in range(int(last)):
        for _ in LAYOUTS[layout][0](source, rank):
            pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    sys.stdout.flush()
    os._exit(0)  # Freeing gigabytes page by page is no part of the work.
