"""Trains with Lightning and keeps its checkpoints with Varve.

    python examples/lightning_checkpoint_io.py OUT [EPOCHS [DEVICES]]     # run it again to go on

`VarveIO` is a CheckpointIO. Lightning calls one on rank 0 only, where a collective save would wait for the other ranks
until its time limit. `AllRanksDDP` lets all ranks save, so each writes its share. With one device the CheckpointIO is
all it takes.

Run by hand with lightning 2.6.6 and torch 2.13, on one CPU process and on two (DDP over gloo). Varve's tests do not run
it: Lightning is not installed there. Lightning's FSDP and ModelParallel strategies write sharded checkpoints past
CheckpointIO.
"""

import os
import shutil
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy

import varve.torch


class VarveIO(CheckpointIO):
    """Saves in the background, on all ranks that call it."""

    def __init__(self) -> None:
        self.saving: varve.torch.SaveHandle | None = None

    def save_checkpoint(self, checkpoint, path, storage_options=None) -> None:
        self.finish()
        # Lightning writes last.ckpt anew each time.
        self.saving = varve.torch.async_save(checkpoint, path, overwrite=True)

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        self.finish()
        return varve.torch.read(path)  # on every rank, tensors whole and on the CPU

    def remove_checkpoint(self, path) -> None:
        self.finish()
        shutil.rmtree(path)

    def teardown(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Waits until the save under way is durable, or raises what went wrong with it."""
        if self.saving is not None:
            saving, self.saving = self.saving, None
            saving.result()


class AllRanksDDP(DDPStrategy):
    """DDP in which every rank calls the CheckpointIO."""

    def save_checkpoint(self, checkpoint, filepath, storage_options=None) -> None:
        self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)


class Net(lightning.LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def main() -> None:
    """Trains, from OUT/last.ckpt if there is one."""
    out, epochs, devices = [*sys.argv[1:], *("2", "1")[len(sys.argv) - 2 :]]
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    last = os.path.join(out, "last.ckpt")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(devices),
        strategy=AllRanksDDP() if int(devices) > 1 else "auto",
        max_epochs=int(epochs),
        plugins=[VarveIO()],
        callbacks=[ModelCheckpoint(out, monitor="step", mode="max", save_top_k=2, save_last=True)],
        logger=False,
    )
    resume = last if os.path.isdir(last) else None
    trainer.fit(Net(), torch.utils.data.DataLoader(data, 4), ckpt_path=resume)


if __name__ == "__main__":
    main()
