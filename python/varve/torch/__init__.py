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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from varve import _core, _engine, _hf, _load
from varve._catalogue import (
    collect_garbage,
    convert,
    diff,
    files,
    latest,
    list_checkpoints,
    remove,
    repair,
    unshard,
    verify,
)
from varve._core import (
    AsyncSaveReport,
    CheckpointEntry,
    ConvertReport,
    Coordinator,
    Damage,
    DeferredReport,
    Difference,
    LoadReport,
    ResizedTensor,
    SaveReport,
    StagingMemory,
    StoredChunk,
)
from varve._core.uploads import UploadReport
from varve._files import Source as FileSource
from varve._files import StoredFiles
from varve._hf import HfOptions
from varve._open import Checkpoint, StoredTensor, open_checkpoint
from varve._select import Rename
from varve._tree import PerRank
from varve._upload import copy_of, refuse_upload_apart, upload
from varve._wrappers import to_save
from varve.torch import _run
from varve.torch._async import async_save, defer_save
from varve.torch._coordinator import collective, name_of
from varve.torch._devices import device_of
from varve.torch._grown import shapes_of_parameters
from varve.torch._handle import DeferredSaveHandle, SaveHandle
from varve.torch._manager import CheckpointManager
from varve.torch._merge import merge_dataloaders
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


def save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    save_id: bytes | None = None,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    upload_to: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SaveReport:
    """Saves the ranks' states as one checkpoint, the directory `path`.

    Collective over the process group: all ranks call it with the same path. Returns on every rank when
    the checkpoint is durable and visible, or raises the same error on every rank; then none has become
    visible and an older one at `path` is intact. Tensors must not change until it returns. The GIL is
    released while bytes move.

    Args:
        state_dict: Tensors and plain values under the same name on several ranks are replicas and are
            stored once; wrap what differs between ranks in `PerRank`. See `on_difference`.
        path: On storage that all ranks share; parents are made as needed.
        process_group: Defaults to all ranks of torch.distributed, or one process without it.
        overwrite: Replace a checkpoint at `path`, which stays loadable until the new one is durable. Files
            in its directory that are not part of it are kept. With "damaged", replace it only if it does
            not verify: rank 0 reads all of it first, under the name's lock.
        files: Files that belong to the checkpoint and are replaced with it, such as a `config.json` or a
            tokenizer: by name ("tokenizer/vocab.json" is in a folder), their content as bytes or the
            path to read it from, now. See `varve.files`. At most 256 MiB in all.
            Those of rank 0 count; not with `coordinate=False`.
        allow_pickle: Store values of unknown types as pickles, instead of refusing them.
        coordinate: False saves without the ranks connected to each other: each publishes its own file,
            and the directory is a checkpoint once all are there. Replicas are then stored by every
            rank.
        format: "varve"; "dcp" for a checkpoint that stock PyTorch opens: `.metadata` and `.distcp`
            files, committed like any other and with Varve's checksums in the index; or "hf" for a folder that
            Hugging Face's tools open: safetensors files with whole tensors, into which every rank writes
            its parts in place, and their index. It holds tensors alone: give the model's state dict. Of
            tied tensors the first of the state is stored. What shards have of shared pages of 4 KiB (edges
            of rows, all of shards by columns) is refused where it is more than 1 GiB.
        hf: Options of format="hf".
        strip_wrappers: Leave the parts out of names that wrappers of modules add: `_orig_mod`,
            `_checkpoint_wrapped_module`, `_fsdp_wrapped_module` and `module`. (A load needs no such thing: it
            takes names that differ by these alone for the same.)
        save_id: 16 bytes that name the attempt, only for `coordinate=False` and the same on all ranks.
            By default it follows from the job's rendezvous store, the path and a count of saves.
        on_difference: What to do when ranks hold different values of a tensor, of a shard of it, or of a
            plain value, under one name. "keep" saves each different value once, with the ranks that
            hold it: `load` on as many ranks gives each its own back. "first" saves the value of the
            lowest of these ranks; so does "keep" in all formats but "varve", which have one value for
            a name. Both list the names in `report.differing_tensors` and `report.differing_objects`
            on rank 0, and warn there, once for each name in the checkpoints of one directory. "error"
            raises PreconditionError on all ranks before anything is written, if tensors differ.
        check_replicas: "samples" compares all of a shard of up to 64 KiB, and 64 samples of 64 bytes of
            a larger one: that finds replicas that have diverged, not one flipped bit. "full" compares
            all bytes, which takes one more pass over all that each rank holds. Replicas are not
            compared with `coordinate=False`.
        timeout: Seconds any rank waits for the others, the slowest rank's writing included.
        upload_to: The name of a copy in another storage, such as "s3://bucket/run/step-100". All ranks upload;
            the call returns when both are durable. If the upload fails, all ranks raise, and the
            checkpoint at `path` stays; `varve.upload` makes the copy then. Not with `coordinate=False`.
        progress: Called from other threads with bytes written and bytes in all, on this rank.

    Raises:
        CheckpointExistsError: `path` holds a checkpoint and `overwrite` is false, or "damaged" and it is
            not.
        InvalidArgumentError: Something cannot be stored, or ranks disagree about a tensor.
        PreconditionError: Another save of this name is under way, ranks do not share the storage, or
            replicas differ and `on_difference` is "error".
        OutOfSpaceError, UnavailableError: Writing failed or a rank is lost; each is named.
    """
    state = to_save(state_dict, strip_wrappers)

    def save_with(coordinator: Coordinator | None, save_id: bytes | None) -> SaveReport:
        options = _core.SaveOptions(
            overwrite=overwrite,
            coordinate=coordinate,
            format=format,
            save_id=save_id,
            on_difference=on_difference,
            check_replicas=check_replicas,
            timeout=timeout,
            progress=progress,
            shard_size=_hf.shard_size(hf),
            upload_to="" if upload_to is None else _engine.path_text(upload_to),
        )
        arrays = TorchArrays()
        return _engine.save(
            state,
            path,
            arrays,
            coordinator,
            allow_pickle,
            files,
            options,
            hf,
            format,
            lambda: copy_of(path, upload_to, overwrite, timeout),
        )

    if not coordinate:
        refuse_upload_apart(upload_to)
        own_id = _run.save_id(_engine.path_text(path), process_group, save_id)
        return save_with(_run.me(process_group), own_id)
    with collective(process_group, timeout, name_of("save", path)) as coordinator:
        return save_with(coordinator, None)


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
