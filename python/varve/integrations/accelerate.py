"""Hugging Face's accelerate: `save_state` and `load_state` as sharded, asynchronous, atomic checkpoints.

    checkpoints = VarveCheckpoints(accelerator)     # after prepare() and register_for_checkpointing()
    checkpoints.save_state("run/step-10")           # on all ranks; written in the background
    checkpoints.load_state("run/step-10")           # on any number of ranks
    checkpoints.close()                             # at the end: all are durable

`VarveCheckpoints(accelerator).install()` makes `accelerator.save_state` and `load_state` these, and lets
`end_training` wait; a script changes by that line. Tested with accelerate 1.15.0 on CPU, alone and on two
ranks (DDP over gloo; FSDP2's sharded modules over gloo).

What it replaces: the folder that `save_state` writes. One checkpoint holds models, optimizers, schedulers,
samplers, scaler, random states, the step and registered objects; all ranks write shares of it, and it gets
its name when all of it is durable. Hooks of `register_save_state_pre_hook` write into a folder whose files
become part of the checkpoint (rank 0's, 256 MiB in all).

What it adds: names do not depend on the number of ranks (no `module.`); automatic naming's `total_limit`
removes after the newer checkpoint is durable; `load_state()` without a path takes the newest checkpoint
that is whole, warns of others, and goes on counting behind it. The order of shuffled batches is saved too.

What it cannot do, and refuses: DeepSpeed, Megatron-LM, XLA, `save_on_each_node`. The folder is no folder
of stock `load_state`. A stateful dataloader's position is each rank's own; on more ranks the further ones
get rank 0's, with a warning.

`fsdp_through_varve` is for code that calls accelerate's `save_fsdp_model`, `load_fsdp_model` and their
twins for optimizers, as transformers.Trainer does under FSDP: they then write with `varve.torch.dcp`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint import state_dict as distributed_state

import varve.torch
import varve.torch.dcp
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.integrations import _contract, _hf_folders, _hf_random
from varve.integrations._hf_saves import Content, Saves, VarveSaving, prepared
from varve.integrations._ranks import by_rank_0, load_own_or_first

try:
    from accelerate.utils import DistributedType

    from varve.integrations import _hf_parts
except ImportError as _error:
    raise _contract.missing_package(
        "varve.integrations.accelerate", "accelerate", "accelerate", _error
    ) from _error

__all__ = ["VarveCheckpoints", "VarveSaving", "fsdp_through_varve"]

TESTED = "1.15.0"

#: The names that this module needs of accelerate. The attributes that an Accelerator gets in its constructor are below.
NEEDED: _contract.Table = {
    "accelerate:Accelerator.save_state": ("output_dir",),
    "accelerate:Accelerator.load_state": ("input_dir",),
    "accelerate:Accelerator.end_training": ("self",),
    "accelerate:Accelerator.unwrap_model": ("model", "keep_torch_compile"),
    "accelerate:Accelerator.project_dir": (),
    "accelerate.data_loader:DataLoaderShard.get_sampler": ("self",),
    "accelerate.data_loader:SeedableRandomSampler.set_epoch": ("epoch",),
    "accelerate.utils:DistributedType.MULTI_CPU": (),
    "accelerate.utils:ProjectConfiguration.iteration": (),
    "accelerate.utils.fsdp_utils:save_fsdp_model": ("output_dir", "use_dcp"),
    "accelerate.utils.fsdp_utils:load_fsdp_model": ("input_dir", "use_dcp"),
    "accelerate.utils.fsdp_utils:save_fsdp_optimizer": ("output_dir", "use_dcp"),
    "accelerate.utils.fsdp_utils:load_fsdp_optimizer": ("input_dir", "use_dcp"),
}

#: Attributes of an Accelerator.
ATTRIBUTES = (
    "_custom_objects",
    "_dataloaders",
    "_load_model_state_pre_hook",
    "_models",
    "_optimizers",
    "_save_model_state_pre_hook",
    "_schedulers",
    "project_configuration",
    "scaler",
    "step",
)

_PREFIX = "checkpoint_"

#: Objects that are counted: a checkpoint fits an accelerator that has as many of each.
_KINDS = ("models", "optimizers", "schedulers", "dataloaders", "objects")


class VarveCheckpoints:
    """The checkpoints of one Accelerator.

    Args:
        accelerator: All that is to be saved is prepared or registered.
        saving: How to save and load.

    Raises:
        UnsupportedError: The accelerator trains in a way that is not supported.
    """

    def __init__(self, accelerator: Any, saving: VarveSaving | None = None) -> None:
        _contract.require("varve.integrations.accelerate", "accelerate", TESTED, NEEDED)
        lacking = [name for name in ATTRIBUTES if not hasattr(accelerator, name)]
        if lacking:
            raise UnsupportedError(
                f"varve.integrations.accelerate needs {', '.join(lacking)} of an Accelerator; it is "
                f"tested with accelerate {TESTED}"
            )
        self.accelerator = accelerator
        self.saving = saving if saving is not None else VarveSaving()
        self._saves = Saves()
        self._refuse()

    def _refuse(self) -> None:
        kind = self.accelerator.distributed_type
        if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA):
            raise UnsupportedError(f"save_state with {kind.value} is not supported by Varve")
        if self.accelerator.project_configuration.save_on_each_node:
            raise UnsupportedError(
                "save_on_each_node=True wants one checkpoint per node; ranks share one here"
            )

    def install(self) -> None:
        """Makes `save_state`, `load_state` and `end_training` of the accelerator use this."""
        accelerator = self.accelerator
        end_training = accelerator.end_training

        def save_state(
            output_dir: Any = None, safe_serialization: bool = True, **unknown: Any
        ) -> str:
            _refuse_arguments("save_state", unknown)
            return self.save_state(output_dir).path

        def load_state(input_dir: Any = None, load_kwargs: Any = None, **unknown: Any) -> None:
            _refuse_arguments("load_state", {**(load_kwargs or {}), **unknown})
            self.load_state(input_dir)

        def end_training_durably() -> None:
            self.close()
            end_training()

        accelerator.save_state = save_state
        accelerator.load_state = load_state
        accelerator.end_training = end_training_durably

    # ---- saving ----

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None
    ) -> varve.torch.SaveHandle:
        """Saves everything that the accelerator knows; returns when it is copied. Collective.

        An overlapped save (see `VarveSaving`) returns before that. Until `wait_staged` of the handle, or
        the next step of the optimizers, nothing else may write to the weights.

        Replaces a checkpoint at `output_dir`. With automatic naming, which takes no path, a whole
        checkpoint of the name is an error of the save.

        Args:
            output_dir: The checkpoint; None with automatic naming.

        Returns:
            The handle of the save. Its errors are raised by the next call, or by `wait`.
        """
        self._refuse()
        accelerator = self.accelerator
        configuration = accelerator.project_configuration
        automatic = configuration.automatic_checkpoint_naming
        folder = self._folder() if automatic else ""
        if automatic:
            path = os.path.join(folder, f"{_PREFIX}{configuration.iteration}")
        elif output_dir is None:
            raise InvalidArgumentError(
                "save_state: no output_dir, and automatic_checkpoint_naming is off"
            )
        else:
            path = os.path.abspath(os.path.expanduser(os.fspath(output_dir)))
        first: bool = accelerator.process_index == 0

        def content() -> Content:
            with tempfile.TemporaryDirectory(prefix="varve-") as hooks:
                state = self._state(hooks)
                files = _hf_folders.files_in(hooks)
            if first:
                _hf_folders.clear_way(path, [])
            return state, files if first else None

        state, files = prepared(content)
        handle = self._saves.begin(
            state,
            path,
            self.saving,
            optimizers=accelerator._optimizers,
            files=files,
            overwrite="damaged" if automatic else True,
        )
        if first and automatic:
            self._saves.rotate_after(path, folder, _PREFIX, configuration.total_limit, [path])
        configuration.iteration += 1
        return handle

    def wait(self) -> None:
        """Waits until all saves are durable, and rotation is done.

        Raises:
            Error: The failure of a save, unless `on_failure` is "log".
        """
        self._saves.finish(self.saving)

    def close(self) -> None:
        """Waits likewise, and gives the memory back that is kept from save to save."""
        self.wait()
        self._saves.close()

    def _folder(self) -> str:
        return os.path.abspath(os.path.join(self.accelerator.project_dir, "checkpoints"))

    def _state(self, hooks: str) -> dict[str, Any]:
        """Returns what this rank gives to a save; calls the hooks."""
        accelerator = self.accelerator
        models = [_hf_parts.model_state(self._unwrapped(model)) for model in accelerator._models]
        for hook in accelerator._save_model_state_pre_hook.values():
            hook(accelerator._models, models, hooks)  # May take models off the list.
        state: dict[str, Any] = {
            "models": models,
            "optimizers": [self._optimizer_state(i) for i in range(len(accelerator._optimizers))],
            "schedulers": [scheduler.state_dict() for scheduler in accelerator._schedulers],
            "dataloaders": [
                _hf_parts.dataloader_state(loader) for loader in accelerator._dataloaders
            ],
            "objects": list(accelerator._custom_objects),
        }
        state["counts"] = {kind: len(state[kind]) for kind in _KINDS}
        state["step"] = accelerator.step
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler.state_dict()
        positions = _hf_parts.positions(accelerator._dataloaders)
        if positions:
            state["positions"] = varve.torch.PerRank(positions)
        one = accelerator.num_processes == 1
        state["rng"] = varve.torch.PerRank(_hf_random.capture(accelerator.device, all_devices=one))
        return state

    def _unwrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(model, keep_torch_compile=False)
        return unwrapped

    def _optimizer_state(self, index: int) -> Any:
        """Returns an optimizer's state, that of sharded parameters under their names."""
        optimizer = self.accelerator._optimizers[index]
        model = self._model_of_optimizer(index)
        if model is None:
            return optimizer
        return distributed_state.get_optimizer_state_dict(model, optimizer.optimizer)

    def _optimizer_target(self, index: int) -> Any:
        """Returns what a load fills: a plain optimizer that is new, or the state of a sharded one.

        Nothing for one that has state, which is replaced as a whole: it may be of another shape.
        """
        state = self._optimizer_state(index)
        if self._model_of_optimizer(index) is not None:
            return dict(state)
        return {} if state.state else state

    def _model_of_optimizer(self, index: int) -> torch.nn.Module | None:
        """Returns the sharded model that an optimizer trains, which has its position; None for others."""
        models = self.accelerator._models
        if index < len(models):
            model = self._unwrapped(models[index])
            return model if _hf_parts.is_sharded(model) else None
        return None

    # ---- loading ----

    def load_state(self, input_dir: str | os.PathLike[str] | None = None) -> str:
        """Loads a checkpoint into everything that the accelerator knows, and returns its path. Collective.

        Args:
            input_dir: The checkpoint. None takes the newest good one of automatic naming, and the next
                save counts on behind it.

        Raises:
            CheckpointNotFoundError: There is none.
            InvalidArgumentError: The accelerator has other numbers of models, optimizers, schedulers,
                dataloaders or registered objects than were saved.
        """
        self._refuse()
        self._saves.finish(self.saving)
        configuration = self.accelerator.project_configuration
        if input_dir is not None:
            path = os.path.abspath(os.path.expanduser(os.fspath(input_dir)))
        elif configuration.automatic_checkpoint_naming:
            path = self._newest()
            configuration.iteration = int(os.path.basename(path).removeprefix(_PREFIX)) + 1
        else:
            raise InvalidArgumentError(
                "load_state: no input_dir, and automatic_checkpoint_naming is off"
            )
        self._load(path)
        return path

    def _newest(self) -> str:
        """Returns what rank 0 finds, on all ranks."""
        folder = self._folder()
        verify = self.saving.verify
        newest: str | None = by_rank_0(
            "choose the checkpoint to load",
            lambda: _hf_folders.newest_good(
                folder, _PREFIX, verify, lambda _: "it is no checkpoint of Varve"
            ),
            self.saving.timeout,
        )
        if newest is None:
            raise varve.CheckpointNotFoundError(
                f"load_state: {folder} has no whole checkpoint", path=folder
            )
        return newest

    def _load(self, path: str) -> None:
        accelerator = self.accelerator
        stored = varve.torch.open(path)
        models = list(accelerator._models)
        for hook in accelerator._load_model_state_pre_hook.values():
            hook(models, path)  # May take models off the list.
        parts = {
            "models": [_hf_parts.model_state(self._unwrapped(model)) for model in models],
            "optimizers": [self._optimizer_target(i) for i in range(len(accelerator._optimizers))],
            "schedulers": [{} for _ in accelerator._schedulers],
            "dataloaders": [{} for _ in accelerator._dataloaders],
            "objects": list(accelerator._custom_objects),
        }
        _check_counts(path, stored, parts)
        state: dict[str, Any] = {kind: part for kind, part in parts.items() if part}
        state["step"] = 0
        state["rng"] = varve.torch.PerRank({})
        if accelerator.scaler is not None and any(name.startswith("scaler.") for name in stored):
            state["scaler"] = {}
        if _hf_parts.positions(accelerator._dataloaders) and any(
            n.startswith("positions") for n in stored
        ):
            state["positions"] = varve.torch.PerRank({})
        saving = self.saving
        load_own_or_first(state, path, timeout=saving.timeout, allow_pickle=saving.allow_pickle)
        known = accelerator.process_index < (stored.world_size or 0)
        self._put(models, state, known)

    def _put(self, models: Sequence[Any], state: dict[str, Any], known: bool) -> None:
        """Gives the loaded states to what cannot be filled in place; `known`: this rank was saved."""
        accelerator = self.accelerator
        for model, loaded in zip(models, state.get("models", []), strict=True):
            _hf_parts.put_model(self._unwrapped(model), loaded)
        if "scaler" in state:
            accelerator.scaler.load_state_dict(state["scaler"])
        for index, loaded in enumerate(state.get("optimizers", [])):
            sharded = self._model_of_optimizer(index)
            optimizer = accelerator._optimizers[index]
            if sharded is not None:
                distributed_state.set_optimizer_state_dict(sharded, optimizer.optimizer, loaded)
            elif loaded is not optimizer:
                optimizer.load_state_dict(loaded)
        for scheduler, loaded in zip(
            accelerator._schedulers, state.get("schedulers", []), strict=True
        ):
            scheduler.load_state_dict(loaded)
        loaders = zip(accelerator._dataloaders, state.get("dataloaders", []), strict=True)
        for loader, loaded in loaders:
            _hf_parts.put_dataloader(loader, loaded)
        if "positions" in state:
            self._put_positions(state["positions"].value, known)
        accelerator.step = state["step"]
        if known:  # Ranks that the save did not have keep theirs, which differ from each other.
            _hf_random.restore(state["rng"].value, accelerator.device)

    def _put_positions(self, positions: dict[str, Any], known: bool) -> None:
        if not known:
            warnings.warn(
                "this rank was not there when the checkpoint was saved: its dataloaders get the "
                "positions of rank 0",
                RuntimeWarning,
                stacklevel=2,
            )
        for index, position in positions.items():
            self.accelerator._dataloaders[int(index)].load_state_dict(position)


def _refuse_arguments(function: str, arguments: dict[str, Any]) -> None:
    if arguments:
        raise InvalidArgumentError(
            f"{function}: {', '.join(sorted(arguments))} has no meaning for a checkpoint of Varve"
        )


def _check_counts(path: str, stored: Any, parts: dict[str, Any]) -> None:
    if "counts.models" not in stored:
        raise InvalidArgumentError(f"{path} was not saved by varve.integrations.accelerate")
    wrong = [
        f"{stored[f'counts.{kind}']} {kind}, and the accelerator has {len(parts[kind])}"
        for kind in _KINDS
        if stored[f"counts.{kind}"] != len(parts[kind])
    ]
    if wrong:
        raise InvalidArgumentError(f"{path} holds " + "; ".join(wrong))


@contextlib.contextmanager
def fsdp_through_varve() -> Iterator[None]:
    """Lets accelerate's FSDP functions save and load with `varve.torch.dcp` while the block runs.

    That is `save_fsdp_model`, `load_fsdp_model`, `save_fsdp_optimizer` and `load_fsdp_optimizer` with
    SHARDED_STATE_DICT and `use_dcp=True`, which look torch.distributed.checkpoint up when they are called.
    Each directory that they write is then durable, appears whole, and opens in stock PyTorch. Model and
    optimizer remain two checkpoints: a kill between them leaves a folder with the model alone.
    """
    names = ("save", "load", "FileSystemWriter", "FileSystemReader")
    stock = {name: getattr(torch_dcp, name) for name in names}
    try:
        for name in names:
            setattr(torch_dcp, name, getattr(varve.torch.dcp, name))
        yield
    finally:
        for name, value in stock.items():
            setattr(torch_dcp, name, value)
