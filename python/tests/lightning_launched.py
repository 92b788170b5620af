"""A script that trains as a notebook or a program with one of Lightning's launchers does, run by test_lightning_launchers.py.

Usage: lightning_launched.py FOLDER STRATEGY... One `fit` for each strategy, one epoch more each time, all
with one CheckpointIO. Prints what the main process has after the last one, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from typing import Any

import lightning
import torch

from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint

warnings.filterwarnings("ignore")


class Net(lightning.LightningModule):
    """A net that can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Returns the loss."""
        return torch.as_tensor(self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(folder: str, strategy: str, epochs: int, io: Any) -> dict[str, Any]:
    """Trains up to a number of epochs; returns what the main process has then."""
    checkpoints = VarveModelCheckpoint(folder, filename="{epoch}", save_last="link")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1 if strategy == "auto" else 2,
        strategy=strategy,
        max_epochs=epochs,
        plugins=[io],
        callbacks=[checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net()
    data = torch.utils.data.TensorDataset(torch.randn(16, 8))
    trainer.fit(net, torch.utils.data.DataLoader(data, 4), ckpt_path="last")
    return {
        "weights": {name: tensor.tolist() for name, tensor in net.state_dict().items()},
        "best": checkpoints.best_model_path,
        "threads": [thread.name for thread in threading.enumerate()],
    }


def main(folder: str, *strategies: str) -> None:
    """Trains with each strategy in turn."""
    io = VarveCheckpointIO()
    for epochs, strategy in enumerate(strategies, 1):
        found = fit(folder, strategy, epochs, io)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
