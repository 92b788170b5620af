"""What processes run in test_lightning.py: a small net, trained by a real Trainer."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from kills import kill_me_while_saving

warnings.filterwarnings("ignore", module="lightning")
warnings.filterwarnings("ignore", ".*isinstance\\(treespec, LeafSpec\\).*")


def make_net(ballast: int) -> Any:
    """A small net, with MiB of buffers that take a while to write."""
    import lightning

    class Net(lightning.LightningModule):
        """The net."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
            )
            self.losses: list[float] = []
            if ballast:
                self.register_buffer("ballast", torch.arange(ballast << 18, dtype=torch.float32))

        def configure_model(self) -> None:
            if self.device_mesh is not None:
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.net(batch[0]).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    return Net()


def _strategy(kind: str, size: int, stock: bool) -> Any:
    from lightning.pytorch.strategies import ModelParallelStrategy

    from varve.integrations.lightning import VarveModelParallelStrategy

    if kind == "model_parallel":
        made = ModelParallelStrategy if stock else VarveModelParallelStrategy
        return made(data_parallel_size=size, tensor_parallel_size=1)
    return kind


def make_trainer(
    folder: str,
    epochs: int,
    *,
    strategy: str = "auto",
    ranks: int = 1,
    io: Any = None,
    stock: bool = False,
    callback: Any = None,
    **options: Any,
) -> Any:
    """A Trainer that keeps the two newest checkpoints of the ends of epochs."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint

    plugins = [] if stock or strategy == "model_parallel" else [io or VarveCheckpointIO()]
    defaults = {"filename": "{epoch}", "monitor": "step", "mode": "max", "save_top_k": 2}
    kind = callback or (ModelCheckpoint if stock else VarveModelCheckpoint)
    return lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=_strategy(strategy, ranks, stock),
        max_epochs=epochs,
        plugins=plugins,
        callbacks=[kind(folder, **{**defaults, **options})],
        default_root_dir=folder,
        logger=False,
        use_distributed_sampler=False,  # All ranks see the same: losses do not depend on how many.
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit(
    folder: str, epochs: int, ballast: int = 0, ckpt_path: Any = "last", **options: Any
) -> list[float]:
    """Trains up to a number of epochs; returns the losses of the steps that were taken."""
    trainer = make_trainer(folder, epochs, **options)
    net = make_net(ballast)
    data = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), 4)
    trainer.fit(net, loader, ckpt_path=ckpt_path)
    return net.losses


def whole_in(folder: Any) -> list[str]:
    """The names of the whole checkpoints in a folder."""
    import varve

    return sorted(entry.name for entry in varve.list_checkpoints(folder) if entry.state == "whole")


def _as_of_torchrun(rank: int, size: int) -> None:
    """Tells Lightning that its processes are there."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="test",
    )
    assert dist.is_initialized()


def fit_on_ranks(
    rank: int, size: int, folder: str, epochs: int, options: dict[str, Any]
) -> list[float]:
    """Does as `fit`, on all ranks; with `installed`, torch's own functions are Varve's."""
    import varve.torch.dcp

    _as_of_torchrun(rank, size)
    options = dict(options)
    if options.pop("installed", False):
        varve.torch.dcp.install()
    return fit(folder, epochs, ranks=size, **options)


def fit_and_be_killed(
    rank: int, size: int, folder: str, epochs: int, saving: str, options: dict[str, Any]
) -> None:
    """Trains until the save of a checkpoint is in the middle of its writing; kills this rank then."""
    kill_me_while_saving(saving)
    fit_on_ranks(rank, size, folder, epochs, options)
    raise AssertionError(f"{saving} was never seen in the middle of a save")


def failure_of_a_save(
    rank: int, size: int, folder: str, epochs: int, options: dict[str, Any]
) -> str:
    """Trains where a save cannot succeed; returns what this rank raises."""
    try:
        fit_on_ranks(rank, size, folder, epochs, options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
