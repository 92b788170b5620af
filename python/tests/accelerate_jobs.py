"""Training loops with accelerate: what test_accelerate.py runs, alone and on several ranks."""

from __future__ import annotations

import glob
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed

import varve
from varve.integrations.accelerate import VarveCheckpoints, VarveSaving, fsdp_through_varve


class Counter:
    """An object to register: it counts batches."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Ballast:
    """48 MiB: at 1 MiB/s several ranks write it for many seconds."""

    def state_dict(self) -> dict[str, Any]:
        return {"zeros": torch.zeros(12 << 20)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("it is never loaded")


def as_rank(rank: int, size: int) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size)
    )


class Loop:
    """A model with dropout, AdamW, a schedule and a shuffled dataloader of 4 batches an epoch."""

    def __init__(
        self,
        project: Any = None,
        limit: int | None = None,
        batch: int = 4,
        dropout: float = 0.2,
        seedable: bool = False,
        saving: VarveSaving | None = None,
    ) -> None:
        set_seed(1)
        configuration = ProjectConfiguration(
            str(project) if project else None,
            automatic_checkpoint_naming=project is not None,
            total_limit=limit,
        )
        self.accelerator = Accelerator(
            cpu=True,
            project_config=configuration,
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable),
        )
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 40), torch.nn.Dropout(dropout), torch.nn.Linear(40, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data = torch.randn(32, 7, generator=torch.Generator().manual_seed(2))
        loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(
            model, optimizer, schedule, loader
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)
        self.checkpoints = VarveCheckpoints(self.accelerator, saving)

    def epoch(self) -> list[float]:
        """Trains an epoch; returns the losses of its batches, the mean over ranks."""
        losses = []
        for batch in self.loader:
            loss = ((self.model(batch[:, :6]).squeeze(1) - batch[:, 6]) ** 2).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.counter.seen += 1
            losses.append(self.accelerator.reduce(loss.detach(), "mean").item())
        return losses

    def weights(self) -> dict[str, Any]:
        model = self.accelerator.unwrap_model(self.model)
        return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def two_epochs(
    rank: int, size: int, path: str, save: bool, load: bool, more: dict[str, Any]
) -> tuple[list[float], dict[str, Any]]:
    """Trains two epochs, or the second one alone after a load; saves after the first."""
    as_rank(rank, size)
    loop = Loop(**more)
    assert loop.accelerator.num_processes == size
    if load:
        loop.checkpoints.load_state(path)
    else:
        loop.epoch()
    if save:
        loop.checkpoints.save_state(path)
    losses = loop.epoch()
    loop.checkpoints.wait()
    return losses, loop.weights()


def save_without_temporary_directory_on_rank_1(rank: int, size: int, path: str) -> str:
    """Saves while rank 1 has none, then again while it has one; returns what the first save raises."""
    as_rank(rank, size)
    loop = Loop()
    mine = tempfile.gettempdir()
    tempfile.tempdir = f"{path}/gone" if rank == 1 else mine
    raised = "nothing"
    try:
        loop.checkpoints.save_state(f"{path}/one")
    except varve.Error as error:
        raised = f"{type(error).__name__}: {error}"
    tempfile.tempdir = mine
    loop.checkpoints.save_state(f"{path}/two")
    loop.checkpoints.close()
    return raised


def die_in_the_second_save(rank: int, size: int, project: str) -> None:
    as_rank(rank, size)
    loop = Loop(project)
    loop.epoch()
    loop.checkpoints.save_state()
    loop.checkpoints.wait()
    loop.epoch()
    loop.accelerator.register_for_checkpointing(Ballast())
    loop.checkpoints.saving = VarveSaving(max_write_bandwidth=1 << 20)
    loop.checkpoints.save_state()
    folder = Path(project) / "checkpoints"
    while not (folder / "checkpoint_1").exists():
        if len(glob.glob(f"{folder}/.checkpoint_*/data-*")) == size:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    raise AssertionError("the save has ended")


def resume(rank: int, size: int, project: str) -> tuple[str, int, list[float], dict[str, Any]]:
    as_rank(rank, size)
    loop = Loop(project)
    path = loop.checkpoints.load_state()
    losses = loop.epoch()
    loop.checkpoints.save_state()
    loop.checkpoints.wait()
    return os.path.basename(path), loop.counter.seen, losses, loop.weights()


# ---- FSDP2's sharded modules ----


def sharded_loop(steps: int) -> tuple[Any, Any, Any]:
    """An accelerator that holds a module sharded over all ranks, and its optimizer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model = accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.1))
    for step in range(steps):
        model(torch.full((2, 6), float(step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return accelerator, model, optimizer


def whole(model: Any, optimizer: Any) -> dict[str, Any]:
    """The whole weights and moments, on every rank."""
    weights = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    for index, held in optimizer.state_dict()["state"].items():
        weights[f"moments.{index}"] = held["exp_avg_sq"].full_tensor()
    return {name: tensor.numpy().copy() for name, tensor in weights.items()}


def save_sharded(rank: int, size: int, path: str) -> dict[str, Any]:
    as_rank(rank, size)
    accelerator, model, optimizer = sharded_loop(3)
    checkpoints = VarveCheckpoints(accelerator)
    checkpoints.save_state(path)
    checkpoints.wait()
    return whole(model, optimizer)


def load_sharded(rank: int, size: int, path: str) -> dict[str, Any]:
    as_rank(rank, size)
    accelerator, model, optimizer = sharded_loop(0)
    VarveCheckpoints(accelerator).load_state(path)
    return whole(model, optimizer)


def through_fsdp_functions(
    rank: int, size: int, path: str, save: bool, load_stock: bool = False
) -> dict[str, Any]:
    """Saves or loads with accelerate's own functions for FSDP."""
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils

    as_rank(rank, size)
    accelerator, model, optimizer = sharded_loop(3 if save else 0)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type="SHARDED_STATE_DICT", cpu_offload=False
    )
    inner = optimizer.optimizer
    if load_stock:
        fsdp_utils.load_fsdp_model(plugin, accelerator, model, path)
        fsdp_utils.load_fsdp_optimizer(plugin, accelerator, inner, model, path)
        return whole(model, optimizer)
    with fsdp_through_varve():
        if save:
            fsdp_utils.save_fsdp_model(plugin, accelerator, model, path)
            fsdp_utils.save_fsdp_optimizer(plugin, accelerator, inner, model, path)
            if rank == 0:
                names = {e.name: e.state for e in varve.list_checkpoints(path)}
                assert names == {"pytorch_model_fsdp_0": "whole", "optimizer_0": "whole"}
                assert varve.verify(os.path.join(path, "optimizer_0")) == []
        else:
            fsdp_utils.load_fsdp_model(plugin, accelerator, model, path)
            fsdp_utils.load_fsdp_optimizer(plugin, accelerator, inner, model, path)
    return whole(model, optimizer)
