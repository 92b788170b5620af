"""Trains with Hugging Face's Trainer and keeps its checkpoints with Varve.

    torchrun --nproc-per-node 2 examples/hf_trainer.py OUT [STEPS]     # run it again to go on

`VarveTrainer` is a Trainer with VarveTrainerMixin; a Trainer of your own gets the mixin as its first base. All
ranks save OUT/checkpoint-N in the background, each its share. A checkpoint gets its name when all of it is
durable: `resume_from_checkpoint=True` finds the newest whole one, also after a kill in the middle of a save,
and on any number of ranks. `from_pretrained("OUT/checkpoint-N")` opens it. See docs/frameworks.md.

    pip install "varve[transformers]"
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from varve.integrations.transformers import VarveTrainer


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
    torch.manual_seed(1)
    sizes = {"vocab_size": 128, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        out,
        max_steps=steps,
        save_steps=5,
        save_total_limit=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        lr_scheduler_type="constant",
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    trainer = VarveTrainer(model=model, args=arguments, train_dataset=RandomTokens())
    begun = any(Path(out).glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=begun)
    if trainer.is_world_process_zero():
        for line in trainer.state.log_history:
            if "loss" in line:
                print(f"step {line['step']} loss {line['loss']!r}", flush=True)


if __name__ == "__main__":
    main()
