"""Trains with Lightning and keeps its checkpoints with Varve.

    python examples/lightning_checkpoint_io.py OUT [EPOCHS [DEVICES]]     # run it again to go on

Two arguments of the Trainer change: the plugin and the callback. `VarveCheckpointIO` saves in the background, on rank
0, as Lightning calls it. `VarveModelCheckpoint` resumes from the newest good checkpoint of its folder. Models sharded
with FSDP2 take `strategy=VarveModelParallelStrategy()` instead of the plugin. It prints the loss of each epoch.
"""

import sys

import lightning
import torch

from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint


class Net(lightning.LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss']:.8f}")


def main() -> None:
    """Trains, from the newest good checkpoint in OUT if there is one."""
    out, epochs, devices = [*sys.argv[1:], *("2", "1")[len(sys.argv) - 2 :]]
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(devices),
        strategy="ddp" if int(devices) > 1 else "auto",
        max_epochs=int(epochs),
        plugins=[VarveCheckpointIO()],
        callbacks=[
            VarveModelCheckpoint(out, monitor="step", mode="max", save_top_k=2, save_last="link")
        ],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(data, 4), ckpt_path="last")


if __name__ == "__main__":
    main()
