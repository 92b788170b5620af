"""hfai.checkpoint 2.0.0's format by its description: a reader and a writer that know nothing of Varve.

The rules are those of tests/golden/hfai/README.md, on torch.load and torch.save alone.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import torch


def read(folder: Path, weights_only: bool = True) -> dict[str, Any]:
    """Reads a checkpoint as the original's `load` does."""
    count = len(list(folder.glob("PART_*.pt")))
    parts = [
        torch.load(folder / f"PART_{i:03d}.pt", weights_only=weights_only) for i in range(count)
    ]
    assert parts[0].get("__version__", "1.0.0") == "2.0.0"
    assert all(part["__nshards__"] == count for part in parts)
    result = dict(parts[0])
    models = [_model([part["model"][i] for part in parts]) for i in range(len(parts[0]["model"]))]
    optimizers = [
        _optimizer([part["optimizer"][i] for part in parts])
        for i in range(len(parts[0]["optimizer"]))
    ]
    result["model"] = models[0] if len(models) == 1 else models
    result["optimizer"] = optimizers[0] if len(optimizers) == 1 else optimizers
    return result


def _joined(shares: list[dict[Any, Any]]) -> dict[Any, torch.Tensor]:
    pieces: dict[Any, list[torch.Tensor]] = collections.defaultdict(list)
    shapes: dict[Any, torch.Size] = {}
    for share in shares:
        for key, (shape, piece) in share.items():
            assert type(shape) is torch.Size and piece.dim() == 1
            assert piece.untyped_storage().nbytes() == piece.numel() * piece.element_size()
            pieces[key].append(piece)
            shapes[key] = shape
    return {key: torch.cat(found).view(*shapes[key]) for key, found in pieces.items()}


def _model(shares: list[tuple[Any, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for small, _ in shares:
        assert type(small) is collections.OrderedDict
        merged.update(small)
    for name, tensor in _joined([large for _, large in shares]).items():
        assert name not in merged
        merged[name] = tensor
    return merged


def _optimizer(shares: list[tuple[Any, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = shares[0][0]
    for small, _ in shares[1:]:
        merged["state"].update(small["state"])
    for (number, name), tensor in _joined([large for _, large in shares]).items():
        assert name not in merged["state"][number]
        merged["state"][number][name] = tensor
    return merged


def write(
    folder: Path,
    models: list[dict[str, Any]],
    optimizers: list[dict[str, Any]],
    others: dict[str, Any],
    world: int,
    large_size: int,
    legacy: bool = False,
) -> None:
    """Writes state dicts as the parts of `world` ranks: entries in turn, not by the split rule.

    A reader must not care which part has an entry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        part: dict[str, Any] = {"__nshards__": world, "__version__": "2.0.0"}
        part["model"] = [_model_share(m, rank, world, large_size) for m in models]
        part["optimizer"] = [_optimizer_share(o, rank, world, large_size) for o in optimizers]
        if rank == 0:
            part.update(others)
        torch.save(part, folder / f"PART_{rank:03d}.pt", _use_new_zipfile_serialization=not legacy)


def _is_large(value: Any, large_size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() * value.element_size() > large_size


def _piece(value: torch.Tensor, rank: int, world: int) -> tuple[torch.Size, torch.Tensor]:
    chunks = value.reshape(-1).chunk(world)
    empty = value.new_empty(0)
    return value.shape, (chunks[rank] if rank < len(chunks) else empty).clone()


def _model_share(state: dict[str, Any], rank: int, world: int, large_size: int) -> Any:
    large = {
        name: _piece(value, rank, world)
        for name, value in state.items()
        if _is_large(value, large_size)
    }
    rest = [name for name in state if name not in large]
    small = collections.OrderedDict((name, state[name]) for name in rest[rank::world])
    return small, large


def _optimizer_share(state: dict[str, Any], rank: int, world: int, large_size: int) -> Any:
    large = {
        (number, name): _piece(value, rank, world)
        for number, entry in state["state"].items()
        for name, value in entry.items()
        if _is_large(value, large_size)
    }
    mine = list(state["state"])[rank::world]
    small = {
        number: {
            name: value
            for name, value in state["state"][number].items()
            if (number, name) not in large
        }
        for number in mine
    }
    return {**state, "state": small}, large


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of all elements, row-major."""
    plain = tensor.detach().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def assert_same(found: Any, wanted: Any) -> None:
    """Compares nested states; the order of names does not count, types do."""
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert raw(found) == raw(wanted)
    elif isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    else:
        assert type(found) is type(wanted)
        if isinstance(wanted, (list, tuple)):
            for item, value in zip(found, wanted, strict=True):
                assert_same(item, value)
        else:
            assert found == wanted
