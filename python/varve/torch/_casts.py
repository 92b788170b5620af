"""Casts of what a save stores in another dtype than it has in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from varve import _core
from varve.errors import InvalidArgumentError
from varve.torch import _shards, _tensors


def cast(fqn: str, tensor: Any, number: int, arrays: _tensors.TorchArrays) -> Any:
    """Returns a floating-point tensor or array in the dtype with this number; another as it is.

    Other arrays become tensors of torch.

    Raises:
        InvalidArgumentError: torch cannot cast it, or it has no values.
    """
    wanted = arrays.dtype_at(number)
    name = _core.DTYPE_NAMES[number]
    if wanted is None:
        raise InvalidArgumentError(f"dtype={name}: this torch has no such dtype")
    if not _shards.is_torch(tensor):
        tensor = _from_array(fqn, tensor, arrays)
        if not isinstance(tensor, torch.Tensor):
            return tensor
    _check_values(fqn, tensor)
    try:
        if not tensor.is_floating_point():
            return tensor
        made = tensor.detach().to(wanted)
    except Exception as error:  # Whatever a subclass raises.
        raise InvalidArgumentError(
            f'tensor "{fqn}" ({type(tensor).__name__} of {tensor.dtype}) cannot be cast to {name}: '
            f"{type(error).__name__}: {error}; cast it before, or choose another dtype"
        ) from error
    if _shards._has_layout(tensor) and not _shards._has_layout(made):
        for attribute in _shards._CHECKPOINTABLE:
            setattr(made, attribute, getattr(tensor, attribute))
    return made


def _check_values(fqn: str, tensor: Any) -> None:
    """Refuses a tensor without values to read, or without memory as the engine reads it."""
    _tensors._check(fqn, tensor)
    for _, local in _shards.shards_of(fqn, tensor)[1]:
        _tensors._plain(fqn, local)


def _from_array(fqn: str, array: Any, arrays: _tensors.TorchArrays) -> Any:
    """Returns a floating-point array as a tensor; another as it is."""
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        try:
            return torch.utils.dlpack.from_dlpack(array)
        except Exception as error:
            raise InvalidArgumentError(
                f'"{fqn}": torch cannot take a {type(array).__name__} to cast it: {error}'
            ) from error
    values = np.asarray(array)
    number = arrays.dtype_of(values)
    if number is None or not _core.DTYPE_NAMES[number].startswith(("float", "bfloat")):
        return array
    kind = arrays.dtype_at(number)
    if kind is None or values.size == 0:
        return array if kind is None else torch.empty(values.shape, dtype=kind)
    return torch.frombuffer(bytearray(values.tobytes()), dtype=kind).reshape(values.shape)
