"""Functions that ranks run in test_hfai_ranks.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import varve.hfai
import varve.hfai._split
import varve.torch


class Net(nn.Module):
    """Small, with all that the format treats in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(33, 41)
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 12)
        self.head = nn.Linear(12, 8)
        self.head.weight = nn.Parameter(self.fc.weight.detach().t().clone())
        self.tied = nn.Linear(8, 12, bias=False)
        self.tied.weight = self.fc.weight
        self.strided = nn.Parameter(torch.randn(30, 40).t())
        self.low = nn.Parameter(torch.randn(50, 50).to(torch.bfloat16))
        self.register_buffer("mask", torch.eye(9) > 0)
        self.register_buffer("table", torch.arange(1200, dtype=torch.int32))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)

    def get_extra_state(self) -> Any:
        return {"calls": 7, "shape": (3, "x"), "note": "…"}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.embed(index)[:, :8]
        x = self.head(self.fc(self.norm(x))) + self.tied(x)[:, :8]
        return x.sum() + self.strided.sum() + self.low.sum().float()


def trained(world: int, seed: int = 0, steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model and optimizer on every rank."""
    torch.manual_seed(seed)
    net: nn.Module = Net()
    if world > 1:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True)
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.arange(4) + step).backward()
        optimizer.step()
    return net, optimizer


def lower(large_size: int) -> None:
    """Lowers the threshold of large tensors, so that kilobytes show the rule."""
    varve.hfai._split.LARGE_SIZE = large_size


def packed(state: Any) -> bytes:
    """A state for another process: tensors in shared memory would end with this one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def save_one(
    rank: int, size: int, path: str, seed: int = 0, remote_overwrite: Any = "refuse"
) -> bytes:
    lower(4096)
    net, optimizer = trained(size, seed)
    others = {"epoch": 3 + seed, "step": 17, "note": "…", "best": {"loss": 0.5, "w": torch.ones(3)}}
    mine = others if rank == 0 else None
    assert varve.hfai.save(path, net, optimizer, mine, remote_overwrite=remote_overwrite) is None
    return packed({"model": net.state_dict(), "optimizer": optimizer.state_dict(), **others})


def save_lists(rank: int, size: int, path: str) -> bytes:
    lower(4096)
    net, optimizer = trained(size)
    torch.manual_seed(5)
    second = nn.Sequential(nn.Linear(30, 40, bias=False))
    sgd = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9)
    second[0](torch.ones(2, 30)).sum().backward()
    sgd.step()
    varve.hfai.save(path, [net, second], [optimizer, sgd])
    models = [net.state_dict(), second.state_dict()]
    return packed((models, [optimizer.state_dict(), sgd.state_dict()]))


def save_badly(rank: int, size: int, path: str) -> None:
    """Rank 1 alone cannot take its share."""
    net, optimizer = trained(1)
    others = {"bad": object()} if rank == 0 else None
    varve.hfai.save(path, net, optimizer, others)


def try_saves(rank: int, size: int, path: str, remote_overwrite: Any = "refuse") -> list[Any]:
    lower(4096)
    net, optimizer = trained(size)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    start = varve.hfai.init(
        net,
        optimizer,
        scheduler=scheduler,
        ckpt_path=path,
        suspend=signal.SIGUSR1,
        remote_overwrite=remote_overwrite,
    )
    saved = [net.try_save(1, 10)]  # type: ignore[operator]
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    saved.append(net.try_save(1, 11, others={"rng": 5}))  # type: ignore[operator]
    again, _ = trained(size, seed=9)
    other = torch.optim.Adam(again.parameters(), amsgrad=True)
    schedule = torch.optim.lr_scheduler.StepLR(other, 2)
    resumed = varve.hfai.init(
        again,
        other,
        scheduler=schedule,
        ckpt_path=path,
        suspend=None,
        remote_overwrite=remote_overwrite,
    )
    same = all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=False)
        if isinstance(a, torch.Tensor)
    )
    return [start, saved, resumed, same, schedule.state_dict() == scheduler.state_dict()]


def save_again_and_die(rank: int, size: int, path: str, seconds: float) -> None:
    """Saves again and again, each time other numbers, until this rank is killed."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    net = nn.Linear(300, 400)
    for step in range(1, 1_000_000):
        with torch.no_grad():
            net.weight.fill_(float(step))
            net.bias.fill_(float(step))
        varve.hfai.save(path, net, others={"step": step}, remote_overwrite="in_place")


def save_uncleanly(rank: int, size: int, path: str, others: Any) -> None:
    net, optimizer = trained(1)
    varve.hfai.save(path, net, optimizer, others)


def load_onto_shards(rank: int, size: int, path: str) -> list[bool]:
    """Loads into FSDP2: by exact ranges in place, and by way of torch's state dicts."""
    mesh = init_device_mesh("cpu", (size,))

    def sharded() -> nn.Module:
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 5))
        fully_shard(net, mesh=mesh)
        return net

    in_place = sharded()
    varve.torch.load(
        {"model": [in_place.state_dict()]}, path, rename={"model.0.module.": "model.0."}
    )
    net = sharded()
    adam = torch.optim.Adam(net.parameters(), lr=0.5)
    state = varve.hfai.load(path, model=net)
    whole = StateDictOptions(full_state_dict=True)
    set_model_state_dict(net, state["model"], options=whole)
    set_optimizer_state_dict(net, adam, state["optimizer"], options=whole)
    stored = varve.hfai.load(path)
    moments = [stored["optimizer"]["state"][i]["exp_avg"] for i in range(4)]
    return [
        all(
            torch.equal(found.full_tensor(), stored["model"]["module." + name])
            for model in (in_place, net)
            for name, found in model.state_dict().items()
        ),
        all(
            torch.equal(adam.state[param]["exp_avg"].full_tensor(), moment)
            for param, moment in zip(net.parameters(), moments, strict=True)
        ),
        adam.param_groups[0]["lr"] == 0.01,
    ]


def save_for_shards(rank: int, size: int, path: str) -> None:
    lower(200)
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 5)))
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    net(torch.ones(2, 8)).sum().backward()
    adam.step()
    varve.hfai.save(path, net, adam)


def save_for_ever(path: str, store: str, started: Any) -> None:
    """Overwrites one checkpoint with states of ever higher numbers."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    net = nn.Linear(512, 512)
    number = 0
    while True:
        with torch.no_grad():
            net.weight.fill_(number)
        varve.hfai.save(path, net, others={"n": number})
        number += 1
        started.set()
