"""Varve saves and loads the state of large-model training.

This module works on NumPy arrays and anything with DLPack or the buffer protocol, in one process;
`varve.torch` has the same functions for PyTorch and any number of ranks. Importing it does not import
torch, unless the environment variable VARVE_DCP is 1 (see `varve.torch.dcp.install`).

Example:
    >>> import os, tempfile, numpy as np, varve
    >>> path = os.path.join(tempfile.mkdtemp(), "step-1")
    >>> _ = varve.save({"w": np.arange(4.0), "step": 1}, path)
    >>> varve.read(path)
    {'w': array([0., 1., 2., 3.]), 'step': 1}
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from varve import _core, _engine, _load
from varve._arrays import NumpyArrays
from varve._catalogue import (
    collect_garbage,
    convert,
    diff,
    files,
    latest,
    list_checkpoints,
    prune,
    remove,
    repair,
    steps,
    unshard,
    verify,
)
from varve._classes import register as register_classes
from varve._core import (
    CheckpointEntry,
    ConvertReport,
    CopiedAhead,
    Damage,
    Difference,
    LoadReport,
    Phase,
    ResizedTensor,
    SaveReport,
    StoredChunk,
)
from varve._core.manage import PrunedStep, RunStep
from varve._core.storage import end_calls as _end_storage_calls
from varve._core.uploads import UploadReport
from varve._environment import install_dcp_if_asked as _install_dcp_if_asked
from varve._events import install as _install_events
from varve._files import Source as FileSource
from varve._files import StoredFiles
from varve._hf import HfOptions
from varve._manage._policy import Ending, Every, Keep
from varve._numpy_manager import CheckpointManager
from varve._open import Checkpoint, StoredTensor, open_checkpoint
from varve._progress import Progress
from varve._select import Rename
from varve._tree import PerRank
from varve._upload import copy_of, target_of, upload
from varve.errors import (
    CancelledError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    Error,
    InternalError,
    InvalidArgumentError,
    OutOfSpaceError,
    PreconditionError,
    ReplicasDifferWarning,
    UnavailableError,
    UnsupportedError,
)
from varve.storage import register_storage, set_s3_credentials, unregister_storage

__version__: str = _core.__version__

_install_events()
# Runs after the functions that wait for saves, which are registered later.
atexit.register(_end_storage_calls)

__all__ = [
    "CancelledError",
    "Checkpoint",
    "CheckpointEntry",
    "CheckpointExistsError",
    "CheckpointManager",
    "CheckpointNotFoundError",
    "ConvertReport",
    "CopiedAhead",
    "CorruptCheckpointError",
    "Damage",
    "Difference",
    "Ending",
    "Error",
    "Every",
    "HfOptions",
    "InternalError",
    "InvalidArgumentError",
    "Keep",
    "LoadReport",
    "OutOfSpaceError",
    "PerRank",
    "Phase",
    "PreconditionError",
    "Progress",
    "PrunedStep",
    "ReplicasDifferWarning",
    "ResizedTensor",
    "RunStep",
    "SaveReport",
    "StoredChunk",
    "StoredFiles",
    "StoredTensor",
    "UnavailableError",
    "UnsupportedError",
    "UploadReport",
    "__version__",
    "collect_garbage",
    "convert",
    "diff",
    "files",
    "latest",
    "list_checkpoints",
    "load",
    "open",
    "prune",
    "read",
    "register_classes",
    "register_storage",
    "remove",
    "repair",
    "save",
    "set_s3_credentials",
    "steps",
    "unregister_storage",
    "unshard",
    "upload",
    "verify",
]


def save(
    state: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    upload_to: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SaveReport:
    """Saves a state, nested dicts and lists of arrays and plain values, as the directory `path`.

    Returns when the checkpoint is durable and visible. On any error no checkpoint has become visible
    and an older one at `path` is intact.

    Args:
        state: Arrays may have any strides. Memory must not change until the call returns.
        path: The checkpoint directory to make; parents are made as needed.
        overwrite: Replace a checkpoint at `path`, which stays loadable until the new one is durable. Files
            in its directory that are not part of it are kept. With "damaged", replace it only if it does
            not verify: the save reads all of it first, under the name's lock.
        files: Files that belong to the checkpoint and are replaced with it, such as a `config.json` or a
            tokenizer: by name ("tokenizer/vocab.json" is in a folder), their content as bytes or the
            path to read it from, now. See `varve.files`. At most 256 MiB in all.
        allow_pickle: Store values of unknown types as pickles, instead of refusing them.
        upload_to: The name of a copy in another storage, such as "s3://bucket/run/step-100". The call returns
            when both are durable. If the upload fails, it raises, and the checkpoint at `path` stays;
            `varve.upload` makes the copy then.
        progress: Called from other threads with bytes written and bytes in all, such as `Progress()`.

    Raises:
        CheckpointExistsError: `path` holds a checkpoint and `overwrite` is false, or "damaged" and it is
            not.
        InvalidArgumentError: Something in the state cannot be stored; the message has its path.
        OutOfSpaceError, UnavailableError: Writing failed.
    """
    options = _core.SaveOptions(
        overwrite=overwrite, upload_to=target_of(upload_to), progress=progress
    )
    content = _engine.Content(state, files, allow_pickle)
    return _engine.save(
        content, path, NumpyArrays(), None, options, lambda: copy_of(path, upload_to, options)
    )


def load(
    state: Any,
    path: str | os.PathLike[str],
    *,
    strict: bool | Literal["exact"] = True,
    keys: str | Iterable[str] | None = None,
    rename: Rename | None = None,
    cast: bool = False,
    fit: Literal["exact", "overlap"] = "exact",
    allow_pickle: bool = False,
    progress: Callable[[int, int], None] | None = None,
    use_agent: bool = True,
    on_difference: Literal["keep", "first"] = "keep",
    one_will_do: str | Iterable[str] | None = None,
) -> LoadReport:
    """Fills `state` in place: arrays get the stored bytes, plain values are replaced.

    Args:
        state: A dict, or an object with `state_dict` and `load_state_dict`. Arrays must have the
            stored dtype and shape, with any strides. Two of the same memory are filled if the same
            values are stored for them.
        path: The checkpoint directory.
        strict: True refuses, before anything changes, unless everything in `state` is in the
            checkpoint and fits; what is left over there is in the report's `unexpected`. "exact"
            refuses that too. False loads what fits and reports the rest.
        keys: Fill only these entries of the destination, each a name, everything under it, or a
            glob (`*` is any run of characters, dots too). Others stay as they are.
        rename: Which entry of the destination a stored one fills: a dict of prefixes
            {stored: wanted}, of which the first that fits is applied, or a function from the stored
            name to the wanted one (None leaves it out). `keys` and the report's `missing` are names of
            the destination, `unexpected` of the checkpoint. Lists keep their length where names change.
        cast: Convert between float16, bfloat16, float32 and float64 where the stored dtype is
            another, rounding to the nearest.
        fit: "exact" wants arrays of the stored sizes. "overlap" takes other sizes too, with as many
            dimensions: it fills what both have, indices from 0 to the smaller size in each dimension, and
            leaves the rest of the array as it is. The report's `resized` names these arrays.
        allow_pickle: Open values stored as pickles. A pickle can run code: only for trusted files.
        progress: Called from other threads with bytes read and bytes in all, such as `Progress()`.
        use_agent: Read from the memory of this node's agent what it has of the checkpoint. False reads
            the disk alone, and looks for no agent. Looking takes a second at most.
        on_difference: "first" loads the value of the lowest rank where several ranks have saved different
            values under one name, which "keep" refuses in one process. See `varve.torch.load`.
        one_will_do: Names, as `keys` has them, of which the lowest rank's value will do. See `varve.torch.load`.

    Raises:
        InvalidArgumentError: Names, dtypes or shapes differ; the message has the first ten of each
            kind. Or several ranks have saved different values under one name. Or arrays of the destination share memory and cannot all be filled.
        CorruptCheckpointError: Stored bytes are damaged. The message names file, offset and tensor,
            and which arrays hold new bytes.
        CheckpointNotFoundError: There is no checkpoint at `path`.

    Warns when nothing was loaded, and when entries are left over below what was.
    """
    options = _core.LoadOptions(
        strict=strict, cast=cast, fit=fit, progress=progress, on_difference=on_difference
    )
    choice = _load.Choice(keys, rename, allow_pickle, use_agent, one_will_do=one_will_do)
    return _load.load(state, path, NumpyArrays(), None, options, choice)


def read(
    path: str | os.PathLike[str],
    keys: str | Iterable[str] | None = None,
    *,
    flat: bool = False,
    allow_pickle: bool = False,
    use_agent: bool = True,
) -> Any:
    """Builds a new state from a checkpoint, with NumPy arrays.

    Returns the tensor or value itself for a file that holds just one, as torch.save(tensor, path) writes.

    Args:
        path: The checkpoint directory.
        keys: Names to read, each a leaf, everything under it, or a glob; None reads all. A list of
            which only some items are read comes back as a dict by position.
        flat: Return a dict from full name to value rather than the nested state.
        allow_pickle: As in `load`.
        use_agent: As in `load`.

    Raises:
        UnsupportedError: A dtype NumPy lacks (install ml_dtypes), or a pickle that was not allowed.
        CheckpointNotFoundError: There is no checkpoint at `path`.
        InvalidArgumentError: Nothing in it is named as one of `keys`; the message has the nearest names.
        CorruptCheckpointError: As in `load`.
    """
    return _load.read(path, NumpyArrays(), keys, flat, allow_pickle, use_agent)


def open(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint of any format to look into it: reads its index, and no tensor.

    Example:
        >>> ckpt = varve.open("run/step-1200")  # doctest: +SKIP
        >>> for name, tensor in ckpt.tensors.items():  # doctest: +SKIP
        ...     print(name, tensor.shape, tensor.dtype, [chunk.file for chunk in tensor.chunks])
        >>> ckpt["model.layers.0.w"][2:4, :10]  # doctest: +SKIP
        >>> ckpt["step"], ckpt.format, ckpt.world_size, ckpt.save_id  # doctest: +SKIP

    Args:
        path: The checkpoint: a directory, or a file of torch.save or safetensors.
        allow_pickle: Open values stored as pickles. A pickle can run code: only for trusted files.

    Returns:
        A mapping from full name to a StoredTensor, from which slices are read as NumPy arrays, or to a plain
        value; see Checkpoint.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `path`.
        CorruptCheckpointError: Its index is damaged.
        PreconditionError: It is incomplete: files of some ranks are missing.
    """
    return open_checkpoint(path, NumpyArrays(), "numpy", allow_pickle)


_install_dcp_if_asked()  # Last: it imports varve.torch, which takes names from here.
