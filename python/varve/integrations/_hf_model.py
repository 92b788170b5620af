"""The model of a transformers.Trainer in a checkpoint that `from_pretrained` opens too.

Varve's data files are safetensors files. A `model.safetensors.index.json` that names them makes the
checkpoint a folder that transformers opens, without a second copy of the weights. It takes two things:

- Every tensor of the model lies in one file as a whole, under the name that it has in the model. So each
  tensor is given to one rank, which alone passes it to the save; a save of replicas would cut large ones.
- The index lies in the folder from the moment on that the folder has its name. It is a side file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from varve.errors import InvalidArgumentError

#: The entries of the state beside the model.
OPTIMIZER = "optimizer"
TRAINER = "trainer"

INDEX = "model.safetensors.index.json"


def entries(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the model's state dict, of tied tensors only the names that `save_pretrained` keeps.

    Raises:
        InvalidArgumentError: A name is one that the rest of the checkpoint has.
    """
    state = dict(model.state_dict())
    for name in state:
        if name.split(".")[0] in (OPTIMIZER, TRAINER):
            raise InvalidArgumentError(
                f"the model has an entry {name!r}: names that begin with {OPTIMIZER!r} or {TRAINER!r} "
                "are those of the other parts of the checkpoint; rename the module"
            )
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    for name, kept in tied.items():
        if name in state and kept in state and _same_memory(state[name], state[kept]):
            del state[name]
    return state


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def owners(model: torch.nn.Module, state: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """Returns the rank that saves each tensor: the largest first, to the rank with the fewest bytes.

    The same on all ranks. Buffers are rank 0's: they may differ between ranks, and stock saves rank 0's.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tensors = {n: t for n, t in state.items() if isinstance(t, torch.Tensor)}
    owner = {name: 0 for name in tensors if name not in parameters}
    loads = [0] * world_size
    loads[0] = sum(tensors[name].nbytes for name in owner)
    left = [name for name in tensors if name in parameters]
    for name in sorted(left, key=lambda name: (-tensors[name].nbytes, name)):
        rank = loads.index(min(loads))
        owner[name] = rank
        loads[rank] += tensors[name].nbytes
    return owner


def share(state: Mapping[str, Any], owner: Mapping[str, int], rank: int) -> dict[str, Any]:
    """Returns what this rank saves of the model. Entries that are no tensors are saved by all ranks."""
    return {name: value for name, value in state.items() if owner.get(name, rank) == rank}


def index(state: Mapping[str, Any], owner: Mapping[str, int], world_size: int) -> bytes:
    """Returns the index that names the data file of each tensor."""
    files = {n: f"data-{r:05d}-of-{world_size:05d}.safetensors" for n, r in owner.items()}
    total = sum(state[name].nbytes for name in owner)
    content = {"metadata": {"total_size": total}, "weight_map": files}
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
