"""Functions that ranks run in test_optimizers.py. Arguments: rank, size, then its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import varve
import varve.torch


def sharded(size: int) -> Any:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 6))
    return fully_shard(model, mesh=init_device_mesh("cpu", (size,)))


def trained(size: int, steps: int) -> tuple[Any, torch.optim.Optimizer]:
    model = sharded(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def lowered(optimizer: torch.optim.Optimizer) -> None:
    """Moments in bfloat16, as optimizers of less memory have them."""
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to(torch.bfloat16)


def whole(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The dtypes and values of an optimizer's state, of all ranks."""
    found = {}
    for i, state in optimizer.state_dict()["state"].items():
        for key, item in state.items():
            tensor = item.full_tensor() if isinstance(item, DTensor) else item
            found[f"{i}.{key}"] = str(tensor.dtype), tensor.tolist()
    return found


def save_sharded(rank: int, size: int, path: str) -> dict[str, Any]:
    model, optimizer = trained(size, 2)
    lowered(optimizer)
    varve.torch.save({"model": model, "optim": optimizer}, path)
    return whole(optimizer)


def load_sharded(rank: int, size: int, path: str, steps: int) -> dict[str, Any]:
    """Into a fresh optimizer, or one that has stepped: sharded as its parameters are, in the stored dtype."""
    model, optimizer = trained(size, steps)
    if steps:
        lowered(optimizer)
    report = varve.torch.load({"model": model, "optim": optimizer}, path, strict="exact")
    assert report.unexpected == []
    for parameter, state in optimizer.state.items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert type(state[key]) is DTensor, key
            assert state[key].placements == parameter.placements
            assert state[key]._local_tensor.shape == parameter._local_tensor.shape
        assert state["exp_avg"].dtype is torch.bfloat16
        assert state["exp_avg_sq"].dtype is torch.float32
        assert type(state["step"]) is torch.Tensor
    return whole(optimizer)


def go_on_sharded(rank: int, size: int, path: str) -> None:
    """A run that was resumed into a fresh optimizer goes on as the one that was not interrupted."""
    model, optimizer = trained(size, 2)
    varve.torch.save({"model": model, "optim": optimizer}, path)
    other, fresh = trained(size, 0)
    varve.torch.load({"model": other, "optim": fresh}, path)
    for network, made in ((model, optimizer), (other, fresh)):
        network(torch.ones(4, 6)).square().sum().backward()
        made.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a._local_tensor, b._local_tensor)


def load_state_of_another_shape(rank: int, size: int, path: str) -> None:
    _, optimizer = trained(size, 1)
    for state in optimizer.state.values():
        state["rows"] = torch.ones(3)
    varve.torch.save({"optim": optimizer}, path)
    varve.torch.load({"optim": trained(size, 0)[1]}, path)


class Held:
    """An object whose state is sharded, and that had more when it was saved."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def load_beside_shards(rank: int, size: int, path: str) -> list[str]:
    """A tensor beside sharded ones does not become whole on every rank; values do."""
    weights = sharded(size).state_dict()
    varve.torch.save({"held": Held({**weights, "step": 5, "count": torch.ones(())})}, path)
    held = Held({key: item for key, item in weights.items() if key != "1.weight"})
    unexpected = varve.torch.load({"held": held}, path).unexpected
    assert held.state["step"] == 5
    assert held.state["count"] == 1
    assert "1.weight" not in held.state
    return unexpected
