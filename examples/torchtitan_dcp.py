"""Lets torchtitan's CheckpointManager save and load with Varve.

    torchrun --nproc-per-node 2 examples/torchtitan_dcp.py OUT [STEPS]     # run it again to go on, on any number of ranks

One assignment does it, `manager.dcp = varve.torch.dcp`, before the first save or load. In a script that ends with
torchtitan's own `main()` it stands before that call. The checkpoints are DCP checkpoints as before, so torchtitan
opens them without Varve too. `async_mode` may be "disabled" or "async"; saves to Hugging Face's format stay torch's.

The rest of this file is a training loop around a real CheckpointManager, with FSDP2, since torchtitan's Trainer needs a
GPU. Run by hand with torchtitan 0.3.0 and torch 2.13, saved by two CPU ranks (gloo) and resumed by one. Varve's tests
do not run it: torchtitan is not installed there.
"""

import sys

import torch
import torch.distributed as dist
import torchtitan.components.checkpointer.dcp as manager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)

import varve.torch.dcp

manager.dcp = varve.torch.dcp


class Progress:
    """The step that training has reached, as torchtitan's Trainer keeps it."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict:
        return {"step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]


def main() -> None:
    """Trains a small net, from the newest checkpoint if there is one."""
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
        optimizers=optimizers, training_steps=steps
    )
    progress = Progress()
    checkpointer = manager.CheckpointManager.Config(
        enable=True, interval=5, async_mode="async", last_save_model_only=False
    ).build(
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
        optimizers.step()
        schedulers.step()
        if dist.get_rank() == 0:
            print(f"step {progress.step}: loss {loss.item():.6f}")
        checkpointer.save(progress.step, last_step=progress.step == steps)
    checkpointer.maybe_wait_for_saving()
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
