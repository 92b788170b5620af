"""Finds, before a save, tensors that torch's planner fails at without a name, or stores so that nothing loads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.tensor import DTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from varve.errors import Error, InvalidArgumentError, UnsupportedError
from varve.torch import _by_torch, _wrapped
from varve.torch._shards import NUMBERS, is_shard


def not_planned(state: Any, planner: SavePlanner | None) -> Exception | None:
    """Returns what is wrong with a tensor of a state, by its name; None where nothing is, or a planner of others decides."""
    if planner is not None and type(planner) is not DefaultSavePlanner:
        return None
    for name, tensor in _unusual(state, "", set()):
        try:
            _check(name, tensor._local_tensor if isinstance(tensor, DTensor) else tensor)
        except Error as error:
            return error
    return None


def _check(name: str, tensor: Any) -> None:
    kind = type(tensor).__name__
    if not _is_usual(tensor) and not isinstance(
        tensor, (UninitializedBuffer, UninitializedParameter)
    ):
        what = "nested" if tensor.is_nested else f"{tensor.layout} {tensor.dtype}"
        raise UnsupportedError(
            f'tensor "{name}", a {kind}: torch\'s planner stores {what} tensors so that no load of Varve '
            'opens the checkpoint. varve.torch.save stores it, with format="dcp" too'
        )
    wrapper = _by_torch.is_wrapper(tensor)
    if wrapper:
        _wrapped.take_apart(name, tensor)
    try:
        TensorProperties.create_from_tensor(tensor)
        dense = tensor.layout is torch.strided and not wrapper and tensor.numel() > 0
        has_memory = not dense or tensor.data_ptr() != 0
    except Exception as error:
        raise UnsupportedError(
            f'tensor "{name}": torch\'s planner cannot describe this {kind} '
            f"({type(error).__name__}: {str(error)[:200]}). varve.torch.save stores most classes; for this "
            "function put the tensors that it is made of into the state"
        ) from error
    if not has_memory:
        raise InvalidArgumentError(
            f'tensor "{name}": a {kind} has no memory of its own; save the tensors it is made of'
        )


def _unusual(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the unusual tensors of a state, with their names, but for those that say themselves what to store.

    `seen` has the ids of the containers so far: a tuple may hold another one many times.
    """
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if not _is_usual(value):
            yield name, value
        return
    if type(value) is DTensor:
        local = value._local_tensor
        usual = type(local) is torch.Tensor and _is_usual(local)
        if not usual and not _plans_itself(local):
            yield name, value
        return
    if isinstance(value, torch.Tensor):
        if not _plans_itself(value) and not is_shard(value):
            yield name, value
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    if id(value) in seen:
        return
    seen.add(id(value))
    for key, item in items:
        yield from _unusual(item, f"{name}.{key}" if name else str(key), seen)


def _is_usual(tensor: torch.Tensor) -> bool:
    """Returns True for tensors of elements that the engine has, in memory of strides."""
    strided = tensor.layout is torch.strided and tensor.dtype in NUMBERS
    return strided and not tensor.is_nested


def _plans_itself(tensor: torch.Tensor) -> bool:
    """Returns True for classes with torch's protocol of planning, and for what is not there yet."""
    planning = hasattr(tensor, "__create_write_items__")
    return planning or type(tensor).__name__ == "AsyncCollectiveTensor"
