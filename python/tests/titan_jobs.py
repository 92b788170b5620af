"""What processes run in test_torchtitan.py: a training loop around a real checkpoint manager."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from kills import kill_me_while_saving
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Progress:
    """The step that training has reached, as torchtitan's Trainer keeps it."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class Ballast:
    """A state that takes a while to write, of which each rank writes a share."""

    def __init__(self, mebibytes: int) -> None:
        self.tensor = torch.arange(mebibytes << 18, dtype=torch.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor = state["tensor"]


class Adapter:
    """Hugging Face's names are the model's with a prefix."""

    fqn_to_index_mapping = None
    hf_assets_path = None

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {f"model.{name}": value for name, value in state.items()}

    def from_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("model."): value for name, value in state.items()}

    def get_hf_storage_reader(self, path: str, from_quantized: bool = False) -> Any:
        from torch.distributed.checkpoint import HuggingFaceStorageReader

        return HuggingFaceStorageReader(path)


class ComputingAdapter(Adapter):
    """One whose reader is not torch's own."""

    def get_hf_storage_reader(self, path: str, from_quantized: bool = False) -> Any:
        from torch.distributed.checkpoint import HuggingFaceStorageReader

        class Reader(HuggingFaceStorageReader):
            """As one that computes what it gives."""

        return Reader(path)


class Training:
    """A small net with torchtitan's containers and a manager; sharded where there are ranks.

    Args:
        base: The manager's base folder.
        stock: Take torchtitan's own manager.
        ballast: MiB that are saved beside the net.
        sd_adapter: As the manager takes it.
        options: Of the manager's Config.
    """

    def __init__(
        self,
        base: str,
        *,
        stock: bool = False,
        ballast: int = 0,
        sd_adapter: Any = None,
        dataloader: Any = None,
        **options: Any,
    ) -> None:
        from torchtitan.components.checkpointer import CheckpointManager
        from torchtitan.components.optimizer import (
            LRSchedulersContainer,
            OptimizersContainer,
            ParamGroupConfig,
        )

        from varve.integrations.torchtitan import VarveCheckpointManager

        torch.manual_seed(0)
        layers = (torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64))
        self.model = torch.nn.Sequential(*layers)
        if dist.is_initialized():
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        adam = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})
        self.optimizers = OptimizersContainer.Config(
            param_groups=[adam], implementation="foreach"
        ).build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
            optimizers=self.optimizers, training_steps=100
        )
        self.progress = Progress()
        manager = CheckpointManager if stock else VarveCheckpointManager
        defaults = {
            "enable": True,
            "interval": 5,
            "last_save_model_only": False,
            "initial_load_model_only": False,
        }
        states: dict[str, Any] = {"train_state": self.progress}
        if ballast:
            states["ballast"] = Ballast(ballast)
        self.manager = manager.Config(**{**defaults, **options}).build(
            dataloader=dataloader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states=states,
            sd_adapter=sd_adapter,
            base_folder=base,
        )

    def run(self, steps: int) -> dict[int, float]:
        """Trains up to a step, in the order of torchtitan's Trainer; returns the loss of each step."""
        losses = {}
        while self.progress.step < steps:
            self.progress.step += 1
            seed = torch.Generator().manual_seed(self.progress.step)
            tokens = torch.randint(0, 64, (16,), generator=seed)
            loss = torch.nn.functional.cross_entropy(self.model(tokens), tokens)
            self.optimizers.zero_grad()
            loss.backward()
            self.manager.maybe_wait_for_staging()
            self.optimizers.step()
            self.schedulers.step()
            losses[self.progress.step] = loss.item()
            self.manager.save(self.progress.step, last_step=self.progress.step == steps)
        return losses


def train(rank: int, size: int, folder: str, steps: int, **options: Any) -> dict[int, float]:
    """Loads the newest good step, if there is one, and trains on."""
    training = Training(folder, **options)
    training.manager.load()
    losses = training.run(steps)
    training.manager.close()
    return losses


def train_with(
    rank: int, size: int, folder: str, steps: int, options: dict[str, Any]
) -> dict[int, float]:
    """Does as `train`."""
    return train(rank, size, folder, steps, **options)


def train_and_be_killed(
    rank: int, size: int, folder: str, steps: int, saving: str, options: dict[str, Any]
) -> None:
    """Trains until the save of a checkpoint is in the middle of its writing; kills this rank then."""
    kill_me_while_saving(saving)
    train(rank, size, folder, steps, **options)
    raise AssertionError(f"{saving} was never seen in the middle of a save")


def load(rank: int, size: int, folder: str) -> None:
    """Loads the newest good step."""
    Training(folder).manager.load()
