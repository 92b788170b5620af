"""Lightning's sharded strategies with Varve's checkpoints: every rank saves and loads its shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import varve.torch
from varve._engine import path_text
from varve.errors import UnavailableError
from varve.integrations._newest import newest_good
from varve.integrations._ranks import by_rank_0
from varve.integrations._saves import Saves


class _Sharded:
    """What both strategies share: saves of all ranks, and removals by rank 0 that wait for them.

    A checkpoint holds the model's tensors under `model_key`, the optimizers' as `optimizer_0`, ... and
    all else that Lightning keeps as `meta`.
    """

    model_key: str

    asynchronous: bool
    executor: str
    allow_pickle: bool

    def _begin(self, asynchronous: bool, executor: str, allow_pickle: bool) -> None:
        self.asynchronous = asynchronous
        self.executor = executor
        self.allow_pickle = allow_pickle
        self.saves = Saves()
        self._stager: varve.torch.Stager | None = None
        self._newest_of: dict[str, str] = {}

    def _save(self: Any, checkpoint: dict[str, Any], path: str) -> None:
        """Saves on all ranks. Raises, on all ranks, the failure of an earlier save."""
        self._raise_failure()
        state = {self.model_key: checkpoint.pop("state_dict")}
        for i, moments in enumerate(checkpoint.pop("optimizer_states", [])):
            state[f"optimizer_{i}"] = moments
        state["meta"] = checkpoint
        asked = self.broadcast(self.saves.is_asked(path))
        if asked:
            self.saves.settle()
            self.barrier()
        if not self.asynchronous:
            varve.torch.save(state, path, overwrite=True, allow_pickle=self.allow_pickle)
            return
        if self._stager is None:
            self._stager = varve.torch.Stager(executor=self.executor)
        save = varve.torch.async_save(
            state, path, stager=self._stager, overwrite=True, allow_pickle=self.allow_pickle
        )
        if save.staging_completion.exception() is not None:
            save.result()
        self.saves.add(path, save)

    def _raise_failure(self: Any) -> None:
        failure = self.saves.take_failure() if self.global_rank == 0 else None
        text = self.broadcast(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        if text is not None:
            self.saves.take_failure()
            raise UnavailableError(f"an earlier save has failed: {text}")

    def _good(self, path: str) -> str:
        """Returns the checkpoint to load, the same on all ranks, when the saves under way have ended."""
        self.saves.settle()
        folder = self._newest_of.get(path)
        if by_rank_0("resume", lambda: folder is None):
            return path
        chosen = by_rank_0("choose the checkpoint to resume from", lambda: newest_good(str(folder)))
        return str(chosen)

    def _load(self: Any, path: str, weights_only: bool | None) -> dict[str, Any]:
        """Fills model and optimizers from a checkpoint of `_save`; returns its `meta`."""
        module = self.model
        strict = self.lightning_module.strict_loading
        weights = {self.model_key: get_model_state_dict(module)}
        varve.torch.load(weights, path, strict=strict)
        options = StateDictOptions(strict=strict)
        set_model_state_dict(module, weights[self.model_key], options=options)
        fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        for i, optimizer in enumerate(self.optimizers if fitting else []):
            key = f"optimizer_{i}"
            moments = {key: get_optimizer_state_dict(module, optimizer)}
            varve.torch.load(moments, path)
            set_optimizer_state_dict(module, optimizer, optim_state_dict=moments[key])
        return self._read_meta(path, weights_only)  # type: ignore[no-any-return]

    def _read_meta(self, path: str, weights_only: bool | None) -> dict[str, Any]:
        allow_pickle = self.allow_pickle and not weights_only
        return dict(varve.torch.read(path, "meta", allow_pickle=allow_pickle)["meta"])

    def remove_checkpoint(self: Any, filepath: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, on rank 0, when the saves under way are durable."""
        if self.is_global_zero:
            self.saves.remove(path_text(filepath))

    def _end(self) -> None:
        """Waits for the saves under way. Raises the failure of one, if nobody has learned of it."""
        self.saves.close()
        stager, self._stager = self._stager, None
        if stager is not None:
            stager.close()
        failure = self.saves.take_failure()
        if failure is not None:
            raise failure


def _is_varves(path: str) -> bool:
    """Returns True for a checkpoint that a strategy of this module has saved."""
    return os.path.isdir(path) and not (Path(path) / "meta.pt").is_file()


class VarveModelParallelStrategy(_Sharded, ModelParallelStrategy):  # type: ignore[misc]
    """ModelParallelStrategy (FSDP2, tensor parallelism) whose sharded checkpoints are Varve's.

    Loads them in any layout, and Lightning's own as before. With `save_distributed_checkpoint=False` it
    is ModelParallelStrategy.

    Args:
        *args: As ModelParallelStrategy takes them.
        asynchronous: Copy the state in the call and write it in the background.
        executor: As for `VarveCheckpointIO`.
        allow_pickle: As for `VarveCheckpointIO`.
        **kwargs: As ModelParallelStrategy takes them.
    """

    model_key = "state_dict"

    def __init__(
        self,
        *args: Any,
        asynchronous: bool = True,
        executor: str = "thread",
        allow_pickle: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._begin(asynchronous, executor, allow_pickle)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Saves on all ranks; see the class."""
        if storage_options is not None or not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        self._save(checkpoint, path_text(self.broadcast(filepath)))

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Fills model and optimizers on all ranks; returns the rest of the checkpoint."""
        path = self._good(path_text(self.broadcast(checkpoint_path)))
        if not _is_varves(path):
            return dict(super().load_checkpoint(path, weights_only))
        return self._load(path, weights_only)

    def teardown(self) -> None:
        """Waits for the saves under way, and raises the failure of one."""
        try:
            self._end()
        finally:
            super().teardown()


class VarveFSDPStrategy(_Sharded, FSDPStrategy):  # type: ignore[misc]
    """FSDPStrategy (FSDP1) whose sharded checkpoints are Varve's: with `state_dict_type="sharded"`.

    Loads them in any layout, and Lightning's own as before. With `state_dict_type="full"` it is
    FSDPStrategy.

    Args:
        *args: As FSDPStrategy takes them.
        asynchronous: As for `VarveModelParallelStrategy`.
        executor: As for `VarveCheckpointIO`.
        allow_pickle: As for `VarveCheckpointIO`.
        **kwargs: As FSDPStrategy takes them.
    """

    model_key = "model"

    def __init__(
        self,
        *args: Any,
        asynchronous: bool = True,
        executor: str = "thread",
        allow_pickle: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._begin(asynchronous, executor, allow_pickle)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Saves on all ranks; see the class."""
        if storage_options is not None or self._state_dict_type != "sharded":
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        self._save(checkpoint, path_text(self.broadcast(filepath)))

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Fills model and optimizers on all ranks; returns the rest of the checkpoint."""
        path = self._good(path_text(self.broadcast(checkpoint_path)))
        if not _is_varves(path):
            return dict(super().load_checkpoint(path, weights_only))
        return self._load(path, weights_only)

    def teardown(self) -> None:
        """Waits for the saves under way, and raises the failure of one."""
        try:
            self._end()
        finally:
            super().teardown()
