"""The states of models and dataloaders that an Accelerator has prepared, and their way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.distributed.checkpoint import state_dict as distributed_state
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor


def is_sharded(model: torch.nn.Module) -> bool:
    """Returns True for a model of which each rank holds shards: FSDP, in either version."""
    return any(isinstance(p, DTensor) for p in model.parameters()) or any(
        isinstance(module, FullyShardedDataParallel) for module in model.modules()
    )


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """Returns a model's state, which shares memory with it, by names that no wrapper changes."""
    if is_sharded(model):
        options = distributed_state.StateDictOptions()
        return dict(distributed_state.get_model_state_dict(model, options=options))
    return dict(model.state_dict())


def put_model(model: torch.nn.Module, loaded: dict[str, Any]) -> None:
    """Gives a loaded state to a model. A plain one was filled in place, but for values of its modules."""
    if is_sharded(model):
        distributed_state.set_model_state_dict(model, loaded)
        return
    extra = {name: value for name, value in loaded.items() if not isinstance(value, torch.Tensor)}
    if extra:
        model.load_state_dict(extra, strict=False)


def dataloader_state(loader: Any) -> dict[str, Any]:
    """Returns which epoch a dataloader is in, and in what order it goes on."""
    state: dict[str, Any] = {"iteration": getattr(loader, "iteration", 0)}
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    if isinstance(sampler, SeedableRandomSampler):
        state["seed"], state["epoch"] = sampler.initial_seed, sampler.epoch
    generator = getattr(loader, "synchronized_generator", None)
    if generator is not None:
        state["generator"] = generator.get_state().cpu().numpy().tobytes()
    return state


def positions(loaders: Sequence[Any]) -> dict[str, Any]:
    """Returns where each stateful dataloader of this rank is."""
    stateful = [
        (i, loader)
        for i, loader in enumerate(loaders)
        if getattr(loader, "use_stateful_dataloader", False)
    ]
    return {str(i): loader.state_dict() for i, loader in stateful}


def put_dataloader(loader: Any, state: dict[str, Any]) -> None:
    """Lets a dataloader go on in the epoch and in the order that `dataloader_state` has returned."""
    if hasattr(loader, "iteration"):
        loader.iteration = state["iteration"]
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    if isinstance(sampler, SeedableRandomSampler) and "seed" in state:
        sampler.initial_seed = state["seed"]
        sampler.set_epoch(state["epoch"])
    generator = getattr(loader, "synchronized_generator", None)
    if generator is not None and "generator" in state:
        generator.set_state(torch.frombuffer(bytearray(state["generator"]), dtype=torch.uint8))
