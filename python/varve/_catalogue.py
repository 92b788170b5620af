"""Functions for checkpoints on disk: list, verify, repair, remove, convert and compare."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from varve import _arguments, _core
from varve._core import manage
from varve._engine import path_text
from varve._files import StoredFiles
from varve._manage._policy import Keep
from varve.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    Error,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)

_LOG = logging.getLogger("varve")

#: The file of a damage in the index; none where the index cannot be read.
_OF_INDEX = ("", "manifest.bin")

_Path = str | os.PathLike[str]
_Progress = Callable[[int, int], None]


def list_checkpoints(directory: _Path) -> list[_core.CheckpointEntry]:
    """Lists checkpoints and stale files in a directory, by step, then by name."""
    return _core.list_checkpoints(path_text(directory))


def verify(path: _Path, *, progress: _Progress | None = None) -> list[_core.Damage]:
    """Re-reads every byte of a checkpoint; returns the damages, an empty list when there is none.

    Args:
        path: The checkpoint directory.
        progress: Called from other threads with bytes read and bytes in all, such as `varve.Progress()`.
    """
    return _core.verify(path_text(path), progress)


def damages_left(path: _Path) -> list[_core.Damage]:
    """Returns what `verify` finds, less what it found in a manifest that has been rebuilt."""
    try:
        damages = verify(path)
    except CorruptCheckpointError as error:
        if not mended(path, str(error)):
            raise
        damages = verify(path)
    if not damages or any(damage.file not in _OF_INDEX for damage in damages):
        return damages
    if not mended(path, damages[0].problem):
        return damages
    # Where the index cannot be read at all, nothing else was.
    return verify(path) if any(not damage.file for damage in damages) else []


def relisted(directory: _Path, entry: _core.CheckpointEntry) -> _core.CheckpointEntry:
    """Rebuilds the manifest of a checkpoint that is listed as damaged; returns its entry as it is then."""
    path = os.path.join(path_text(directory), entry.name)
    if entry.state != "damaged" or not mended(path, entry.detail):
        return entry
    return next((one for one in list_checkpoints(path) if one.name == entry.name), entry)


def names_in(folder: str) -> list[str]:
    """Returns the names in a local folder; none where there is no folder.

    Raises OSError for one that does not answer: it is not taken for one without checkpoints.
    """
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_lost(path: str) -> str | None:
    """Returns why a directory is a checkpoint that has lost its index and data; None for any other, and remote names.

    It takes an empty directory for one: the caller knows that the name is a checkpoint's.
    """
    if not os.path.isdir(path):
        return None
    if not os.listdir(path):
        return "it is an empty directory: its files have been removed"
    name = os.path.basename(os.path.abspath(path))
    for entry in _core.list_checkpoints(path):
        if entry.name == name and entry.state == "damaged":
            return entry.detail
    return None


def mended(path: _Path, problem: str) -> bool:
    """Rebuilds a damaged manifest from the headers of the data files; returns False where it cannot.

    It leaves a checkpoint alone whose varve.json is lost or damaged too: that alone names the side files.
    Other software's checkpoints have none.
    """
    try:
        repaired = _core.repair(path_text(path), without_record=False)
    except CheckpointNotFoundError:
        return False
    except Error as error:
        _LOG.warning("%s: its manifest is damaged and could not be repaired: %s", path, error)
        return False
    how = "is repaired" if repaired else "is found right when it is read again"
    _LOG.warning("%s: its manifest was damaged and %s: %s", path, how, problem)
    return True


def unread(state: str, detail: str, path: str) -> Error | None:
    """Returns the error for a checkpoint that this Varve or this process cannot read; None in other states.

    It may be whole. To take an older one in its place would lose, without a word, what was trained since.
    """
    kinds = {"unsupported": UnsupportedError, "unreadable": UnavailableError}
    return kinds[state](detail, path=path) if state in kinds else None


def repair(path: _Path) -> bool:
    """Rebuilds a checkpoint's index from its data files; True when it was not already right."""
    return _core.repair(path_text(path), without_record=True)


def collect_garbage(directory: _Path, dry_run: bool = False) -> list[str]:
    """Removes what dead saves left in a directory; returns the paths removed (or, dry, to remove)."""
    return _core.collect_garbage(path_text(directory), dry_run)


def remove(path: _Path, dry_run: bool = False) -> list[str]:
    """Removes a checkpoint's directory with all that is in it, and nothing that is no checkpoint.

    The directory loses its name before anything in it is removed: no load sees half a checkpoint,
    and `collect_garbage` finishes a removal that was interrupted. A symbolic link is removed, its
    target stays.

    Returns:
        The files that were in the directory and not part of the checkpoint, relative to it.

    Raises:
        CheckpointNotFoundError: Nothing is there.
        PreconditionError: It is no checkpoint, it is pinned, or a save of this name is under way.
    """
    return _core.remove(path_text(path), dry_run)


def latest(directory: _Path) -> str:
    """Returns the path of the newest whole checkpoint in a directory.

    The newest has the highest step or, where no name has a step, was written last. Indexes and sizes are
    checked; `verify` checks all bytes.

    Raises:
        CheckpointNotFoundError: There is none.
        UnsupportedError: A newer Varve wrote the newest.
        UnavailableError: This process may not read the newest, or an I/O error came.
    """
    return _core.latest(path_text(directory))


def steps(run: _Path) -> list[manage.RunStep]:
    """Returns the steps of a run, from the oldest to the newest, with those that are not whole.

    A step is a checkpoint in the directory `run` whose name is letters and a number behind them. What a
    job has saved that went on from an older step is newer than what it left behind.
    """
    return manage.list_steps(path_text(run))


def prune(
    run: _Path, keep: Keep, dry_run: bool = False, name: str | None = None
) -> list[manage.PrunedStep]:
    """Removes the steps of a run that no rule keeps, the oldest first; see `varve prune --help`.

    The newest whole step stays, and pinned ones, those that are being saved or read, and what is not
    whole. Returns all steps, each with whether it was removed and why not.

    Args:
        run: The directory of the steps.
        keep: The rules.
        dry_run: Remove nothing.
        name: The letters with which the names of the steps begin, such as "step-".

    Raises:
        InvalidArgumentError: `keep` has no rule.
        PreconditionError: Names begin differently, and no `name` is given.
    """
    if not keep.any:
        raise InvalidArgumentError(f"prune {run}: {keep} has no rule; all steps would stay")
    return manage.prune(path_text(run), keep.rules(), dry_run, 1.0, name, False)


def files(path: _Path) -> StoredFiles:
    """Opens the side files of a checkpoint, those that were given to `save` as `files`.

    Returns:
        A mapping from name to content. Each lookup reads the file and compares it with its checksum
        (CorruptCheckpointError).

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `path`.
    """
    return StoredFiles(path_text(path))


def convert(
    source: _Path,
    target: _Path,
    to: _core.Target,
    *,
    dtype: Any = None,
    shard_size: int = 5_000_000_000,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    everything: bool = False,
    overwrite: bool = False,
    memory_budget: int = 1 << 30,
    hf_config: _Path | None = None,
    progress: _Progress | None = None,
) -> _core.ConvertReport:
    """Writes a checkpoint of any format that Varve opens in another; see `varve convert --help`.

    Nothing of the source is run, tensors stream through bounded memory, and the target appears whole or
    not at all. Side files come along, except into a single file. Returns what was written and what was left out.

    Args:
        source: A checkpoint directory, a file of torch.save, a safetensors file or folder.
        target: The directory or, for "safetensors" and "torch", the file to write.
        to: "varve", "dcp", "safetensors", "hf" or "torch".
        dtype: Cast tensors of float16, bfloat16, float32 and float64 to this one of them: a dtype of
            torch or NumPy, or a name such as "bfloat16" or "bf16".
        shard_size: Bytes of tensors in a file; "hf" only.
        include: Globs over names; empty means all.
        exclude: Globs over names.
        rename: Names that begin with a key begin with its value instead.
        everything: "hf" writes the model only, unless `include` is given or this is True: the entry
            "model", "module", "model_state_dict" or "state_dict" of the top level if there is one,
            else all but the entries that begin with "optim". Names stay as they are; {"model.": ""}
            as `rename` takes the entry's name off.
        overwrite: Replace a checkpoint at `target`.
        memory_budget: Bytes of tensors in memory at once.
        hf_config: For "hf": a directory whose configuration and tokenizer files are copied too.
        progress: Called from other threads with bytes written and bytes in all, such as `varve.Progress()`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `source`, or nothing in it is selected.
        CheckpointExistsError: `target` exists and `overwrite` is false.
        CorruptCheckpointError: The source is damaged; nothing has been written.
        InvalidArgumentError: An argument makes no sense, or two entries would get one name.
    """
    options = _core.ConvertOptions(
        to=to,
        dtype=_arguments.dtype("dtype", dtype),
        shard_size=_arguments.count("shard_size", shard_size),
        include=_arguments.names("include", include),
        exclude=_arguments.names("exclude", exclude),
        rename=_arguments.prefixes("rename", rename),
        everything=everything,
        overwrite=overwrite,
        hf_config="" if hf_config is None else path_text(hf_config),
        memory_budget=_arguments.count("memory_budget", memory_budget),
        progress=progress,
    )
    return _core.convert(path_text(source), path_text(target), options)


def unshard(
    source: _Path,
    target: _Path,
    to: _core.Target = "torch",
    *,
    model_only: bool = False,
    olmo_safetensors: bool = False,
    dtype: Any = None,
    shard_size: int = 5_000_000_000,
    overwrite: bool = False,
    memory_budget: int = 1 << 30,
    progress: _Progress | None = None,
) -> _core.ConvertReport:
    """Writes a sharded checkpoint of any layout and world size as whole states; see `varve unshard --help`.

    "torch" writes a directory: `model.pt`, `optim.pt` and `train.pt` (rank 0's), and the source's
    `config.yaml`, which is OLMo's unsharded checkpoint. The other formats are those of `convert`, without
    what single ranks keep for themselves. Tensors stream through bounded memory, whatever the size and the
    number of ranks, and the target appears whole or not at all. Returns what was written.

    Args:
        source: A checkpoint of any format.
        target: The directory or, for "safetensors", the file to write.
        to: "torch", "safetensors", "hf", "dcp" or "varve".
        model_only: Leave out optimizer and trainer.
        olmo_safetensors: With "torch": the files of model and optimizer are `model.safetensors` and
            `optim.safetensors` in OLMo's dialect, which its FullCheckpointer prefers.
        dtype: As for `convert`; with "torch" it casts the model, not the optimizer.
        shard_size: As for `convert`.
        overwrite: Replace a checkpoint at `target`.
        memory_budget: Bytes of tensors in memory at once.
        progress: As for `convert`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `source`.
        CheckpointExistsError: `target` exists and `overwrite` is false.
        CorruptCheckpointError: The source is damaged, or some elements are in no file; nothing has been written.
        InvalidArgumentError: An argument makes no sense, or the source holds no model.
    """
    options = _core.UnshardOptions(
        to=to,
        model_only=model_only,
        olmo_safetensors=olmo_safetensors,
        dtype=_arguments.dtype("dtype", dtype),
        shard_size=_arguments.count("shard_size", shard_size),
        overwrite=overwrite,
        memory_budget=_arguments.count("memory_budget", memory_budget),
        progress=progress,
    )
    return _core.unshard(path_text(source), path_text(target), options)


def diff(a: _Path, b: _Path) -> list[_core.Difference]:
    """Compares two checkpoints of any formats by name; an empty list when all is equal.

    NaN equals NaN.
    """
    return _core.diff(path_text(a), path_text(b))
