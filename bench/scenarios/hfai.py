"""How evenly does varve.hfai divide a state, and how fast does it save and load?

The files are the same with every tool: `PART_000.pt` of one rank. The baseline is torch.save and
torch.load of that part, which is what hfai.checkpoint calls.
"""

from __future__ import annotations

import heapq
import importlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bench.context import Context, from_cold_cache, from_warm_cache
from bench.files import bytes_under, fsync_tree, remove
from bench.measure import Rounds, Sample, interleave, timed
from bench.results import Result
from bench.state import bytes_of, make_state, require_equal

OURS = "varve.hfai"
THEIRS = "torch.save / torch.load"
_WORLDS = (2, 4, 8, 16, 32, 64)


def run(context: Context) -> list[Result]:
    """Measures with a process group of one rank, which `save` needs."""
    try:
        hfai = importlib.import_module("varve.hfai")
    except ImportError as error:
        return [Result("hfai", "", 0, {}, {OURS: f"cannot import varve.hfai: {error}"}, ())]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            return [_balance(), *_speed(context, hfai)]
        finally:
            dist.destroy_process_group()


# ---- balance ----


def _gpt(layers: int = 24, width: int = 2048, words: int = 50257) -> dict[str, torch.Tensor]:
    """A decoder's parameters without memory: 1.3 billion, and an embedding that is large."""
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (words, width),
        "wpe.weight": (2048, width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    for i in range(layers):
        shapes[f"h.{i}.attn.qkv.weight"] = (3 * width, width)
        shapes[f"h.{i}.attn.qkv.bias"] = (3 * width,)
        shapes[f"h.{i}.attn.out.weight"] = (width, width)
        shapes[f"h.{i}.attn.out.bias"] = (width,)
        shapes[f"h.{i}.mlp.up.weight"] = (4 * width, width)
        shapes[f"h.{i}.mlp.up.bias"] = (4 * width,)
        shapes[f"h.{i}.mlp.down.weight"] = (width, 4 * width)
        shapes[f"h.{i}.mlp.down.bias"] = (width,)
        for norm in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{norm}.weight"] = (width,)
            shapes[f"h.{i}.{norm}.bias"] = (width,)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _original_sums(sizes: list[int], world: int) -> list[int]:
    """The bytes of each rank by hfai's own order: numpy's argsort, reversed."""
    heap = [(0, rank) for rank in range(world)]
    for i in np.argsort(sizes)[::-1]:
        total, rank = heap[0]
        heapq.heapreplace(heap, (total + sizes[i], rank))
    sums = [0] * world
    for total, rank in heap:
        sums[rank] = total
    return sums


def _balance() -> Result:
    """Divides model and Adam's state for each world; arithmetic, no timing."""
    split: Any = importlib.import_module("varve.hfai._split")
    params = _gpt()
    adam = {
        i: {"step": torch.empty((), device="meta"), "exp_avg": param, "exp_avg_sq": param}
        for i, param in enumerate(params.values())
    }
    result = Result("hfai: balance", "Bytes per rank, max / mean.", 0, {}, {}, ())
    for world in _WORLDS:
        ours, theirs = [0] * world, [0] * world
        for entries in (params, adam):
            left: dict[Any, Any] = {}
            for key, value in entries.items():
                tensors = value if isinstance(value, dict) else {"": value}
                large = {name: t for name, t in tensors.items() if split.is_large(t)}
                for tensor in large.values():
                    for rank in range(world):
                        begin, end = split.piece_range(tensor.numel(), rank, world)
                        ours[rank] += (end - begin) * tensor.element_size()
                        theirs[rank] += (end - begin) * tensor.element_size()
                rest = {name: t for name, t in tensors.items() if name not in large}
                if rest:
                    left[key] = rest
            for key, rank in split.owners(left, world).items():
                ours[rank] += split.bytes_of(left[key])
            sizes = [split.bytes_of(value) for value in left.values()]
            theirs = [a + b for a, b in zip(theirs, _original_sums(sizes, world), strict=True)]
        mean = sum(ours) / world
        result.notes.append(
            f"world {world}: {mean / 2**20:.0f} MiB a rank, max / mean {max(ours) / mean:.4f} "
            f"(by hfai's own order {max(theirs) / mean:.4f})"
        )
    return result


# ---- speed ----


class _Model(torch.nn.Module):
    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_parameter(
                name.replace(".", "_"), torch.nn.Parameter(tensor, requires_grad=False)
            )


def _speed(context: Context, hfai: Any) -> list[Result]:
    state = make_state(context.size, context.tensors)
    model = _Model(state)
    part = {
        "__nshards__": 1,
        "__version__": "2.0.0",
        "model": [(model.state_dict(), {})],
        "optimizer": [],
    }
    arms: dict[str, Callable[[Path], None]] = {
        OURS: lambda path: hfai.save(path, model),
        THEIRS: lambda path: _torch_save(part, path),
    }
    size = bytes_of(state)
    saves: dict[str, Callable[[], Sample]] = {
        name: partial(_save_sample, context, save, size) for name, save in arms.items()
    }
    saved = Result.of(
        "hfai: save",
        f"Durable save of {len(state)} fp32 tensors by one rank, both synced.",
        size,
        interleave(saves, rounds=context.rounds, warmups=context.warmups),
        {},
        (THEIRS,),
    )
    saved.expect_speed(OURS, THEIRS, 1.0)
    path = context.directory / "latest.pt"
    hfai.save(path, model)
    try:
        return [saved, *(_loads(context, hfai, path, model, cold) for cold in (False, True))]
    finally:
        remove(path)


def _save_sample(context: Context, save: Callable[[Path], None], size: int) -> Sample:
    path = context.directory / "saved"
    remove(path)
    context.quiet()
    try:
        sample = timed(lambda: save(path))
        if bytes_under(path) < size:
            raise AssertionError("fewer bytes were written than the state holds")
        return sample
    finally:
        remove(path)


def _torch_save(part: dict[str, Any], path: Path) -> None:
    path.mkdir()
    torch.save(part, path / "PART_000.pt")
    fsync_tree(path)


def _loads(context: Context, hfai: Any, path: Path, model: _Model, cold: bool) -> Result:
    state = model.state_dict()
    arms: dict[str, Callable[[], Any]] = {
        OURS: lambda: hfai.load(path, map_location="cpu")["model"],
        THEIRS: lambda: torch.load(path / "PART_000.pt", weights_only=True)["model"][0][0],
    }

    def sample(load: Callable[[], Any]) -> Sample:
        found: list[Any] = []
        around = from_cold_cache if cold else from_warm_cache
        taken = around(path, lambda: timed(lambda: found.append(load())))
        require_equal(found[0], state)
        return taken

    rounds: Rounds = interleave(
        {name: partial(sample, load) for name, load in arms.items()},
        rounds=context.rounds,
        warmups=context.warmups,
    )
    result = Result.of(
        f"hfai: load ({'cold' if cold else 'warm'})",
        "Load into new tensors; ours compares checksums.",
        bytes_of(state),
        rounds,
        {},
        (THEIRS,),
    )
    result.expect_speed(OURS, THEIRS, 1.0)
    return result
