"""Training a tiny GPT-2 with VarveTrainer: what test_transformers.py runs, alone and on several ranks."""

from __future__ import annotations

import glob
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from varve.integrations.transformers import VarveSaving, VarveTrainer

SIZES = {"vocab_size": 64, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}


class Tokens(torch.utils.data.Dataset):
    """Sequences of random tokens, the same in every run."""

    def __init__(self, count: int = 128) -> None:
        self.tokens = torch.randint(
            0, 64, (count, 8), generator=torch.Generator().manual_seed(count)
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def tiny(dropout: float = 0.1) -> GPT2LMHeadModel:
    torch.manual_seed(3)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**SIZES, **drops, bos_token_id=0, eos_token_id=0))


def arguments(out: Any, steps: int, **more: Any) -> TrainingArguments:
    defaults = {
        "save_steps": 4,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 5,
    }
    return TrainingArguments(str(out), max_steps=steps, **{**defaults, **more})


def trainer_of(
    out: Any,
    steps: int,
    kind: type = VarveTrainer,
    saving: VarveSaving | None = None,
    model: Any = None,
    trainer: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    made = kind(
        model=model if model is not None else tiny(),
        args=arguments(out, steps, **more),
        train_dataset=Tokens(),
        **(trainer or {}),
    )
    if saving is not None:
        made.varve_saving = saving
    return made


def losses_of(trainer: Any) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}


class DieWhileSaving(TrainerCallback):
    """Kills this process once the save of a step is half written."""

    def __init__(self, out: str, step: int) -> None:
        self.folder, self.step = Path(out), step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            name = f"checkpoint-{self.step}"
            while not (self.folder / name).exists():
                staged = glob.glob(f"{self.folder}/.checkpoint-*/data-*")
                if len(staged) == args.world_size:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.01)
            raise AssertionError("the save has ended")


def train(
    rank: int, size: int, out: str, steps: int, resume: bool, die_at: int, more: dict[str, Any]
) -> tuple[dict[int, float], dict[str, Any]]:
    """Trains as rank of a DDP job; returns losses by step and the weights."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size)
    )

    class Slow(VarveTrainer):
        """Writes the save in which it is killed for many seconds: 48 MiB more, at 1 MiB/s."""

        def _varve_state(self) -> Any:
            state, index = super()._varve_state()
            if self.state.global_step == die_at:
                self.varve_saving = VarveSaving(max_write_bandwidth=1 << 20)
                state["ballast"] = torch.zeros(12 << 20)
            return state, index

    callbacks = [DieWhileSaving(out, die_at)] if die_at else []
    options = {"ddp_backend": "gloo", **more}
    made = trainer_of(
        out, steps, Slow, None, tiny(dropout=0.0), {"callbacks": callbacks}, **options
    )
    assert made.args.world_size == size
    made.train(resume_from_checkpoint=resume)
    weights = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    return losses_of(made), {name: tensor.numpy() for name, tensor in weights.items()}
