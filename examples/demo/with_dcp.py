"""The same checkpoints by torch's own `torch.distributed.checkpoint`, for the demo's second panel."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from train import Trainer


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Return the trainer's state as DCP can hold it: the random state is the same on all ranks."""
    return {**trainer.state(), "rng": trainer.rng}


class Saver:
    """Saves in the background, over a group of its own: the training's collectives go on meanwhile."""

    def __init__(self) -> None:
        """Make the group. Collective."""
        self._group = dist.new_group()
        self._last: Future[Any] | None = None

    def async_save(self, state: dict[str, Any], path: str) -> Future[Any]:
        """Begin a save, once the one before has ended and the state has been copied."""
        if self._last is not None:
            self._last.result()
        self._last = dcp.async_save(state, checkpoint_id=path, process_group=self._group)
        return self._last


def resume(trainer: Trainer, path: str) -> None:
    """Go on from `path`, which any number of ranks may have written."""
    state = state_of(trainer)
    dcp.load(state, checkpoint_id=path)
    set_optimizer_state_dict(trainer.model, trainer.optimizer, state["optim"])
    trainer.progress.update(state["progress"])
    torch.set_rng_state(trainer.rng)


def has_data(path: Path) -> bool:
    """Return whether a save has begun to write data to `path`."""
    return any(file.stat().st_size > 0 for file in path.glob("*.distcp"))


def is_whole(path: Path) -> bool:
    """Return whether a save to `path` has ended: its index is written last."""
    return (path / ".metadata").exists()
