"""Lightning's checkpoints by Varve: a CheckpointIO, a ModelCheckpoint, and two sharded strategies.

    from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint

    trainer = lightning.Trainer(
        plugins=[VarveCheckpointIO()], callbacks=[VarveModelCheckpoint("run", save_last="link")]
    )
    trainer.fit(model, ckpt_path="last")

Tested with lightning 2.6.6 and torch 2.13, on CPU: one process, DDP, ModelParallelStrategy with FSDP2.
`VarveFSDPStrategy` has not been run: FSDP1 refuses to start without a GPU. It saves and loads by the same
code as VarveModelParallelStrategy, and tests check the names of Lightning that it needs. Run it by hand on
GPUs before you rely on it.

Replaces: what writes and reads a checkpoint, which is then a directory. `VarveCheckpointIO` stands for
TorchCheckpointIO and AsyncCheckpointIO, for whole states: Lightning calls it on rank 0 alone, and rank 0
saves without the others. The strategies stand for ModelParallelStrategy and FSDPStrategy, whose sharded
checkpoints pass the CheckpointIO by: all ranks save their shards, and load them in any other layout.

Adds: Saves in the background that are whole or absent. A checkpoint is removed, and `last.ckpt` moved,
only when the newer one is durable. `VarveModelCheckpoint` takes the newest good checkpoint of its folder
for `ckpt_path="last"`, and raises the failure of a save on all ranks. Files of Lightning's own (.ckpt)
load as before.

Cannot: `LightningModule.load_from_checkpoint`, which reads by torch.load (`varve convert X.ckpt X.pt --to
torch` makes such a file). Values of unknown types without `allow_pickle=True`. Loggers that upload
checkpoints when ModelCheckpoint has saved, for the save has only begun then (`asynchronous=False`).
The package pytorch_lightning: its classes are others than those of `lightning`.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import varve.torch
from varve._engine import is_remote, path_text
from varve.errors import InvalidArgumentError, UnavailableError
from varve.integrations._contract import Table, missing_package, require
from varve.integrations._newest import checkpoints_in, is_there, newest_good
from varve.integrations._ranks import by_rank_0
from varve.integrations._staging import Staging
from varve.torch._coordinator import ALONE

try:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.io import CheckpointIO
except ImportError as error:
    raise missing_package(__name__, "lightning", "lightning", error) from error

from varve.integrations._lightning_sharded import (
    InBackground,
    VarveFSDPStrategy,
    VarveModelParallelStrategy,
    raise_failure,
    rekey,
)

#: What Lightning must have, private names among them.
NEEDED: Table = {
    "lightning.pytorch.plugins.io:CheckpointIO.save_checkpoint": ("checkpoint", "path"),
    "lightning.pytorch.plugins.io:CheckpointIO.load_checkpoint": ("path", "weights_only"),
    "lightning.pytorch.plugins.io:CheckpointIO.remove_checkpoint": ("path",),
    "lightning.pytorch.plugins.io:CheckpointIO.teardown": (),
    "lightning.pytorch.callbacks:ModelCheckpoint._save_checkpoint": ("trainer", "filepath"),
    "lightning.pytorch.callbacks:ModelCheckpoint._remove_checkpoint": ("trainer", "filepath"),
    "lightning.pytorch.callbacks:ModelCheckpoint._link_checkpoint": (
        "trainer",
        "filepath",
        "linkpath",
    ),
    "lightning.pytorch.callbacks:ModelCheckpoint._find_last_checkpoints": ("trainer",),
    "lightning.pytorch.callbacks:ModelCheckpoint._ModelCheckpoint__resolve_ckpt_dir": ("trainer",),
    "lightning.pytorch.callbacks:ModelCheckpoint.on_train_end": ("trainer", "pl_module"),
    "lightning.pytorch.callbacks:ModelCheckpoint.file_exists": ("filepath", "trainer"),
    "lightning.pytorch.strategies:ModelParallelStrategy": ("save_distributed_checkpoint",),
    "lightning.pytorch.strategies:ModelParallelStrategy.save_checkpoint": (
        "checkpoint",
        "filepath",
    ),
    "lightning.pytorch.strategies:ModelParallelStrategy.load_checkpoint": ("weights_only",),
    "lightning.pytorch.strategies:ModelParallelStrategy.remove_checkpoint": ("filepath",),
    "lightning.pytorch.strategies:FSDPStrategy": ("state_dict_type",),
    "lightning.pytorch.strategies:FSDPStrategy.save_checkpoint": ("checkpoint", "filepath"),
    "lightning.pytorch.strategies:FSDPStrategy.load_checkpoint": ("weights_only",),
    "lightning.pytorch.strategies:FSDPStrategy.remove_checkpoint": ("filepath",),
}

require("varve.integrations.lightning", "lightning", "2.6.6", NEEDED)

__all__ = [
    "NEEDED",
    "VarveCheckpointIO",
    "VarveFSDPStrategy",
    "VarveModelCheckpoint",
    "VarveModelParallelStrategy",
]


class VarveCheckpointIO(InBackground, CheckpointIO):  # type: ignore[misc]
    """Saves and loads whole states: on rank 0, in the background.

    The failure of a save is raised by the next save or by the end of `fit`, on rank 0. With
    `VarveModelCheckpoint` all ranks raise it.

    A save after the end of `fit` (`Trainer.save_checkpoint`, the weights that a launcher of processes
    returns) is durable when the call returns. The next `fit` with `VarveModelCheckpoint` saves in the
    background again; with Lightning's ModelCheckpoint, give each Trainer a CheckpointIO of its own.

    Args:
        asynchronous: Copy the state in the call and write it in the background; else write it in the
            call.
        executor: "process" submits the copy to the agent of the node, which writes it even when the
            trainer is killed (docs/async.md).
        allow_pickle: Store values of unknown types as pickles, and open those of trusted checkpoints.
        staging: "blocking": the call copies the state. "overlapped": it returns at once, and the next step
            of each optimizer waits for the copy; this needs `VarveModelCheckpoint`, which knows them.
            None: "overlapped" if the model is on a CUDA device and every tensor of the checkpoint is a
            parameter or a state of an optimizer, else "blocking".
    """

    def __init__(
        self,
        *,
        asynchronous: bool = True,
        executor: str = "thread",
        allow_pickle: bool = False,
        staging: Staging = None,
    ) -> None:
        super().__init__(
            asynchronous=asynchronous,
            executor=executor,
            allow_pickle=allow_pickle,
            staging=staging,
        )
        self._optimizers: list[Any] = []  # While VarveModelCheckpoint saves.

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Saves a state as the directory `path`, and replaces a checkpoint there.

        Args:
            checkpoint: The state of the training, as Lightning gives it.
            path: A directory, or a name in an object store ("s3://bucket/key").
            storage_options: Not taken.

        Raises:
            varve.Error: An earlier save has failed, or this one before its state was copied.
            InvalidArgumentError: `path` is a file.
            TypeError: `storage_options` were given.
        """
        if storage_options is not None:
            raise TypeError("VarveCheckpointIO takes no storage_options")
        failure = self.saves.take_failure()
        if failure is not None:
            raise failure
        where = path_text(path)
        if not is_remote(where) and os.path.isfile(where):
            raise InvalidArgumentError(
                f"save {where}: it is a file, of torch.save perhaps, and Varve's checkpoints are "
                "directories; move it away, or save under another name",
                path=where,
            )
        if self.saves.is_asked(where):
            self.saves.settle()  # A removal of the same name comes first.
        self._write(checkpoint, where, self._optimizers, ALONE)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint of any format that Varve opens: a new state with whole tensors.

        Waits for the saves under way. Of a path that `VarveModelCheckpoint` has chosen for
        `ckpt_path="last"`, rank 0 verifies every byte first; if it is damaged, all ranks load the newest
        good checkpoint beside it.

        Args:
            path: The checkpoint.
            map_location: A device for all tensors, which are read straight to it; by default the CPU.
            weights_only: True refuses pickles, whatever `allow_pickle` says.
        """
        if map_location is not None and not isinstance(map_location, (str, int, torch.device)):
            raise InvalidArgumentError(f"map_location={map_location!r}: want a device")
        self.saves.settle()
        where = path_text(path)
        if where in self._newest_of:
            where = by_rank_0(
                "choose the checkpoint to resume from",
                lambda: newest_good(self._newest_of[where]),
            )
        allow_pickle = self.allow_pickle and not weights_only
        state = varve.torch.read(where, device=map_location, allow_pickle=allow_pickle)
        if map_location is not None:  # What plain values hold is not there yet.
            state = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(map_location), state
            )
        return rekey(dict(state))

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint when the saves under way are durable; never if the newest has failed.

        Where no save is under way the checkpoint is removed in the call.
        """
        self.saves.remove(path_text(path))

    def teardown(self) -> None:
        """Waits for the saves, removals and links under way. Later saves are made in the call.

        Raises:
            varve.Error: A save has failed, and its error has not been raised yet.
        """
        self._finish()


class VarveModelCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """Lightning's ModelCheckpoint for saves in the background by `VarveCheckpointIO` or the strategies here.

    Differs in this:

    - The failure of a save is raised on all ranks, at the next one or at the end of the training.
    - `ckpt_path="last"` is the newest good checkpoint of `dirpath`, by its global step, whatever its name.
    - A name counts as taken while its save is under way (`-v1` is appended as for a file).
    - `save_last="link"` moves the link when the checkpoint is durable.

    Takes the arguments of ModelCheckpoint. With another CheckpointIO it is ModelCheckpoint. Its state has
    the key of ModelCheckpoint: either resumes from the other's checkpoints, with the scores and the list
    of files to keep.
    """

    @property
    def state_key(self) -> str:
        """The key of its state in a checkpoint: ModelCheckpoint's. A subclass has its own, as in Lightning."""
        key = str(super().state_key)
        return key.removeprefix("Varve") if type(self) is VarveModelCheckpoint else key

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Takes the state that was stored under the name of this class, as at first."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        rekey(checkpoint)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lets the CheckpointIO save in the background, also where an earlier `fit` has ended."""
        io = _varves(trainer)
        if io is not None and stage == "fit":
            io._torn_down = False
        super().setup(trainer, pl_module, stage)

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        io = _varves(trainer)
        if io is not None:
            raise_failure(io.saves, trainer.strategy)
        if not isinstance(io, VarveCheckpointIO):
            super()._save_checkpoint(trainer, filepath)
            return
        io._optimizers = list(trainer.optimizers)
        try:
            super()._save_checkpoint(trainer, filepath)
        finally:
            io._optimizers = []

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Waits until the saves are durable, and raises the failure of one on all ranks."""
        super().on_train_end(trainer, pl_module)
        io = _varves(trainer)
        if io is not None:
            io.saves.settle()
            raise_failure(io.saves, trainer.strategy)

    def file_exists(self, filepath: Any, trainer: Any) -> bool:
        """Returns True, on all ranks, for a checkpoint that is there or is being saved."""
        io = _varves(trainer)
        mine = io is not None and trainer.is_global_zero and io.saves.is_asked(path_text(filepath))
        being_saved = trainer.strategy.reduce_boolean_decision(mine, all=False)
        if being_saved or io is None or not is_remote(path_text(filepath)):
            return bool(being_saved or super().file_exists(filepath, trainer))
        # Lightning's own look goes by lists of the folder that it has kept from before the save.
        there = trainer.is_global_zero and is_there(path_text(filepath))
        return bool(trainer.strategy.reduce_boolean_decision(there, all=False))

    @staticmethod
    def _link_checkpoint(trainer: Any, filepath: str, linkpath: str) -> None:
        io = _varves(trainer)
        if io is None:
            ModelCheckpoint._link_checkpoint(trainer, filepath, linkpath)
        elif trainer.is_global_zero and os.path.abspath(filepath) != os.path.abspath(linkpath):
            io.saves.link(path_text(filepath), path_text(linkpath))

    def _find_last_checkpoints(self, trainer: Any) -> set[str]:
        io = _varves(trainer)
        if io is None:
            return set(super()._find_last_checkpoints(trainer))
        # The parent's resolves the folder, which is only fixed later, by `setup`.
        folder = self._ModelCheckpoint__resolve_ckpt_dir(trainer)
        found = checkpoints_in(folder)
        if not found:
            return set()
        newest = _with_a_time(self._fs, found[0]) if is_remote(found[0]) else found[0]
        io._newest_of[newest] = path_text(folder)
        return {newest}


def _with_a_time(fs: Any, checkpoint: str) -> str:
    """Returns the URL of an object of a checkpoint: Lightning asks when it changed, and folders have no time there."""
    fs.invalidate_cache()
    objects = fs.find(checkpoint)
    if not objects:
        raise UnavailableError(
            f"{checkpoint} is there for Varve, and fsspec, by which Lightning looks, finds nothing: do "
            "both use the same endpoint and keys? Give the checkpoint's name as ckpt_path to go on",
            path=checkpoint,
        )
    return str(fs.unstrip_protocol(min(objects)))


def _varves(trainer: Any) -> Any:
    """Returns the strategy or CheckpointIO of this module that a trainer saves with, or None."""
    strategy = trainer.strategy
    if isinstance(strategy, (VarveModelParallelStrategy, VarveFSDPStrategy)):
        return strategy
    io = strategy.checkpoint_io
    return io if isinstance(io, VarveCheckpointIO) else None
