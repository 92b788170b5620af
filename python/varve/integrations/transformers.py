"""Hugging Face's Trainer: sharded, asynchronous, atomic checkpoints.

    class MyTrainer(VarveTrainerMixin, Trainer): ...      # or VarveTrainer, which is just that

Tested with transformers 5.23.0 and accelerate 1.15.0 on CPU, alone and on two ranks (DDP over gloo).

What it replaces: what the Trainer writes into `checkpoint-N`, how it resumes from that, and rotation. All
ranks save: each writes whole tensors of the model and a share of the optimizer, in the background. A
checkpoint gets its name when every byte of it is durable.

What it adds: `resume_from_checkpoint=True` takes the newest checkpoint that is whole, reads all of it
first, and warns of those that it passes over, half ones of the stock Trainer too. Where there is none it
does what the Trainer does. A resume on another number of ranks restores everything; ranks that the save did
not have keep their random state.

What stays: the folder opens with `from_pretrained`, which lists the optimizer's tensors as unexpected:
they are in the same files. `trainer_state.json`, `training_args.bin`, `config.json`, the tokenizer's files
and everything else that the Trainer's `_save` writes are there, as files that belong to the checkpoint
(256 MiB in all). With PEFT the adapter is among them, and nothing of the base model is saved.

What it cannot do, and refuses: FSDP, DeepSpeed, XLA, SageMaker, models that transformers itself has
sharded, `save_on_each_node`, and `push_to_hub` before the end of training (`hub_strategy="end"` works).
A Trainer without the mixin finds the model in these checkpoints, and no optimizer.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import varve
import varve.torch
from varve.errors import CorruptCheckpointError, UnsupportedError
from varve.integrations import _contract, _hf_folders, _hf_model, _hf_random, _hf_stock
from varve.integrations._hf_saves import Content, Saves, VarveSaving, prepared
from varve.integrations._ranks import by_rank_0, load_own_or_first
from varve.integrations._removal import remove_unless_held

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
    from transformers.utils import is_peft_available, is_sagemaker_mp_enabled
except ImportError as _error:
    raise _contract.missing_package(
        "varve.integrations.transformers", "transformers", "transformers", _error
    ) from _error

__all__ = ["VarveCallback", "VarveSaving", "VarveTrainer", "VarveTrainerMixin"]

_log = logging.getLogger("varve")

TESTED = "5.23.0"

#: The names that this module needs of transformers and accelerate.
NEEDED: _contract.Table = {
    "transformers.trainer:Trainer.train": ("resume_from_checkpoint",),
    "transformers.trainer:Trainer._save_checkpoint": ("model", "trial"),
    "transformers.trainer:Trainer._save": ("output_dir", "state_dict"),
    "transformers.trainer:Trainer._get_output_dir": ("trial",),
    "transformers.trainer:Trainer._load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "transformers.trainer:Trainer._load_optimizer_and_scheduler": ("checkpoint",),
    "transformers.trainer:Trainer._load_scaler": ("checkpoint",),
    "transformers.trainer:Trainer._load_rng_state": ("checkpoint",),
    "transformers.trainer:Trainer._load_best_model": ("self",),
    "transformers.trainer:Trainer._finalize_training": ("trial",),
    "transformers.trainer:Trainer.store_flos": ("self",),
    "transformers.trainer_callback:TrainerState.save_to_json": ("json_path",),
    "transformers.trainer_callback:ExportableState.state": ("self",),
    "accelerate:Accelerator.unwrap_model": ("model", "keep_torch_compile"),
}

#: Attributes that a Trainer has once it is made; `_varve_refuse` relies on the last four.
ATTRIBUTES = (
    "accelerator",
    "callback_handler",
    "control",
    "hp_search_backend",
    "state",
    "is_deepspeed_enabled",
    "is_distributed_loading_by_transformers",
    "is_fsdp_enabled",
    "is_fsdp_xla_enabled",
)

_PREFIX = "checkpoint-"
#: Files of weights, which the checkpoint has in its data files.
_WEIGHTS = ("model.safetensors", _hf_model.INDEX, "pytorch_model.bin")


class VarveCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that learns when a checkpoint is durable; `on_save` comes when it is copied.

    Only trainers with VarveTrainerMixin call `on_durable`.
    """

    def on_durable(
        self,
        args: Any,
        state: Any,
        *,
        path: str,
        report: varve.torch.AsyncSaveReport,
        **kwargs: Any,
    ) -> None:
        """Is called on each rank after a step, or at the end of training, once `path` is durable.

        Ranks learn of it after different steps: a collective call has no place here.
        """


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Looks after each step whether saves have ended."""

    def __init__(self, saves: Saves) -> None:
        self._saves = saves

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saves.report_ended()


class VarveTrainerMixin:
    """Makes a Trainer keep its checkpoints with Varve; put it before the Trainer among the bases."""

    varve_saving: VarveSaving = VarveSaving()

    # The Trainer's.
    accelerator: Any
    args: Any
    callback_handler: Any
    control: Any
    hp_search_backend: Any
    lr_scheduler: Any
    model: Any
    optimizer: Any
    state: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _contract.require("varve.integrations.transformers", "transformers", TESTED, NEEDED)
        super().__init__(*args, **kwargs)
        lacking = [name for name in ATTRIBUTES if not hasattr(self, name)]
        if lacking:
            raise UnsupportedError(
                f"varve.integrations.transformers needs {', '.join(lacking)} of a Trainer; it is "
                f"tested with transformers {TESTED}"
            )
        self._varve_saves = Saves(self._varve_tell)
        self._varve_rng: tuple[str, dict[str, Any]] | None = None
        self._varve_refuse()
        self.callback_handler.add_callback(_Watch(self._varve_saves))

    # ---- what is refused ----

    def _varve_refuse(self) -> None:
        """Raises UnsupportedError for what the mixin would only half do."""
        reasons = list(self._varve_unsupported())
        if reasons:
            raise UnsupportedError(
                f"{type(self).__name__} cannot save its checkpoints with Varve: "
                + "; ".join(reasons)
            )

    def _varve_unsupported(self) -> Iterator[str]:
        trainer: Any = self
        if trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled:
            yield (
                "FSDP is not supported; use the stock Trainer inside "
                "varve.integrations.accelerate.fsdp_through_varve()"
            )
        if trainer.is_deepspeed_enabled:
            yield "DeepSpeed is not supported"
        if trainer.is_distributed_loading_by_transformers:
            yield "a model that transformers has sharded is not supported"
        if is_sagemaker_mp_enabled():
            yield "SageMaker's model parallelism is not supported"
        if getattr(self.model, "_hf_peft_config_loaded", False):
            yield "adapters of model.add_adapter are not supported; use peft.get_peft_model"
        if self.args.save_on_each_node:
            yield "save_on_each_node=True wants one checkpoint per node; ranks share one here"
        if self.args.push_to_hub and self.args.hub_strategy != "end":
            yield (
                f'push_to_hub with hub_strategy="{self.args.hub_strategy.value}" uploads a checkpoint '
                'before it is written; use hub_strategy="end"'
            )
        if self.args.device.type == "xla":
            yield "XLA devices are not supported"

    # ---- saving: the Trainer calls this on all ranks ----

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._varve_refuse()
        if self.hp_search_backend is None and trial is None:
            self.store_flos()  # type: ignore[attr-defined]
        step = self.state.global_step
        run = self._get_output_dir(trial=trial)  # type: ignore[attr-defined]
        folder = os.path.join(run, f"{_PREFIX}{step}")
        path = os.path.abspath(folder)
        if self.state.best_global_step == step:
            self.state.best_model_checkpoint = folder
        first = self.args.process_index == 0
        if self.args.enable_jit_checkpoint:
            if self.args.world_size > 1:
                torch.distributed.barrier()  # Every rank's callback has put its sentinel there.
            self._varve_saves.supersede(path)  # The sentinel may have been in its way.
        state, files = prepared(lambda: self._varve_content(path))
        self._varve_saves.begin(
            state,
            path,
            self.varve_saving,
            optimizers=[self.optimizer],
            files=files,
            overwrite=True,
        )
        if first:
            best = self.state.best_model_checkpoint
            keep = [path] if best is None else [path, os.path.abspath(best)]
            limit = self._varve_limit(folder)
            self._varve_saves.rotate_after(path, os.path.abspath(run), _PREFIX, limit, keep)

    def _varve_content(self, path: str) -> Content:
        """Returns what this rank saves as `path`; rank 0 makes way for it."""
        state, index = self._varve_state()
        if self.args.process_index != 0:
            return state, None
        files = self._varve_files(index)
        model_only = self.args.save_only_model
        _hf_folders.clear_way(
            path, [_hf_stock.SENTINEL], lambda path: _hf_stock.why_half(path, model_only)
        )
        return state, files

    def _varve_limit(self, newest: str) -> int | None:
        """Returns how many checkpoints to keep. The newest and the best always stay."""
        limit: int | None = self.args.save_total_limit
        best = self.state.best_model_checkpoint
        return 2 if limit == 1 and best is not None and best != newest else limit

    def _varve_state(self) -> tuple[dict[str, Any], bytes | None]:
        """Returns what this rank saves, and the index for `from_pretrained`; with PEFT there is none."""
        rank, world = self.args.process_index, self.args.world_size
        state: dict[str, Any] = {}
        index = None
        if not self._varve_is_peft():
            model = self._varve_model()
            entries = _hf_model.entries(model)
            owner = _hf_model.owners(model, entries, world)
            state = _hf_model.share(entries, owner, rank)
            index = _hf_model.index(entries, owner, world)
        if not self.args.save_only_model:
            state[_hf_model.OPTIMIZER] = self.optimizer
            state[_hf_model.TRAINER] = trainer = {
                "scheduler": self.lr_scheduler.state_dict(),
                "rng": varve.torch.PerRank(
                    _hf_random.capture(self.args.device, all_devices=world == 1)
                ),
            }
            scaler = getattr(self.accelerator, "scaler", None)
            if scaler is not None:
                trainer["scaler"] = scaler.state_dict()
        return state, index

    def _varve_files(self, index: bytes | None) -> dict[str, bytes]:
        """Returns the files beside the weights, as the Trainer writes them, by name."""
        self._varve_export_callbacks()
        with tempfile.TemporaryDirectory(prefix="varve-") as folder:
            # Without tensors `_save` writes everything but them. Adapters are small, and files.
            self._save(folder, state_dict=None if index is None else {})  # type: ignore[attr-defined]
            self.state.save_to_json(os.path.join(folder, _hf_stock.TRAINER_STATE))
            files = _hf_folders.files_in(folder)
        for name in _WEIGHTS:
            files.pop(name, None)
        if index is not None:
            files[_hf_model.INDEX] = index
        return files

    def _varve_export_callbacks(self) -> None:
        """Puts the states of callbacks into the trainer's: one, or a list where a class has several."""
        states: dict[str, list[Any]] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        for name, found in states.items():
            self.state.stateful_callbacks[name] = found[0] if len(found) == 1 else found

    def _varve_model(self) -> torch.nn.Module:
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(
            self.model, keep_torch_compile=False
        )
        return unwrapped

    def _varve_is_peft(self) -> bool:
        if not is_peft_available():
            return False
        from peft import PeftMixedModel, PeftModel

        return isinstance(self._varve_model(), PeftModel | PeftMixedModel)

    def _varve_tell(self, path: str, report: varve.torch.AsyncSaveReport) -> None:
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, VarveCallback):
                callback.on_durable(self.args, self.state, path=path, report=report)

    # ---- the end of training ----

    def _finalize_training(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        self._varve_saves.finish(self.varve_saving)
        self._varve_saves.close()
        best = self.state.best_model_checkpoint
        if self.args.process_index == 0 and self.args.save_total_limit == 1 and best is not None:
            run = self._get_output_dir(trial)  # type: ignore[attr-defined]
            self._varve_remove_all_but(run, best)
        return super()._finalize_training(trial, *args, **kwargs)  # type: ignore[misc]

    def _varve_remove_all_but(self, run: str, best: str) -> None:
        if not _hf_folders.is_varves(best):
            return
        for _, path in _hf_folders.numbered(run, _PREFIX):
            if _hf_folders.is_varves(path) and not os.path.samefile(path, best):
                remove_unless_held(path)

    # ---- resuming ----

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as the Trainer does; True resumes from the newest checkpoint that is whole."""
        self._varve_refuse()
        if resume_from_checkpoint is True:
            # The Trainer says what it thinks of a folder in which nothing is good.
            resume_from_checkpoint = self._varve_newest() or True
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _varve_newest(self) -> str | None:
        """Returns what rank 0 finds, on all ranks."""
        folder, saving = self.args.output_dir, self.varve_saving
        model_only = self.args.save_only_model

        def why_not_stock(path: str) -> str | None:
            return _hf_stock.why_not_stock(path, model_only)

        newest: str | None = by_rank_0(
            "choose the checkpoint to resume from",
            lambda: _hf_folders.newest_good(folder, _PREFIX, saving.verify, why_not_stock),
            saving.timeout,
        )
        return newest

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not _hf_folders.is_varves(resume_from_checkpoint) or self._varve_is_peft():
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        self._varve_load_model(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if not _hf_folders.is_varves(best) or self._varve_is_peft():
            super()._load_best_model()  # type: ignore[misc]
            return
        _log.info("load the best model from %s (score %s)", best, self.state.best_metric)
        self._varve_load_model(best)

    def _varve_load_model(self, path: str) -> None:
        model = _hf_model.entries(self._varve_model())
        saving = self.varve_saving
        load_own_or_first(model, path, timeout=saving.timeout, allow_pickle=saving.allow_pickle)
        extra = {n: v for n, v in model.items() if not isinstance(v, torch.Tensor)}
        if extra:  # What modules keep for themselves (get_extra_state) was replaced, not filled.
            self._varve_model().load_state_dict(extra, strict=False)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _hf_folders.is_varves(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        saving = self.varve_saving
        stored = varve.torch.open(checkpoint)
        if stored.format != "varve":  # The adapter of a model; an optimizer was with it.
            raise CorruptCheckpointError(
                f"resume from {checkpoint}: varve.json and the data files, which hold the optimizer, are missing",
                path=checkpoint,
            )
        names = list(stored)
        if not any(name.startswith(f"{_hf_model.TRAINER}.") for name in names):
            warnings.warn(
                f"{checkpoint} has the model alone (save_only_model=True): the optimizer and the "
                "scheduler start anew",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        trainer: dict[str, Any] = {"scheduler": {}, "rng": varve.torch.PerRank({})}
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and any(n.startswith(f"{_hf_model.TRAINER}.scaler.") for n in names):
            trainer["scaler"] = {}
        # One that has state is replaced as a whole: it may be of another shape.
        optimizer = {} if self.optimizer.state else self.optimizer
        state = {_hf_model.OPTIMIZER: optimizer, _hf_model.TRAINER: trainer}
        load_own_or_first(
            state, checkpoint, timeout=saving.timeout, allow_pickle=saving.allow_pickle
        )
        if state[_hf_model.OPTIMIZER] is not self.optimizer:
            self.optimizer.load_state_dict(state[_hf_model.OPTIMIZER])
        self.lr_scheduler.load_state_dict(trainer["scheduler"])
        if "scaler" in trainer:
            assert scaler is not None
            scaler.load_state_dict(trainer["scaler"])
        # The Trainer restores it later, when it has skipped the data that were used before.
        known = self.args.process_index < (stored.world_size or 0)
        self._varve_rng = (checkpoint, trainer["rng"].value) if known else None

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _hf_folders.is_varves(checkpoint):
            super()._load_scaler(checkpoint)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None or not _hf_folders.is_varves(checkpoint):
            super()._load_rng_state(checkpoint)  # type: ignore[misc]
            return
        if self._varve_rng is None or self._varve_rng[0] != checkpoint:
            _log.info("%s has no random state of rank %d", checkpoint, self.args.process_index)
            return
        _hf_random.restore(self._varve_rng[1], self.args.device)
        self._varve_rng = None


class VarveTrainer(VarveTrainerMixin, Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints are Varve's."""
