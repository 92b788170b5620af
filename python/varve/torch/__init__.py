"""Save and load PyTorch training state, on one process or many.

Nested dicts and lists of tensors of any kind (plain, DTensor of any mesh and placement but Partial,
ShardedTensor, CheckpointableTensor, Parameters), of plain values, and of objects with `state_dict` and
`load_state_dict`. What was saved by one layout of ranks loads into any other.

Example, on every rank of a job:
    >>> import varve.torch  # doctest: +SKIP
    >>> state = {"model": model, "optim": optimizer, "step": 10}  # doctest: +SKIP
    >>> varve.torch.save(state, "run/step-10")  # doctest: +SKIP
    >>> varve.torch.load(state, "run/step-10")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from varve import (
    Checkpoint,
    CheckpointEntry,
    ConvertReport,
    Damage,
    Difference,
    HfOptions,
    LoadReport,
    PerRank,
    ResizedTensor,
    SaveReport,
    StoredChunk,
    StoredFiles,
    StoredTensor,
    UploadReport,
    _core,
    _load,
    collect_garbage,
    convert,
    diff,
    files,
    latest,
    list_checkpoints,
    remove,
    repair,
    unshard,
    upload,
    verify,
)
from varve._core import AsyncSaveReport, DeferredReport, StagingMemory
from varve._open import open_checkpoint
from varve._select import Rename
from varve.torch._coordinator import collective, name_of
from varve.torch._devices import device_of
from varve.torch._grown import shapes_of_parameters
from varve.torch._handle import DeferredSaveHandle, SaveHandle
from varve.torch._manager import CheckpointManager
from varve.torch._merge import merge_dataloaders
from varve.torch._save import async_save, defer_save, save
from varve.torch._stager import Stager
from varve.torch._tensors import TorchArrays

__all__ = [
    "AsyncSaveReport",
    "Checkpoint",
    "CheckpointEntry",
    "CheckpointManager",
    "ConvertReport",
    "Damage",
    "DeferredReport",
    "DeferredSaveHandle",
    "Difference",
    "HfOptions",
    "LoadReport",
    "PerRank",
    "ResizedTensor",
    "SaveHandle",
    "SaveReport",
    "Stager",
    "StagingMemory",
    "StoredChunk",
    "StoredFiles",
    "StoredTensor",
    "UploadReport",
    "async_save",
    "collect_garbage",
    "convert",
    "defer_save",
    "diff",
    "files",
    "latest",
    "list_checkpoints",
    "load",
    "merge_dataloaders",
    "open",
    "read",
    "remove",
    "repair",
    "save",
    "unshard",
    "upload",
    "verify",
]


def load(
    state_dict: Any,
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    strict: bool | Literal["exact"] = True,
    keys: str | Iterable[str] | None = None,
    rename: Rename | None = None,
    cast: bool = False,
    fit: Literal["exact", "overlap"] = "exact",
    assign: bool = False,
    allow_pickle: bool = False,
    timeout: float = 1800.0,
    progress: Callable[[int, int], None] | None = None,
    use_agent: bool = True,
    on_difference: Literal["keep", "first"] = "keep",
    one_will_do: str | Iterable[str] | None = None,
    share: bool = True,
) -> LoadReport:
    """Fills `state_dict` in place from a checkpoint that any layout of ranks has saved.

    Tensors are filled where they are; plain values are replaced in their containers; containers that
    are empty or of another length get what was saved; objects with `load_state_dict` are given
    all that is stored below them, modules what they have of it. Optimizers keep the dtypes that were stored,
    and their state is refused where it fits no parameter, or is half there. Collective like `save`. Nothing is changed before all ranks have agreed that the checkpoint
    fits.

    Args:
        state_dict: A dict, a module, or any object with `state_dict` and `load_state_dict`. It may
            have a part of what is stored. Tensors must have the stored dtype and whole shape;
            placement is free. Two names of the same memory (tied parameters) are filled if the same
            values are stored for them.
        path: The checkpoint directory, the same on all ranks.
        process_group: As in `save`.
        strict: True refuses, before anything changes, unless everything the ranks want is in the
            checkpoint and fits; what is left over there is in the report's `unexpected`. "exact"
            refuses that too. False loads what fits and reports the rest.
        keys: Fill only these entries of the destination, each a name, everything under it, or a
            glob (`*` is any run of characters, dots too). Others stay as they are.
        rename: Which entry of the destination a stored one fills: a dict of prefixes
            {stored: wanted}, of which the first that fits is applied, or a function from the stored
            name to the wanted one (None leaves it out). Names that differ by the parts of wrappers
            alone (`module`, `_orig_mod`; see `save`) need none. `keys` and the report's `missing` are names of
            the destination, `unexpected` of the checkpoint. Lists keep their length where names change.
        cast: Convert between float16, bfloat16, float32 and float64 where the stored dtype is
            another, rounding to the nearest; state of optimizers as torch does.
        fit: "exact" wants tensors of the stored sizes. "overlap" takes other sizes too, with as many
            dimensions: it fills what both have, indices from 0 to the smaller size in each dimension, on
            any mesh, and leaves the rest of the tensor as it is. The report's `resized` names these tensors.
            For a vocabulary that has grown; see the cookbook.
        assign: Replace tensors on the meta device by new ones on torch's default device, of the stored
            dtype (with `cast`, of their own). Without it they are refused. They must have the stored shape,
            whatever `fit` says.
        allow_pickle: Open values stored as pickles. A pickle can run code: only for trusted files.
        timeout: As in `save`.
        progress: Called from other threads with bytes read and bytes in all, on this rank.
        use_agent: Read from the memory of this node's agent what it has of the checkpoint. False reads
            the disk alone, and looks for no agent. Looking takes a second at most.
        on_difference: What to load where the ranks that saved held different values under one name. With
            "keep" as many ranks get their own values back, rank by rank; another number of ranks is
            refused, except for buffers of a module in `state_dict` (BatchNorm's under
            DistributedDataParallel): they get the lowest rank's value, with a warning. "first" gives
            all ranks the lowest rank's values. The report has the names in `kept` and `merged`.
        one_will_do: Names of the destination, as `keys` has them, of which the lowest rank's value will do where
            the ranks cannot get their own: a measured time, a host's name. Other names are refused as before.
        share: Ranks that need the same bytes read them once from storage: those of one node through its page
            cache; those of several nodes, and all whose files are on a server, each a part, which it sends to
            the others over sockets. A rank that finds storage several times faster than that reads the rest
            for itself, as do those that cannot reach each other. False: each reads for itself.

    Raises:
        InvalidArgumentError: Names, dtypes or shapes differ; the message has the first ten of each
            kind. Or the ranks that saved held different values under one name, and were another
            number of ranks. Or tensors of the destination share memory and cannot all be filled,
            or one is a copy that torch has made of a DTensor, as `w[:65]` of a sharded `w`.
        CorruptCheckpointError: Stored bytes are damaged. The message names file, offset and tensor,
            and which tensors hold new bytes.
        CheckpointNotFoundError: There is no checkpoint at `path`.

    Warns when nothing was loaded, and when entries are left over below what was.
    """
    with collective(process_group, timeout, name_of("load", path)) as coordinator:
        options = _core.LoadOptions(
            strict=strict,
            cast=cast,
            fit=fit,
            timeout=timeout,
            progress=progress,
            on_difference=on_difference,
            share=share,
        )
        choice = _load.Choice(keys, rename, allow_pickle, use_agent, assign, one_will_do)
        grown = shapes_of_parameters(state_dict) if fit == "overlap" else None
        arrays = TorchArrays(grown=grown, cast=cast)
        return _load.load(state_dict, path, arrays, coordinator, options, choice)


def read(
    path: str | os.PathLike[str],
    keys: str | Iterable[str] | None = None,
    *,
    flat: bool = False,
    device: str | torch.device | int | None = None,
    allow_pickle: bool = False,
    use_agent: bool = True,
) -> Any:
    """Builds a new state from a checkpoint in this process, with whole tensors.

    Returns the tensor or value itself for a file that holds just one, as torch.save(tensor, path) writes.

    Args:
        path: The checkpoint directory.
        keys: Names to read, each a leaf, everything under it, or a glob; None reads all. A list of
            which only some items are read comes back as a dict by position.
        flat: Return a dict from full name to value rather than the nested state.
        device: Where the tensors are made, "cuda" or "cuda:1" for example: their bytes go straight
            there. None is torch's default device, the CPU unless the program has set another.
        allow_pickle: As in `load`.
        use_agent: As in `load`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `path`.
        InvalidArgumentError: Nothing in it is named as one of `keys`; the message has the nearest names.
        CorruptCheckpointError: As in `load`.
    """
    arrays = TorchArrays(device=device_of(device))
    return _load.read(path, arrays, keys, flat, allow_pickle, use_agent)


def open(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | int | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Opens a checkpoint of any format to look into it: reads its index, and no tensor.

    Example:
        >>> ckpt = varve.torch.open("run/step-1200")  # doctest: +SKIP
        >>> for name, tensor in ckpt.tensors.items():  # doctest: +SKIP
        ...     print(name, tensor.shape, tensor.dtype, [chunk.file for chunk in tensor.chunks])
        >>> ckpt["model.layers.0.w"][2:4, :10]  # doctest: +SKIP
        >>> ckpt["step"], ckpt.format, ckpt.world_size, ckpt.save_id  # doctest: +SKIP

    Args:
        path: The checkpoint: a directory, or a file of torch.save or safetensors.
        device: Where slices are read to, as in `read`.
        allow_pickle: Open values stored as pickles. A pickle can run code: only for trusted files.

    Returns:
        A mapping from full name to a StoredTensor, from which slices are read as tensors, or to a plain
        value; see Checkpoint.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `path`.
        CorruptCheckpointError: Its index is damaged.
        PreconditionError: It is incomplete: files of some ranks are missing.
    """
    return open_checkpoint(path, TorchArrays(device=device_of(device)), "torch", allow_pickle)
