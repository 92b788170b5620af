"""Functions that ranks run in test_wrapped_ranks.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.two_tensor import TwoTensor

import varve.torch


def bits(tensor: Any) -> Any:
    """Returns a tensor's inner tensors, or its own memory: what must be the same bit by bit."""
    if isinstance(tensor, DTensor):
        return bits(tensor._local_tensor)
    if isinstance(tensor, dict):  # Inner tensors of which the class makes no whole one.
        return {name: bits(inner) for name, inner in tensor.items()}
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.wait()
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return {name: bits(getattr(tensor, name)) for name in names}
    return tensor.detach().clone()


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return bool(a.dtype == b.dtype and torch.equal(a, b))


def two(rank: int, size: int, rows: int = 8, fill: float | None = None) -> dict[str, Any]:
    """A DTensor by rows and one that is replicated, of TwoTensors; wrapped once more, the first."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(rows * 3.0).reshape(rows, 3)
    if fill is not None:
        whole = torch.full_like(whole, fill)
    local = whole.chunk(size)[rank].clone()
    nested = TwoTensor(TwoTensor(local.clone(), local + 1), TwoTensor(local + 2, local + 3))
    return {
        "rows": DTensor.from_local(nested, mesh, [Shard(0)], run_check=False),
        "same": DTensor.from_local(
            TwoTensor(whole.clone(), whole + 5), mesh, [Replicate()], run_check=False
        ),
    }


def save_two(rank: int, size: int, path: str) -> None:
    varve.torch.save(two(rank, size), path)


def load_two(rank: int, size: int, path: str) -> bool:
    state, wanted = two(rank, size, fill=-1.0), two(rank, size)
    varve.torch.load(state, path)
    return all(equal(bits(state[name]), bits(wanted[name])) for name in wanted)


def _trained(optimizer: str, steps: int, seed: int) -> tuple[nn.Module, Any]:
    import torchao.optim

    torch.compiler.set_stance("force_eager")  # torchao compiles each step of an optimizer.
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    made = getattr(torchao.optim, optimizer)(model.parameters(), lr=1e-3)
    for step in range(steps):
        train(model, made, step)
    return model, made


def train(model: nn.Module, optimizer: Any, step: int) -> None:
    torch.manual_seed(100 + step + 10 * dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()


def save_optimizer(rank: int, size: int, path: str, optimizer: str) -> None:
    model, made = _trained(optimizer, 2, seed=0)
    varve.torch.save({"model": model, "optim": made}, path)


def go_on(rank: int, size: int, path: str, optimizer: str, steps: int) -> bool:
    """Loads into another model and an optimizer that has made `steps`; both go on as if never stopped."""
    model, made = _trained(optimizer, 2, seed=0)
    other, fresh = _trained(optimizer, steps, seed=1)
    varve.torch.load({"model": other, "optim": fresh}, path)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in made.state[a].items():
            if not equal(bits(value), bits(fresh.state[b][name])):
                return False
    train(model, made, 2)
    train(other, fresh, 2)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(equal(bits(a), bits(b)) for a, b in pairs)


def read_into_other_world(rank: int, size: int, path: str, optimizer: str) -> str:
    """Loads the optimizer's states into one of this world that has stepped; returns the error."""
    model, made = _trained(optimizer, 1, seed=1)
    varve.torch.load({"model": model, "optim": made}, path)
    states = varve.torch.read(path)["optim"]["state"]
    for parameter, key in zip(model.parameters(), states, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            stored, here = states[key][name], made.state[parameter][name]
            whole = here.full_tensor() if isinstance(here, DTensor) else here
            if not equal(bits(whole), bits(stored)):
                return f"{key}.{name} differs"
    return ""


def save_scaled(rank: int, size: int, path: str) -> None:
    """A tensor by rows of which each rank has a scale of its own, as quantizing the shards makes them."""
    mesh = init_device_mesh("cpu", (size,))
    local = TwoTensor(torch.full((2, 3), float(rank)), torch.full((2, 3), float(rank)))
    whole = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    whole._local_tensor.b = torch.full((1,), 10.0 + rank)
    varve.torch.save({"w": whole}, path)


def few_rows(rank: int, size: int, fill: float | None = None) -> Any:
    """Four rows; of three ranks the last holds none."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).reshape(4, 3) if fill is None else torch.full((4, 3), fill)
    chunks = whole.chunk(size)
    local = chunks[rank].clone() if rank < len(chunks) else whole[:0].clone()
    return DTensor.from_local(
        TwoTensor(local, local + 1), mesh, [Shard(0)], run_check=False, shape=(4, 3), stride=(3, 1)
    )


def save_few_rows(rank: int, size: int, path: str) -> None:
    varve.torch.save({"w": few_rows(rank, size)}, path)


def load_few_rows(rank: int, size: int, path: str) -> bool:
    state = {"w": few_rows(rank, size, -1.0)}
    varve.torch.load(state, path)
    return equal(bits(state["w"]), bits(few_rows(rank, size)))
