"""Trains for a few steps under one framework, with its own checkpoints or Varve's; prints what saves cost.

    python -m bench.framework_worker FRAMEWORK TOOL DIRECTORY BYTES

Steps of the training are sleeps: what is left of a save in the background has time to be written, and both arms
have the same. Prints {"stalls": [...], "total": ..., "bytes": ...}; the first save, which meets cold buffers, is
left out of `stalls`. A stock save is synced inside its time, for Varve's is durable in the end too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.files import bytes_under, fsync_tree

SAVES = 4
STEP_SECONDS = 1.0

#: Columns of the one big weight; with AdamW's moments the state is three times as large.
COLUMNS = 1024


class Stalls:
    """Times of calls that save."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def timed(
        self, call: Callable[..., Any], written: Callable[[], Path] | None
    ) -> Callable[..., Any]:
        """Returns the call with its time noted; what it has written is synced, if `written` says where."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **named)
            if written is not None:
                fsync_tree(written())
            self.seconds.append(time.perf_counter() - start)
            return result

        return wrapped


def newest(directory: Path) -> Path:
    return max(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def net(size: int) -> torch.nn.Module:
    return torch.nn.Linear(COLUMNS, max(1, size // 3 // 4 // COLUMNS), bias=False)


def ready(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns an optimizer that has its moments, as in the middle of a training."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def accelerate(tool: str, directory: Path, size: int, stalls: Stalls) -> None:
    from accelerate import Accelerator

    from varve.integrations.accelerate import VarveCheckpoints

    accelerator = Accelerator(cpu=True)
    model = net(size)
    accelerator.prepare(model, ready(model))
    checkpoints = VarveCheckpoints(accelerator) if tool == "varve" else None
    save: Callable[[str], Any] = checkpoints.save_state if checkpoints else accelerator.save_state
    save = stalls.timed(save, None if checkpoints else lambda: newest(directory))
    for step in range(1, SAVES + 1):
        time.sleep(STEP_SECONDS)
        save(str(directory / f"step-{step}"))
    if checkpoints:
        checkpoints.close()


def transformers(tool: str, directory: Path, size: int, stalls: Stalls) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from varve.integrations.transformers import VarveTrainer

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return SAVES

        def __getitem__(self, index: int) -> Any:
            time.sleep(STEP_SECONDS)
            return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.zeros(8).long()}

    config = GPT2Config(
        vocab_size=max(64, size // 3 // 4 // 256), n_embd=256, n_layer=1, n_head=1, n_positions=8
    )
    arguments = TrainingArguments(
        str(directory), max_steps=SAVES, save_steps=1, save_total_limit=SAVES, use_cpu=True,
        per_device_train_batch_size=1, report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    kind = VarveTrainer if tool == "varve" else Trainer
    trainer = kind(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Data())
    written = None if tool == "varve" else lambda: newest(directory)
    trainer._save_checkpoint = stalls.timed(trainer._save_checkpoint, written)
    trainer.train()


def lightning(tool: str, directory: Path, size: int, stalls: Stalls) -> None:
    import lightning as framework
    from lightning.pytorch.callbacks import ModelCheckpoint

    from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint

    class Net(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(size)

        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(STEP_SECONDS)
            return self.net.weight[0].sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-6)

    varves = tool == "varve"
    callback = (VarveModelCheckpoint if varves else ModelCheckpoint)(
        directory, every_n_train_steps=1, save_top_k=-1
    )
    trainer = framework.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, callbacks=[callback],
        plugins=[VarveCheckpointIO()] if varves else [], enable_progress_bar=False,
        enable_model_summary=False, barebones=False,
    )  # fmt: skip
    written = None if varves else lambda: newest(directory)
    trainer.save_checkpoint = stalls.timed(trainer.save_checkpoint, written)
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.zeros(SAVES, 1)))


def torchtitan(tool: str, directory: Path, size: int, stalls: Stalls) -> None:
    import torch.distributed as dist
    from torchtitan.components.checkpointer.dcp import CheckpointManager
    from torchtitan.components.optimizer import (
        LRSchedulersContainer,
        OptimizersContainer,
        ParamGroupConfig,
    )

    from varve.integrations.torchtitan import VarveCheckpointManager

    store = directory / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    model = net(size)
    adam = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-6})
    optimizers = OptimizersContainer.Config(param_groups=[adam], implementation="foreach").build(
        model_parts=[model]
    )
    schedulers = LRSchedulersContainer.Config(warmup_steps=1).build(
        optimizers=optimizers, training_steps=10
    )
    kind = VarveCheckpointManager if tool == "varve" else CheckpointManager
    config = kind.Config(
        enable=True, interval=1, async_mode="async", last_save_model_only=False, keep_latest_k=0
    )
    manager = config.build(
        dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers,
        states={}, sd_adapter=None, base_folder=str(directory),
    )  # fmt: skip
    save = stalls.timed(manager.save, None)
    for step in range(1, SAVES + 1):
        time.sleep(STEP_SECONDS)
        save(step, last_step=False)
    if tool == "stock":
        manager.maybe_wait_for_saving()
        fsync_tree(directory)
    manager.close()
    store.unlink(missing_ok=True)
    dist.destroy_process_group()


FRAMEWORKS = {
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
    "torchtitan": torchtitan,
}


def main() -> None:
    framework, tool, directory, size = sys.argv[1:]
    stalls = Stalls()
    path = Path(directory)
    path.mkdir(parents=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start = time.perf_counter()
    FRAMEWORKS[framework](tool, path, int(size), stalls)
    total = time.perf_counter() - start
    answer = {"stalls": stalls.seconds[1:], "total": total, "bytes": bytes_under(path)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
