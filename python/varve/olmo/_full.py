"""Checkpoints of whole states: `model.pt`, `optim.pt`, `train.pt`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.checkpoint import state_dict as torch_states
from torch.optim import Optimizer

import varve
from varve import _core, _engine
from varve.olmo import _optim, _whole
from varve.olmo._checkpointer import Checkpointer, Training
from varve.olmo._directory import Directory
from varve.olmo._files import PathOrStr
from varve.olmo._pieces import HeldModel, Piece, PieceArrays
from varve.olmo._remote import readable
from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._shards import is_dtensor


class FullCheckpointer(Checkpointer):
    """Saves one whole state of model and optimizer, which any world loads.

    On shared storage nothing is gathered: the ranks write what they hold, side by side, and rank 0 joins
    it to `model.pt` and `optim.pt` on the way from disk to disk, in bounded memory. On disks of nodes the
    state is gathered as PyTorch does it, in rank 0's memory; of a model on the CPU, in every rank's.
    """

    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        held = HeldModel(training.model)
        if directory.is_shared:
            self._join(directory, steps, held, training.optim)
        elif all(_is_whole(tensor) for tensor in held.tensors.values()):
            if steps.rank == 0:
                self._join(directory, Steps(None), held, training.optim)
        else:
            self._gather(directory, steps, training, _on_devices(held))
        files = {"train.pt": training.state} if steps.rank == 0 else {}
        self._write_files(directory, steps, files)

    def _join(self, directory: Directory, steps: Steps, held: HeldModel, optim: Optimizer) -> None:
        sharded = directory.path / ".sharded"
        save_state(str(sharded), held, optim, steps, "varve")
        steps.first(f"write {directory.path}", lambda: _unshard(sharded, directory))

    def _gather(
        self, directory: Directory, steps: Steps, training: Training, on_devices: bool
    ) -> None:
        # With cpu_offload FSDP1 frees a flat parameter of the CPU while views of it are copied, and the
        # process dies of it (torch 2.13).
        options = torch_states.StateDictOptions(full_state_dict=True, cpu_offload=on_devices)
        model_state = torch_states.get_model_state_dict(training.model, options=options)
        first = steps.rank == 0
        self._write_files(directory, steps, {"model.pt": model_state} if first else {})
        del model_state
        optim_state = torch_states.get_optimizer_state_dict(
            training.model, training.optim, options=options
        )
        self._write_files(directory, steps, {"optim.pt": optim_state} if first else {})

    def load_checkpoint(
        self,
        load_path: PathOrStr,
        *,
        local_cache: PathOrStr | None = None,
        load_optimizer_state: bool = True,
        device: torch.device | None = None,
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
        """Reads a checkpoint of any layout as whole states of model and optimizer, in one process."""
        path = readable(load_path, local_cache)
        return _whole.read(path, load_optimizer_state, False, device)[:2]


def save_state(
    path: str,
    held: HeldModel,
    optim: Optimizer,
    steps: Steps,
    format: Literal["varve", "dcp"],
    overwrite: bool = False,
) -> None:
    """Saves what all ranks hold of a model and an optimizer through the engine. Collective."""
    state = {
        "model": {**held.tensors, **{name: m.get_extra_state() for name, m in held.extra.items()}},
        "optim": _optim.named_state(held, optim),
    }
    options = _core.SaveOptions(format=format, overwrite=overwrite, timeout=TIMEOUT)
    _engine.save(_engine.Content(state), path, PieceArrays(), steps.coordinator, options)


def _on_devices(held: HeldModel) -> bool:
    return any(
        (tensor.data if isinstance(tensor, Piece) else tensor).device.type != "cpu"
        for tensor in held.tensors.values()
    )


def _is_whole(tensor: Any) -> bool:
    return not isinstance(tensor, Piece) and not is_dtensor(tensor)


def _unshard(sharded: Path, directory: Directory) -> None:
    """Writes `model.pt` and `optim.pt` from the ranks' data."""
    whole = directory.path / ".whole"
    varve.unshard(sharded, whole)
    for name in ("model.pt", "optim.pt"):
        os.rename(whole / name, directory.path / name)
        directory.add(directory.path / name)
    varve.remove(sharded)
    for left in whole.iterdir():
        left.unlink()
    whole.rmdir()
