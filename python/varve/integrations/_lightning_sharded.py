"""Lightning's sharded strategies with Varve's checkpoints: every rank saves and loads its shards.

And what they share with the CheckpointIO for whole states.
"""

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
from varve._engine import is_remote, path_text
from varve.errors import CorruptCheckpointError
from varve.integrations._newest import none_is_good, warn_of, whole_in
from varve.integrations._ranks import by_rank_0, load_own_or_first
from varve.integrations._saves import LazyStager, Saves, failed_in_the_call, is_awaited
from varve.integrations._staging import Staging, checked, choose
from varve.torch._failures import raised_again


def rekey(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Gives the state of VarveModelCheckpoint that was stored under the name of that class the key that it has today."""
    callbacks: dict[Any, Any] = checkpoint.get("callbacks") or {}
    for key in list(callbacks):
        if isinstance(key, str) and key.startswith("VarveModelCheckpoint{"):
            callbacks[key.removeprefix("Varve")] = callbacks.pop(key)
    return checkpoint


class InBackground:
    """The code that the CheckpointIO and the strategies share: their options, saves, and the wait for these."""

    def __init__(
        self,
        *args: Any,
        asynchronous: bool = True,
        executor: str = "thread",
        allow_pickle: bool = False,
        staging: Staging = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.staging = checked(staging)
        self.asynchronous = asynchronous
        self.executor = executor
        self.allow_pickle = allow_pickle
        self.saves = Saves()
        self._stager = LazyStager()
        self._torn_down = False
        self._newest_of: dict[str, str] = {}

    def _write(self, state: dict[str, Any], path: str, optimizers: Any, group: Any = None) -> None:
        """Saves by the ranks of a group: in the background, while training goes on."""
        options: dict[str, Any] = {"overwrite": True, "allow_pickle": self.allow_pickle}
        if not self.asynchronous or self._torn_down:
            varve.torch.save(state, path, process_group=group, **options)
            return
        state, staging = choose(self.staging, state, optimizers)
        stager = self._stager.get(group, executor=self.executor)
        save = varve.torch.async_save(state, path, stager=stager, **options, **staging)
        if failed_in_the_call(save) or is_awaited(path):
            save.result()
        self.saves.add(path, save)

    def _finish(self) -> None:
        """Waits for what is under way; later saves are made in the call. Raises the failure of a save."""
        self._torn_down = True
        self.saves.settle()
        self._stager.close()
        failure = self.saves.take_failure()
        if failure is not None:
            raise failure


def raise_failure(saves: Saves, strategy: Any) -> None:
    """Raises, on all ranks, the failure of an earlier save that rank 0 knows of."""
    failure = saves.take_failure() if strategy.is_global_zero else None
    # An error of the same class for the other ranks, as a script on all ranks may catch it.
    told = failure and raised_again(f"an earlier save has failed on rank 0: {failure}", failure)
    told = strategy.broadcast(told)
    if failure is not None:
        raise failure
    if told is not None:
        saves.take_failure()  # The same one, where all ranks save.
        raise told


class _Sharded(InBackground):
    """The code that both strategies share: saves of all ranks, and removals by rank 0 that wait for them.

    A checkpoint holds the model's tensors under `model_key`, the optimizers' as `optimizer_0`, ... and
    all else that Lightning keeps as `meta`.
    """

    model_key: str

    def _is_sharded(self) -> bool:
        """Returns True where the strategy's options ask for sharded checkpoints."""
        raise NotImplementedError

    def setup(self: Any, trainer: Any) -> None:
        """Lets saves be made in the background, also where an earlier training has ended."""
        self._torn_down = False
        super().setup(trainer)  # type: ignore[misc]

    def save_checkpoint(
        self: Any, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Saves on all ranks; see the class."""
        if storage_options is not None or not self._is_sharded():
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
            return
        self._save(checkpoint, path_text(self.broadcast(filepath)))

    def _save(self: Any, checkpoint: dict[str, Any], path: str) -> None:
        """Saves on all ranks. Raises, on all ranks, the failure of an earlier save."""
        raise_failure(self.saves, self)
        state = {self.model_key: checkpoint.pop("state_dict")}
        for i, moments in enumerate(checkpoint.pop("optimizer_states", [])):
            state[f"optimizer_{i}"] = moments
        state["meta"] = checkpoint
        asked = self.broadcast(self.saves.is_asked(path))
        if asked:
            self.saves.settle()
            self.barrier()
        self._write(state, path, self.optimizers)

    def load_checkpoint(
        self: Any, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Fills model and optimizers on all ranks, from a checkpoint of any layout; returns the rest.

        Of a path that `VarveModelCheckpoint` has chosen for `ckpt_path="last"`, all ranks load the newest
        checkpoint of the folder that proves to be good.

        Raises:
            CorruptCheckpointError: The checkpoint is damaged, or all of the folder are.
        """
        path = path_text(self.broadcast(checkpoint_path))
        self.saves.settle()
        folder, paths = by_rank_0(
            "choose the checkpoint to resume from", lambda: self._candidates(path)
        )
        for candidate in paths:
            try:
                return rekey(dict(self._load(candidate, weights_only)))
            except CorruptCheckpointError as error:  # On all ranks.
                if folder is None:
                    raise
                if self.global_rank == 0:
                    warn_of(candidate, str(error))
        raise none_is_good(folder)

    def _candidates(self, path: str) -> tuple[str | None, list[str]]:
        """Returns the folder to choose from, None where `path` was asked for; and what to try."""
        folder = self._newest_of.get(path)
        return (None, [path]) if folder is None else (folder, whole_in(folder))

    def _load(self: Any, path: str, weights_only: bool | None) -> Any:
        local = not is_remote(path)
        if local and ((Path(path) / "meta.pt").is_file() or os.path.isfile(path)):  # Its own.
            return super().load_checkpoint(path, weights_only)  # type: ignore[misc]
        module = self.model
        strict = self.lightning_module.strict_loading
        # What is empty gets what was saved.
        state: dict[str, Any] = {self.model_key: get_model_state_dict(module), "meta": {}}
        allow_pickle = self.allow_pickle and not weights_only
        load_own_or_first(state, path, strict=strict, allow_pickle=allow_pickle)
        options = StateDictOptions(strict=strict)
        set_model_state_dict(module, state[self.model_key], options=options)
        fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        for i, optimizer in enumerate(self.optimizers if fitting else []):
            key = f"optimizer_{i}"
            moments = {key: get_optimizer_state_dict(module, optimizer)}
            load_own_or_first(moments, path)
            set_optimizer_state_dict(module, optimizer, optim_state_dict=moments[key])
        return state["meta"]

    def remove_checkpoint(self: Any, filepath: str | os.PathLike[str]) -> None:
        """Removes a checkpoint, on rank 0, when the saves under way are durable."""
        if self.is_global_zero:
            self.saves.remove(path_text(filepath))

    def teardown(self: Any) -> None:
        """Waits for the saves under way. Raises the failure of one, if it has not been raised.

        Later saves are made in the call, until the strategy is set up again.
        """
        try:
            self._finish()
        finally:
            super().teardown()  # type: ignore[misc]


class VarveModelParallelStrategy(_Sharded, ModelParallelStrategy):  # type: ignore[misc]
    """ModelParallelStrategy (FSDP2, tensor parallelism) whose sharded checkpoints are Varve's.

    Loads them in any layout, and Lightning's own as before. With `save_distributed_checkpoint=False` it
    is ModelParallelStrategy.

    Args:
        *args: As ModelParallelStrategy takes them.
        asynchronous: Copy the state in the call and write it in the background.
        executor: As for `VarveCheckpointIO`.
        allow_pickle: As for `VarveCheckpointIO`.
        staging: As for `VarveCheckpointIO`; the strategy knows the optimizers.
        **kwargs: As ModelParallelStrategy takes them.
    """

    model_key = "state_dict"

    def _is_sharded(self) -> bool:
        return bool(self._save_distributed_checkpoint)


class VarveFSDPStrategy(_Sharded, FSDPStrategy):  # type: ignore[misc]
    """FSDPStrategy (FSDP1) whose sharded checkpoints are Varve's: with `state_dict_type="sharded"`.

    Loads them in any layout, and Lightning's own as before. With `state_dict_type="full"` it is
    FSDPStrategy.

    Args:
        *args: As FSDPStrategy takes them.
        asynchronous: As for `VarveModelParallelStrategy`.
        executor: As for `VarveCheckpointIO`.
        allow_pickle: As for `VarveCheckpointIO`.
        staging: As for `VarveCheckpointIO`; the strategy knows the optimizers.
        **kwargs: As FSDPStrategy takes them.
    """

    model_key = "model"

    def _is_sharded(self) -> bool:
        return bool(self._state_dict_type == "sharded")
