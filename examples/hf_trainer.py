"""Trains with Hugging Face's Trainer and keeps its checkpoints with Varve.

    torchrun --nproc-per-node 2 examples/hf_trainer.py OUT [STEPS]     # run it again to go on

`VarveTrainer` replaces what the Trainer writes into OUT/checkpoint-N. All ranks save: each writes its share of the
model and of the optimizer. A checkpoint gets its name when all of it is durable, so `resume_from_checkpoint=True`
finds the newest whole one, also after a kill in the middle of a save, and on any number of ranks.

Run by hand with transformers 5.23.0, accelerate 1.15.0 and torch 2.13, on one CPU process and on two (DDP over gloo).
Varve's tests do not run it: transformers is not installed there. FSDP and DeepSpeed need more than this.
"""

import dataclasses
import json
import os
import random
import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

import varve.torch


class VarveTrainer(Trainer):
    """A Trainer whose checkpoints are Varve's."""

    saving: varve.torch.SaveHandle | None = None
    loaded_rng: dict | None = None

    def everything(self) -> dict:
        """What a checkpoint holds, and where a load puts it."""
        rng = {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        }
        if torch.cuda.is_available():
            rng["cuda"] = torch.cuda.get_rng_state()
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.lr_scheduler,
            "rng": varve.torch.PerRank(rng),
        }

    # ---- save: the Trainer calls this on all ranks ----

    def _save_checkpoint(self, model, trial) -> None:
        self.finish_save()
        self.store_flos()
        run = self._get_output_dir(trial=trial)
        state = self.everything()
        state["trainer"] = dataclasses.asdict(self.state)
        # Returns when the state is copied; the copy is written while training goes on.
        path = os.path.join(run, f"checkpoint-{self.state.global_step}")
        self.saving = varve.torch.async_save(state, path)
        if self.args.should_save:
            rotate_checkpoints(run, self.args.save_total_limit)

    def finish_save(self) -> None:
        """Waits until the save under way is durable, or raises what went wrong with it."""
        if self.saving is not None:
            saving, self.saving = self.saving, None
            saving.result()

    # ---- resume ----

    def train(self, resume_from_checkpoint=None, **arguments):
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)
        if path and self.args.should_save:
            # The Trainer reads this file itself.
            state = varve.torch.read(path, "trainer")["trainer"]
            with open(os.path.join(path, TRAINER_STATE_NAME), "w") as file:
                json.dump(state, file)
        if self.args.world_size > 1:
            torch.distributed.barrier()
        result = super().train(resume_from_checkpoint=path, **arguments)
        self.finish_save()
        return result

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None) -> None:
        # The Trainer has no optimizer yet. What is not wanted now stays where it is.
        varve.torch.load({"model": model or self.model}, resume_from_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        if checkpoint is not None:
            state = self.everything()
            del state["model"]
            varve.torch.load(state, checkpoint)
            self.loaded_rng = state["rng"].value

    def _load_rng_state(self, checkpoint) -> None:
        # The Trainer calls this after it has skipped the data that were used before.
        if checkpoint is None or self.loaded_rng is None:
            return
        torch.set_rng_state(self.loaded_rng["torch"])
        np.random.set_state(self.loaded_rng["numpy"])
        random.setstate(self.loaded_rng["python"])
        if "cuda" in self.loaded_rng:
            torch.cuda.set_rng_state(self.loaded_rng["cuda"])


class RandomTokens(torch.utils.data.Dataset):
    """Sequences of random tokens, the same in every run."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 128, (256, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Trains a tiny GPT-2, from the newest checkpoint if there is one."""
    out = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    sizes = {"vocab_size": 128, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        out,
        max_steps=steps,
        save_steps=5,
        save_total_limit=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    )
    trainer = VarveTrainer(model=model, args=arguments, train_dataset=RandomTokens())
    found = os.path.isdir(out) and get_last_checkpoint(out) is not None
    trainer.train(resume_from_checkpoint=found)


if __name__ == "__main__":
    main()
