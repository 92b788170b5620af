"""One rank of a training job: FSDP2 on gloo, with checkpoints by `varve.torch`.

Run by `job.py`, or by hand, for instance on two ranks:

    python -m torch.distributed.run --nproc-per-node 2 train.py --run demo-out/mine --until 20

`Trainer.state`, `Trainer.resume` and a manager are all there is to checkpointing it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from text import Corpus, Loader, make_text
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

import varve.torch

MICRO_BATCHES = 4  # In a global batch, whatever the world size; which must divide it.
ROWS = 4  # Sequences in a micro-batch.
WARM_UP = 8
LAST_STEP = 50  # Of the schedule; a job may stop earlier.


def learning_rate(step: int) -> float:
    """Return the factor of the learning rate at `step`: linear warm-up, then a half cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (LAST_STEP - WARM_UP))


class Trainer:
    """Everything a job is made of, and so everything a checkpoint has to hold."""

    def __init__(self, seed: int) -> None:
        """Make model, optimiser, schedule and loader; `seed` sets weights and dropout."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.world,))
        corpus = Corpus(make_text())
        config = GPTConfig(vocabulary=len(corpus.characters))
        self.loader = Loader(corpus, MICRO_BATCHES, ROWS, config.context, seed=11)
        torch.manual_seed(seed)  # The same on all ranks, and so are the first weights.
        self.model = GPT(config)
        sums = MixedPrecisionPolicy(reduce_dtype=torch.float64)  # See exact.py.
        for block in self.model.blocks:
            fully_shard(block, mesh=self.mesh, mp_policy=sums)
        fully_shard(self.model, mesh=self.mesh, mp_policy=sums)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate)
        self.progress: dict[str, Any] = {"step": 0, "losses": []}
        self.rng = torch.empty_like(torch.get_rng_state())

    def state(self) -> dict[str, Any]:
        """Return the state to save, or to load into: tensors of it are the live ones."""
        self.rng.copy_(torch.get_rng_state())
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.optimizer),
            "schedule": self.scheduler,
            "data": self.loader,
            "rng": varve.torch.PerRank(self.rng),
            "progress": self.progress,
        }

    def resume(self, manager: varve.torch.CheckpointManager) -> None:
        """Go on from the newest good step of the run, which any number of ranks may have written."""
        state = self.state()
        manager.resume(state)
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"])
        torch.set_rng_state(self.rng)

    def step(self) -> float:
        """Take one step on the next global batch; return its mean loss, the same on every rank."""
        inputs, targets = self.loader.next_batch()
        # All ranks draw the same seeds, one for the dropout of each micro-batch: what is dropped
        # depends on the micro-batch, not on the rank that runs it.
        seeds = torch.randint(2**62, (MICRO_BATCHES,)).tolist()
        share = MICRO_BATCHES // self.world
        mine = range(self.rank * share, (self.rank + 1) * share)
        losses = torch.empty(share)
        with torch.random.fork_rng(devices=[]):
            for place, index in enumerate(mine):
                torch.manual_seed(seeds[index])
                self.model.set_requires_gradient_sync(index == mine[-1])
                loss = self.model(inputs[index], targets[index])
                loss.backward()
                losses[place] = loss.detach()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                # FSDP2 has summed over micro-batches and divided by the world size.
                parameter.grad.mul_(self.world / MICRO_BATCHES)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        everyones = [torch.empty(share) for _ in range(self.world)]
        dist.all_gather(everyones, losses)
        mean: float = sum(torch.cat(everyones).tolist()) / MICRO_BATCHES
        self.progress["step"] += 1
        self.progress["losses"].append(mean)
        return mean

    def whole(self) -> dict[str, Any]:
        """Return the state gathered from all ranks without Varve, as a witness against it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return {
            "model": get_model_state_dict(self.model, options=options),
            "optim": get_optimizer_state_dict(self.model, self.optimizer, options=options),
            "schedule": self.scheduler.state_dict(),
            "data": self.loader.state_dict(),
            "rng": torch.get_rng_state(),
            "progress": self.progress,
        }

    def padding(self, size_bytes: int) -> Tensor:
        """Return a tensor of `size_bytes`, sharded over the ranks, to make a save take longer."""
        shard = torch.full((size_bytes // self.world,), 0x5A, dtype=torch.uint8)
        return DTensor.from_local(shard, self.mesh, [Shard(0)])


def checkpoint_path(run: str, step: int) -> str:
    """Return where the checkpoint of `step` goes; names sort by step."""
    return f"{run}/step-{step:08d}"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="One rank of the demo's training job.")
    parser.add_argument("--run", required=True, help="directory of checkpoints, or s3://bucket/key")
    parser.add_argument("--until", type=int, required=True, help="step to stop after")
    parser.add_argument("--save-every", type=int, default=5, help="steps from save to save")
    parser.add_argument("--resume", help="the run to go on with; with --dcp, the checkpoint")
    parser.add_argument("--events", type=Path, help="file to append to, a JSON object per line")
    parser.add_argument("--witness", type=Path, help="file for the final state, by torch.save")
    parser.add_argument("--pad-step", type=int, help="step whose save is padded")
    parser.add_argument("--pad-mib", type=int, default=0, help="size of the padding")
    parser.add_argument("--dcp", action="store_true", help="checkpoint with torch's own DCP")
    return parser.parse_args()


def main() -> None:
    """Train, save, report."""
    options = arguments()
    if options.dcp:
        import with_dcp  # It imports this file.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # `job.py` names a file to meet at; under torchrun the environment has an address.
    dist.init_process_group(
        "gloo",
        init_method=os.environ.get("DEMO_MEET_AT", "env://"),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )

    def report(event: str, **facts: object) -> None:
        if dist.get_rank() == 0 and options.events:
            with options.events.open("a") as events:
                events.write(json.dumps({"event": event, **facts}) + "\n")

    def saved(step: int, begun: float) -> Callable[[Future[Any]], None]:
        def tell(save: Future[Any]) -> None:
            if save.exception() is None:
                report("saved", step=step, seconds=time.perf_counter() - begun)

        return tell

    saves: list[Future[Any]] = []
    if options.dcp:
        saver = with_dcp.Saver()
    else:
        # Memory for copies is taken once; a state without padding fits in it many times.
        stager = varve.torch.Stager(memory_budget=512 << 20)
        manager = varve.torch.CheckpointManager(
            options.run, every=options.save_every, stager=stager
        )
    # A resumed job starts from other weights and dropout, so that only loading can set it right.
    trainer = Trainer(seed=2 if options.resume else 1)
    if options.resume:
        start = time.perf_counter()
        if options.dcp:
            with_dcp.resume(trainer, options.resume)
        else:
            trainer.resume(manager)
        report("loaded", step=trainer.progress["step"], seconds=time.perf_counter() - start)
    while trainer.progress["step"] < options.until:
        start = time.perf_counter()
        loss = trainer.step()
        step = trainer.progress["step"]
        report("step", step=step, loss=loss, seconds=time.perf_counter() - start)

        def state(step: int = step) -> dict[str, Any]:
            made = with_dcp.state_of(trainer) if options.dcp else trainer.state()
            if step == options.pad_step:
                made["padding"] = trainer.padding(options.pad_mib << 20)
            return made

        start = time.perf_counter()
        last = step == options.until
        save: Future[Any] | None = None
        if not options.dcp:
            save = manager.save(step, state, metrics={"loss": loss}, force=last)
        elif step % options.save_every == 0 or last:
            save = saver.async_save(state(), checkpoint_path(options.run, step))
        if save is not None:
            # From here on the state is copied and training goes on; writing is behind its back.
            report("stalled", step=step, seconds=time.perf_counter() - start)
            save.add_done_callback(saved(step, start))
            saves.append(save)
    for save in saves:
        save.result()  # Raises if one of them failed.
    if not options.dcp:
        manager.close()
        stager.close()
    witness = trainer.whole()
    if dist.get_rank() == 0 and options.witness:
        torch.save(witness, options.witness)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Not by way of the interpreter's end: gloo's threads may still be dropping tensors, and to do
    # that while Python shuts down aborts the process (github.com/pytorch/pytorch/issues/190489).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
