"""Functions that ranks run in test_fit.py. Arguments: rank, size, then its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import varve.torch

#: Shape of the stored tensor.
OLD = (8, 6)


def values(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)


def expected(shape: tuple[int, int]) -> torch.Tensor:
    """Returns a tensor of -1 with the part filled that it has in common with the stored one."""
    whole = torch.full(shape, -1.0)
    rows, columns = min(shape[0], OLD[0]), min(shape[1], OLD[1])
    whole[:rows, :columns] = values(OLD)[:rows, :columns]
    return whole


def load_grown(rank: int, size: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (size,))
    for shape in ((20, 6), (5, 6), (11, 9), (1, 2)):  # In (20, 6) rank 1 has new rows alone.
        for placement in (Shard(0), Shard(1), Replicate()):
            w = distribute_tensor(torch.full(shape, -1.0), mesh, [placement])
            report = varve.torch.load({"w": w}, path, fit="overlap")
            assert torch.equal(w.full_tensor(), expected(shape)), (shape, placement)
            assert [(one.name, one.stored, one.wanted) for one in report.resized] == [
                ("w", OLD, shape)
            ]
            assert report.loaded == int(w.to_local().numel() > 0)


def _embedding(rows: int, size: int) -> tuple[Any, Any]:
    torch.manual_seed(rows)
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(rows, 4)})
    fully_shard(model["embed"], mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters())
    model["embed"](torch.arange(rows)).pow(2).sum().backward()
    optimizer.step()
    return model, optimizer


def save_embedding(rank: int, size: int, path: str) -> None:
    weights, moments = get_state_dict(*_embedding(10, size))
    varve.torch.save({"model": weights, "optim": moments}, path)


def load_grown_embedding(rank: int, size: int, path: str) -> None:
    stored = varve.torch.read(path)
    model, optimizer = _embedding(17, size)
    before = model["embed"].weight.detach().full_tensor().clone()
    weights, moments = get_state_dict(model, optimizer)
    varve.torch.load({"model": weights, "optim": moments}, path, fit="overlap")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    weight = model["embed"].weight
    assert torch.equal(weight.detach().full_tensor()[:10], stored["model"]["embed.weight"])
    assert torch.equal(weight.detach().full_tensor()[10:], before[10:])
    kept = optimizer.state[weight]["exp_avg"].full_tensor()
    assert torch.equal(kept[:10], stored["optim"]["state"]["embed.weight"]["exp_avg"])
    optimizer.step()


def load_into_rows_of_a_dtensor(rank: int, size: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (size,))
    w = distribute_tensor(torch.full((12, 6), -1.0), mesh, [Shard(0)])
    varve.torch.load({"w": w[: OLD[0]]}, path)


def load_into_views_of_dtensors(rank: int, size: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (size,))
    w = torch.nn.Parameter(distribute_tensor(torch.full((8, 9), -1.0), mesh, [Shard(0)]))
    varve.torch.load({"w": w.detach()[:, :6]}, path)  # Columns of rows that stay where they are.
    assert torch.equal(w.detach().full_tensor(), expected((8, 9)))
    turned = distribute_tensor(torch.full((6, 8), -1.0), mesh, [Shard(0)])
    varve.torch.load({"w": turned.t()}, path)
    assert torch.equal(turned.full_tensor(), values(OLD).t())
