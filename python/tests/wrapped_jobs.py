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

import varve
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
    hollow = {name: each.to("meta") for name, each in wanted.items()}
    varve.torch.load(state, path)
    varve.torch.load(hollow, path, assign=True)
    return all(
        equal(bits(made[name]), bits(wanted[name])) for made in (state, hollow) for name in wanted
    )


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


def go_on(rank: int, size: int, path: str, optimizer: str) -> bool:
    """Loads into an optimizer that has stepped and into a fresh one; both go on as if never stopped."""
    return all(_goes_on(path, optimizer, steps) for steps in (1, 0))


def _goes_on(path: str, optimizer: str, steps: int) -> bool:
    model, made = _trained(optimizer, 2, seed=0)
    other, fresh = _trained(optimizer, steps, seed=1)
    varve.torch.load({"model": other, "optim": fresh}, path)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in made.state[a].items():
            loaded = fresh.state[b][name]
            if type(loaded) is not type(value) or not equal(bits(value), bits(loaded)):
                return False
    train(model, made, 2)
    train(other, fresh, 2)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(equal(bits(a), bits(b)) for a, b in pairs)


def read_into_other_world(rank: int, size: int, path: str, optimizer: str) -> str:
    """Loads the states into optimizers of this world, one that has stepped and a fresh one; returns the error."""
    return "".join(_read_into(path, optimizer, steps) for steps in (1, 0))


def _read_into(path: str, optimizer: str, steps: int) -> str:
    model, made = _trained(optimizer, steps, seed=1)
    varve.torch.load({"model": model, "optim": made}, path)
    states = varve.torch.read(path)["optim"]["state"]
    for parameter, key in zip(model.parameters(), states, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            stored, here = states[key][name], made.state[parameter][name]
            whole = here.full_tensor() if isinstance(here, DTensor) else here
            if not equal(bits(whole), bits(stored)):
                return f"{key}.{name} differs after {steps} steps"
    train(model, made, 2)
    return ""


def _small(kind: Any, steps: int) -> tuple[nn.Module, Any]:
    """A weight of 8192 elements, which torchao's optimizers leave plain where the ranks' parts are small."""
    torch.compiler.set_stance("force_eager")
    torch.manual_seed(0)
    model = nn.Linear(64, 128, bias=False)
    fully_shard(model)
    optimizer = kind(model.parameters(), lr=1e-3)
    for step in range(steps):
        train_small(model, optimizer, step)
    return model, optimizer


def train_small(model: nn.Module, optimizer: Any, step: int) -> None:
    torch.manual_seed(100 + step)
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()


def _moment(optimizer: Any) -> Any:
    return next(iter(optimizer.state.values()))["exp_avg"]


def save_small(rank: int, size: int, folder: str) -> None:
    from torchao.optim import AdamW8bit

    model, optimizer = _small(AdamW8bit, 2)
    varve.torch.save({"model": model, "optim": optimizer}, f"{folder}/by{size}")


def change_worlds(rank: int, size: int, folder: str, saved: int) -> list[str]:
    """Loads what another number of ranks has saved; returns the class of the local moments, by steps before."""
    from torchao.optim import AdamW8bit

    path, found = f"{folder}/by{saved}", []
    for steps in (0, 1):
        model, optimizer = _small(AdamW8bit, steps)
        varve.torch.load({"model": model, "optim": optimizer}, path)
        moment = _moment(optimizer)
        assert type(moment) is DTensor
        assert moment._local_tensor.shape == next(model.parameters())._local_tensor.shape
        stored = varve.torch.read(path)["optim"]["state"][0]["exp_avg"]
        assert equal(bits(moment.full_tensor()), bits(stored))
        train_small(model, optimizer, 2)
        found.append(type(moment._local_tensor).__name__)
    return found


def refuse_states(rank: int, size: int, folder: str, saved: int) -> list[str]:
    """Loads AdamW8bit's state into an optimizer of torch, one that is not known, and one of small blocks."""
    errors = []

    class Own(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    for kind in (torch.optim.AdamW, Own):
        _model, optimizer = _small(kind, 0)
        try:
            varve.torch.load(
                {"optim": optimizer}, f"{folder}/by{saved}", keys=["optim.state"], timeout=60
            )
        except varve.InvalidArgumentError as error:
            errors.append(str(error))
        assert not optimizer.state
    return errors


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
