"""Checks of the checkpoints that the stock Trainer writes: what keeps it from resuming from a directory."""

from __future__ import annotations

import json
import os

#: Trainer.state as JSON, which the Trainer writes last.
TRAINER_STATE = "trainer_state.json"

#: The Trainer's just-in-time checkpoint makes the folder and puts this into it before it saves.
SENTINEL = "checkpoint-is-incomplete.txt"

_MODELS = ("model.safetensors", "pytorch_model.bin")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_FSDP = "pytorch_model_fsdp"  # The Trainer itself refuses these, with a reason.


def why_not_stock(path: str, model_only: bool) -> str | None:
    """Returns what keeps the Trainer from resuming the whole training from a directory, or None.

    The Trainer begins with a new optimizer, silently, where the optimizer or the scheduler is missing.

    Args:
        path: The directory.
        model_only: The run keeps no optimizer (`save_only_model`), so that a checkpoint needs none.
    """
    names = set(os.listdir(path))
    if SENTINEL in names:
        return f"{SENTINEL} says that it is not complete"
    if TRAINER_STATE not in names:
        return f"it has no {TRAINER_STATE}"
    reason = _why_no_weights(path, names)
    if reason is not None or model_only:
        return reason
    if not any(name.startswith("optimizer") for name in names):
        return "it has no optimizer.pt, and the optimizer would begin anew"
    if "scheduler.pt" not in names:
        return "it has no scheduler.pt, and optimizer and scheduler would begin anew"
    return None


def why_half(path: str, model_only: bool) -> str | None:
    """Returns what `why_not_stock` does for a directory with a Trainer's files in it; None for any other."""
    files = (TRAINER_STATE, "training_args.bin", "optimizer.pt", "scheduler.pt")
    theirs = not {*files, *_MODELS, *_ADAPTERS}.isdisjoint(os.listdir(path))
    return why_not_stock(path, model_only) if theirs else None


def _why_no_weights(path: str, names: set[str]) -> str | None:
    if not names.isdisjoint((*_MODELS, *_ADAPTERS)) or any(one.startswith(_FSDP) for one in names):
        return None
    for index in (f"{name}.index.json" for name in _MODELS):
        if index in names:
            return _why_no_shards(os.path.join(path, index), names)
    for name in names:  # Several adapters have a folder each.
        if any(os.path.isfile(os.path.join(path, name, file)) for file in _ADAPTERS):
            return None
    return f"it has no weights ({', '.join((*_MODELS, *_ADAPTERS))})"


def _why_no_shards(index: str, names: set[str]) -> str | None:
    try:
        with open(index, encoding="utf-8") as file:
            shards = set(json.load(file)["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{os.path.basename(index)} is damaged: {error}"
    missing = sorted(shards - names)
    return f"it has no {missing[0]}, which {os.path.basename(index)} names" if missing else None
