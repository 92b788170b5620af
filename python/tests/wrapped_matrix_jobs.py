"""Functions that ranks run in test_wrapped_matrix.py."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from wrapped_classes import COLUMNS, MATRIX, ROWS
from wrapped_making import NOT_PLANNED, make, unlike

import varve.torch
import varve.torch.dcp

FORMATS = ("varve", "dcp", "drop-in")

#: The rows that FSDP2 shards. Others lack operators that it calls.
BY_FSDP = (
    *("TwoTensor", "Float8 when multiplied", "Float8 for experts", "MXFP8 for experts"),
    *("Int8QuantizedTraining", "Int8MixedPrecision", "BitNetTraining", "NF4"),
)


def save(form: str, state: Any, path: str) -> None:
    """Saves by one of FORMATS."""
    if form == "drop-in":
        varve.torch.dcp.save(state, checkpoint_id=path)
    else:
        varve.torch.save(state, path, format=form)


def load(form: str, state: Any, path: str) -> None:
    """Loads by one of FORMATS. Ignores stored entries that the state does not have."""
    if form == "drop-in":
        varve.torch.dcp.load(state, checkpoint_id=path)
    else:
        varve.torch.load(state, path)


def rows(form: str, sharded: bool = False) -> list[str]:
    """Returns the rows that a format stores."""
    left_out = {
        "varve": [],
        "dcp": [n for n, row in MATRIX.items() if sharded and row.elsewhere == "packed"],
        "drop-in": NOT_PLANNED,
    }
    return [name for name in MATRIX if name not in left_out[form]]


@functools.cache
def _mesh(size: int) -> Any:
    return init_device_mesh("cpu", (size,))


def dtensor(name: str, rank: int, size: int, seed: int = 0) -> Any:
    """Returns a tensor of a row as FSDP2 shards it, or as it would if the class had what it calls.

    With size 0 there is no mesh, and it returns the whole tensor.
    """
    if size == 0:
        return make(name, seed)
    if name in BY_FSDP:
        module = nn.Module()
        module.w = nn.Parameter(make(name, seed), requires_grad=False)
        fully_shard(module, mesh=_mesh(size))
        return module.state_dict()["w"]
    local = make(name, seed, rank, size)
    about = TensorMeta(torch.Size((ROWS, COLUMNS)), (COLUMNS, 1), local.dtype)
    # Not by from_local, which calls operators of the class.
    return DTensor(local, DTensorSpec(_mesh(size), (Shard(0),), about), requires_grad=False)


def save_all(rank: int, size: int, path: str) -> dict[str, dict[str, str]]:
    """Saves all rows, and loads them into others; returns by format and row what came back otherwise."""
    return {form: _saved(form, rank, size, f"{path}/{form}") for form in FORMATS}


def _saved(form: str, rank: int, size: int, path: str) -> dict[str, str]:
    state = {name: dtensor(name, rank, size) for name in rows(form, sharded=True)}
    save(form, state, path)
    said = _loaded(form, list(state), rank, size, path)
    for name in MATRIX.keys() - state.keys():
        try:
            save(form, {"m": {name: dtensor(name, rank, size)}}, f"{path}.refused")
            said[name] = "saved"
        except varve.Error as error:
            said[name] = str(error)
    return said


def load_all(rank: int, size: int, path: str) -> dict[str, dict[str, str]]:
    """Loads all rows in another world; returns by format and row what came back otherwise, or the error."""
    said = {}
    for form in FORMATS:
        stored = rows(form, sharded=True)
        anywhere = [n for n in stored if form == "drop-in" or MATRIX[n].elsewhere == "exact"]
        said[form] = _loaded(form, anywhere, rank, size, f"{path}/{form}")
        for name in stored:
            if name not in anywhere:
                try:
                    said[form] |= _loaded(form, [name], rank, size, f"{path}/{form}")
                except varve.Error as error:
                    said[form][name] = str(error)
    return said


def _loaded(form: str, names: list[str], rank: int, size: int, path: str) -> dict[str, str]:
    state = {name: dtensor(name, rank, size, 1) for name in names}
    load(form, state, path)
    return {name: unlike(state[name], dtensor(name, rank, size)) for name in names}
