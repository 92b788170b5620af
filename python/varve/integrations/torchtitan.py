"""A checkpoint manager for torchtitan that saves and loads with Varve.

    from varve.integrations.torchtitan import VarveCheckpointManager

    checkpoint = VarveCheckpointManager.Config(enable=True, interval=500, async_mode="async")

Tested with torchtitan 0.3.0 and torch 2.13: the manager in a training loop on CPU ranks. torchtitan's
Trainer needs a GPU; it builds the manager from the field `checkpoint` of its config.

Replaces: `CheckpointManager`, all of it. Folders are `step-N` as before, names in a checkpoint too.

Adds: Checkpoints of Varve, whole or absent, checked when they are loaded, in any layout of ranks. A resume
takes the newest good step and warns of each one that it passes over. `keep_latest_k` counts only whole
checkpoints: none is removed before a newer one is durable. The export to Hugging Face's format appears
whole. torchtitan's own DCP checkpoints are resumed from.

`folder="s3://bucket/run"` saves to an object store and resumes from it (docs/storage.md).

Cannot: Give the dataloader's state to another number of data-parallel ranks, which torchtitan cannot
either: list "dataloader" in `exclude_from_loading`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.distributed.checkpoint import hf_storage, state_dict_loader

import varve
import varve.torch
from varve._engine import path_text
from varve.errors import (
    CorruptCheckpointError,
    Error,
    InvalidArgumentError,
    PreconditionError,
)
from varve.integrations._contract import missing_package
from varve.integrations._ranks import by_rank_0, load_own_or_first, rank_of_job
from varve.integrations._staging import Staging, checked, choose
from varve.integrations._steps import Purge, whole_steps

try:
    from torchtitan.components.checkpointer import (
        DATALOADER,
        LR_SCHEDULER,
        MODEL,
        OPTIMIZER,
        BaseCheckpointManager,
        ModelWrapper,
    )
    from torchtitan.config import TORCH_DTYPE_MAP
except ImportError as error:
    raise missing_package(__name__, "torchtitan", "torchtitan", error) from error

_log = logging.getLogger("varve")


class VarveCheckpointManager(BaseCheckpointManager):  # type: ignore[misc]
    """torchtitan's checkpoint manager over Varve.

    Args:
        config: Its options; see Config.
        dataloader: As torchtitan gives them, these and the following ones. None: it has no state.
        model_parts: The modules whose parameters are saved.
        optimizers: torchtitan's container of optimizers.
        lr_schedulers: torchtitan's container of schedulers.
        states: Further objects with `state_dict` and `load_state_dict`, by name.
        sd_adapter: Converts the model's names and tensors from and to Hugging Face's.
        base_folder: `config.folder` is relative to it.

    Raises:
        InvalidArgumentError: The folder is no path of this system.
        ValueError: The options make no sense together.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):  # type: ignore[misc]
        """torchtitan's options of checkpoints, and those of Varve."""

        async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
        """"async": the save goes on in the background, from a copy that is made as `staging` says.
        "async_with_pinned_mem": the copy is made while the next forward and backward pass compute;
        torchtitan waits for it before the optimizer's step."""

        staging: Literal["blocking", "overlapped"] | None = None
        """Of "async": "blocking" copies the state in the call; with "overlapped" the optimizers' next step
        waits for the copy. None: "overlapped" if the model is on a CUDA device and every tensor of the save
        is a parameter or a state of the optimizers, else "blocking"."""

        executor: Literal["thread", "process"] = "thread"
        """Asynchronous saves: "process" submits them to the agent of the node (docs/async.md)."""

        keep_every: int = 0
        """Steps that are multiples of this stay for good, whatever `keep_latest_k` says. 0: none does."""

        timeout: float = 1800.0
        """Seconds that ranks wait for each other in a save or load."""

        def __post_init__(self) -> None:
            BaseCheckpointManager.Config.__post_init__(self)
            self.async_mode = self.async_mode.lower()  # type: ignore[assignment]
            if self.async_mode not in ("disabled", "async", "async_with_pinned_mem"):
                raise ValueError(
                    f"async_mode={self.async_mode!r}: want disabled, async or async_with_pinned_mem"
                )
            checked(self.staging)
            if self.keep_every < 0:
                raise ValueError(f"keep_every={self.keep_every}: want 0 or more")

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[torch.nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        sd_adapter: Any,
        base_folder: str = "",
    ) -> None:
        self.enable = config.enable
        self.save_future: Future[Any] | None = None
        if not config.enable:
            return
        if config.last_save_in_hf and sd_adapter is None:
            raise ValueError("last_save_in_hf=True needs an sd_adapter, and the model has none")
        self.config = config
        remote = "://" in config.folder  # A name of its own, whatever the base folder is.
        self.folder = path_text(
            config.folder if remote else os.path.join(base_folder, config.folder)
        )
        self.sd_adapter = sd_adapter
        self.states = states
        self.states.update(
            {
                MODEL: ModelWrapper(model_parts),
                OPTIMIZER: optimizers,
                DATALOADER: dataloader,
                LR_SCHEDULER: lr_schedulers,
            }
        )
        self._stager: varve.torch.Stager | None = None
        self._purge = Purge(self.folder, config.keep_latest_k, config.keep_every)
        _log.info("checkpoints are loaded from and saved to %s", self.folder)

    def path_of(self, step: int) -> str:
        """Returns the directory of a step's checkpoint."""
        return os.path.join(self.folder, f"step-{step}")

    # ---- Saving

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._is_due(curr_step, last_step):
            return False
        self.maybe_wait_for_saving()
        if last_step:
            self._save_last(curr_step)
        elif self.config.async_mode == "disabled":
            self._save_now(self._all_states(), curr_step)
            self._purge.after(curr_step, None)
        else:
            self._save_in_background(curr_step)
        return True

    def _is_due(self, step: int, last_step: bool) -> bool:
        config = self.config
        if config.load_only:
            return False
        first = step == 1 and config.enable_first_step_checkpoint
        return first or last_step or step % config.interval == 0

    def _save_now(self, state: Mapping[str, Any], step: int, suffix: str = "") -> str:
        path = self.path_of(step) + suffix
        varve.torch.save(state, path, overwrite=True, timeout=self.config.timeout)
        return path

    def _save_in_background(self, step: int) -> None:
        config = self.config
        pinned = config.async_mode == "async_with_pinned_mem"
        if self._stager is None:
            self._stager = varve.torch.Stager(executor=config.executor, timeout=config.timeout)
        asked: Staging = "overlapped" if pinned else config.staging
        state, staging = choose(asked, self._all_states(), self.states[OPTIMIZER])
        self.save_future = varve.torch.async_save(
            state,
            self.path_of(step),
            stager=self._stager,
            overwrite=True,
            timeout=config.timeout,
            **staging,
        )
        self._purge.after(step, self.save_future)

    def _save_last(self, step: int) -> None:
        """Saves the result of the training, in the call."""
        config = self.config
        if not config.last_save_model_only:
            self._save_now(self._all_states(), step)
            return
        dtype = TORCH_DTYPE_MAP[config.export_dtype]
        model = {
            name: value.to(dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in self.states[MODEL].state_dict().items()
        }
        if not config.last_save_in_hf:
            self._save_now(model, step)
            return
        # All ranks write their shards; rank 0 makes whole tensors of them, in bounded memory.
        shards = self._save_now(self.sd_adapter.to_hf(model), step, "-to-hf")

        def export() -> None:
            assets = getattr(self.sd_adapter, "hf_assets_path", None) or ""
            has_config = os.path.isfile(os.path.join(assets, "config.json"))
            varve.convert(
                shards,
                self.path_of(step),
                "hf",
                everything=True,
                overwrite=True,
                hf_config=assets if has_config else None,
            )
            varve.remove(shards)

        by_rank_0(f"export step-{step} to hf", export, config.timeout)

    def _wait_for_saving(self) -> None:
        future, self.save_future = self.save_future, None
        assert future is not None
        future.result()

    def _maybe_wait_for_staging(self) -> None:
        if isinstance(self.save_future, varve.torch.SaveHandle):
            self.save_future.wait_staged()

    def _close(self) -> None:
        """Waits for the save under way and raises its error, if it has not been raised."""
        try:
            self.maybe_wait_for_saving()
        finally:
            if self._stager is not None:
                self._stager.close()
                self._stager = None
            self._purge.close()

    # ---- Loading

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        if step != -1:
            path = self.path_of(step)
            self._fill(path, model_only=step == 0)
            return True
        return self._load_newest() or self._load_initial()

    def _load_newest(self) -> bool:
        """Loads the newest good step; returns False where the folder has none, good or bad."""
        names = by_rank_0(
            "choose the step to resume from",
            lambda: whole_steps(self.folder),
            self.config.timeout,
        )
        reason: Error | None = None
        for name in names:
            path = os.path.join(self.folder, name)
            try:
                self._fill(path, model_only=name == "step-0")
            except (CorruptCheckpointError, InvalidArgumentError) as error:
                if not isinstance(error, CorruptCheckpointError) and not _is_model_only(path):
                    raise
                reason = error  # The same on all ranks.
                if rank_of_job() == 0:
                    _log.warning("resume: %s is passed over: %s", path, error)
                continue
            _log.info("resumed from %s", path)
            return True
        if reason is not None:
            raise PreconditionError(
                f"resume: {self.folder} has checkpoints, and none of them can be resumed from; nothing "
                "is begun anew over them. Give load_step, another folder, or initial_load_path for the "
                f"weights alone. The oldest: {reason}",
                path=self.folder,
            ) from reason
        return False

    def _load_initial(self) -> bool:
        config = self.config
        path = config.initial_load_path
        if config.initial_load_in_hf and not path:
            path = getattr(self.sd_adapter, "hf_assets_path", None)
            if path is None:
                raise ValueError(
                    "initial_load_in_hf=True needs initial_load_path or hf_assets_path"
                )
        if not path:
            return False
        if config.initial_load_in_hf:
            self._fill_from_hf(path)
        else:
            self._fill(path, config.initial_load_model_only, cast=True)
        _log.info("loaded %s", path)
        return True

    def _fill(self, path: str, model_only: bool, cast: bool = False) -> None:
        """Loads a checkpoint of any format that has torchtitan's names."""
        wanted = self._model() if model_only else self._all_states(self.config.exclude_from_loading)
        load_own_or_first(wanted, path, cast=cast or model_only, timeout=self.config.timeout)
        model = self.states[MODEL]
        model.load_state_dict({name: wanted[name] for name in model.state_dict()})

    def _fill_from_hf(self, path: str) -> None:
        if self.sd_adapter is None:
            raise ValueError("initial_load_in_hf=True needs an sd_adapter, and the model has none")
        config = self.config
        wanted = self.sd_adapter.to_hf(self._model())
        reader = self.sd_adapter.get_hf_storage_reader(path, config.initial_load_in_hf_quantized)
        if type(reader) is hf_storage.HuggingFaceStorageReader:
            varve.torch.load(wanted, path, cast=True, timeout=config.timeout)
        else:  # It computes what it gives, from quantized tensors for example.
            state_dict_loader.load(wanted, storage_reader=reader)
        self.states[MODEL].load_state_dict(self.sd_adapter.from_hf(wanted))

    # ---- States

    def _model(self) -> dict[str, Any]:
        return dict(self.states[MODEL].state_dict())

    def _all_states(self, excluded: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
        """Returns the model's tensors by name, and beside them the other states by theirs."""
        unknown = [name for name in excluded if name not in self.states]
        if unknown:
            raise ValueError(f"exclude_from_loading: there is no state {', '.join(unknown)}")
        others = {n: v for n, v in self.states.items() if n != MODEL and n not in excluded}
        return {**others, **self._model()}


def _is_model_only(path: str) -> bool:
    """Returns True for a checkpoint without optimizer: what `last_save_model_only` has left."""
    names = varve.torch.open(path)
    return not any(name == OPTIMIZER or name.startswith(f"{OPTIMIZER}.") for name in names)
