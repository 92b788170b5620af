"""Trains with torchtitan's parts and keeps the checkpoints with Varve.

    torchrun --nproc-per-node 2 examples/torchtitan_dcp.py OUT [STEPS]     # run it again to go on, on any number of ranks

OUT is a directory, or a name in an object store as s3://bucket/run (docs/storage.md).

In a config of torchtitan's Trainer one line changes: `checkpoint=VarveCheckpointManager.Config(...)`. The Trainer needs
a GPU. So this file has a training loop of its own around the manager, with FSDP2 on CPU ranks. It prints the loss of
each step.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)

from varve.integrations.torchtitan import VarveCheckpointManager


class Progress:
    """The step that training has reached, as torchtitan's Trainer keeps it."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict:
        return {"step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]


def main() -> None:
    """Trains a small net, from the newest good step if there is one."""
    out = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64)
    )
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    adam = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-2})
    optimizers = OptimizersContainer.Config(param_groups=[adam], implementation="foreach").build(
        model_parts=[model]
    )
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=100
    )
    progress = Progress()
    config = VarveCheckpointManager.Config(
        enable=True,
        interval=5,
        keep_latest_k=2,
        async_mode="async_with_pinned_mem",
        last_save_model_only=False,
    )
    checkpointer = config.build(
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=out,
    )
    checkpointer.load()
    while progress.step < steps:
        progress.step += 1
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(progress.step))
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
        optimizers.zero_grad()
        loss.backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        if dist.get_rank() == 0:
            print(f"step {progress.step}: loss {loss.item():.6f}", flush=True)
        checkpointer.save(progress.step, last_step=progress.step == steps)
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
