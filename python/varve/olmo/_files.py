"""Files of state dicts in directories, read without running their pickles."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch

import varve.torch
from varve import _core, _engine
from varve._core import storage
from varve._engine import is_remote
from varve._warn import warn
from varve.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    UnsupportedError,
)
from varve.olmo._errors import network_errors
from varve.olmo._pickle import sync, write
from varve.olmo._steps import Steps
from varve.torch._coordinator import collective, name_of
from varve.torch._devices import wanted_cuda

PathOrStr = str | os.PathLike[str]


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def cache_path(local_cache: PathOrStr) -> str:
    """Returns the path of a local mirror; also of a file:// URL.

    Raises UnsupportedError for remote storage.
    """
    text = any_path(local_cache, "local_cache")
    if is_remote(text):
        raise UnsupportedError(
            f"local_cache={text!r}: want a local directory; upload_to may be remote"
        )
    return text


def any_path(path: PathOrStr, what: str) -> str:
    """Returns the name of a directory, local or remote, without slashes at its end.

    Raises UnsupportedError for storage of a kind that there is not (a NotImplementedError).
    """
    text = os.fspath(path)
    parts = urlsplit(text) if "://" in text else None
    if parts is None:
        return text.rstrip("/") or "/"
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path).rstrip("/") or "/"
    try:
        return _engine.path_text(text.rstrip("/"))
    except InvalidArgumentError as error:
        raise UnsupportedError(
            f"{what}={text!r}: storage of the kind {parts.scheme}:// is not supported ({error})"
        ) from error


def refuse_second_copy(path: str, upload_to: str | None) -> None:
    """Raises InvalidArgumentError for a copy of what is remote itself."""
    if upload_to is not None and is_remote(path):
        raise InvalidArgumentError(f"upload_to={upload_to!r}: {path!r} is remote itself")


def joined(directory: str, name: str) -> str:
    """Returns the name of a file in a directory, local or remote."""
    return f"{directory.rstrip('/')}/{name}"


def upload(source: Path, target: str, overwrite: bool) -> None:
    """Copies a file to another directory, local or remote, whole or not at all.

    Raises CheckpointExistsError where a file is there and `overwrite` is false.
    """
    if is_remote(target):
        with network_errors():
            _core.uploads.upload_file(os.fspath(source), target, overwrite)
    else:
        _copy(source, Path(target), overwrite)


def _copy(source: Path, target: Path, overwrite: bool) -> None:
    if not overwrite and target.exists():
        raise CheckpointExistsError(
            f"upload {source} to {target}: there is a file", path=str(target)
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.varve-part")
    try:
        shutil.copyfile(source, part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(target.parent)


def save_state_dict(
    checkpoint_dir: PathOrStr,
    fname: str,
    state_dict: dict[str, Any],
    *,
    upload_to: str | None = None,
    save_overwrite: bool = False,
    synchronize: bool = True,
) -> None:
    """Writes a state dict to the file `fname` in a directory, as torch.save does.

    The file is durable when this returns. It is whole or absent at any time; an older one is replaced in
    one step.

    Args:
        checkpoint_dir: Made as needed. A remote one gets the file from a temporary directory (TMPDIR).
        fname: Relative to the directory; each rank's own.
        state_dict: Tensors on devices are copied.
        upload_to: A directory, local or remote, that gets a copy. If that fails, the call raises and the
            local file stays.
        save_overwrite: Replace a file that is there.
        synchronize: All ranks call this: when one fails, all raise. False for a call on one rank.

    Raises:
        CheckpointExistsError: The file is there and `save_overwrite` is false (a FileExistsError).
        OLMoNetworkError: The remote storage could not be reached.
    """

    def run() -> None:
        directory = any_path(checkpoint_dir, "checkpoint_dir")
        refuse_second_copy(directory, upload_to)
        copies = None if upload_to is None else any_path(upload_to, "upload_to")
        if is_remote(directory):
            there = joined(directory, fname)
            if not save_overwrite and size_of(there) is not None:
                raise _is_taken(there)
            with tempfile.TemporaryDirectory(prefix="varve-olmo-") as spool:
                upload(write(Path(spool) / "state.pt", state_dict), there, save_overwrite)
            return
        target = Path(directory) / fname
        if not save_overwrite and target.exists():
            raise _is_taken(str(target))
        write(target, state_dict)
        if copies is not None:
            upload(target, joined(copies, fname), save_overwrite)

    if not synchronize:
        run()
        return
    with collective(None, 1800.0, name_of("save_state_dict", checkpoint_dir)) as coordinator:
        Steps(coordinator).each(f"save {checkpoint_dir}", run)


def _is_taken(path: str) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"save {path}: there is a file; save_overwrite=True would replace it", path=path
    )


def load_state_dict(
    checkpoint_dir: PathOrStr,
    fname: str,
    *,
    local_cache: PathOrStr | None = None,
    map_location: Any = None,
) -> Any:
    """Reads the file `fname` of torch.save in a directory, and runs no pickle.

    Args:
        checkpoint_dir: A directory, local or remote.
        fname: Relative to it. The safetensors twin of OLMo's `model.pt`, `optim.pt` and `train.pt` is
            preferred where it is there.
        local_cache: A local directory that is looked into first: a mirror of `checkpoint_dir`. Where that is remote,
            a file of another size than there is not taken.
        map_location: A device for the tensors; None and "cpu" leave them in host memory.

    Raises:
        CheckpointNotFoundError: There is no such file (a FileNotFoundError).
        UnsupportedError: It holds objects of classes that Varve does not make; torch.load opens it, if
            you trust it.
    """
    folders = [any_path(checkpoint_dir, "checkpoint_dir")]
    if local_cache is not None:
        folders.insert(0, cache_path(local_cache))
    stem, extension = os.path.splitext(fname)
    part = {"model": "model", "optim": "optim", "train": "train", "other": "train"}.get(stem)
    wanted = [f"{stem}.safetensors"] if extension == ".pt" and part else []
    for name in (*wanted, fname):
        for folder in folders:
            if not _is_there(folder, name, folders[-1]):
                continue
            with network_errors():
                cuda = wanted_cuda(map_location)
                if name == fname:
                    found = varve.torch.read(joined(folder, name), device=cuda)
                else:
                    found = varve.torch.read(folder, keys=part, device=cuda)[part]
                return moved(found, map_location)
    path = joined(folders[-1], fname)
    raise CheckpointNotFoundError(f"load {path}: there is no such file", path=path)


def _is_there(folder: str, name: str, whole: str) -> bool:
    """Returns True for a file that is there, and where it is a mirror's, as large as in the whole."""
    path = joined(folder, name)
    size = size_of(path)
    if size is None or folder == whole or not is_remote(whole):
        return size is not None
    there = size_of(joined(whole, name))
    if there != size:
        warn(
            f"{path} is not what {joined(whole, name)} is ({size} bytes, {there} there): the mirror is "
            "not used",
            UserWarning,
        )
    return there == size


def size_of(path: str) -> int | None:
    """Returns the bytes of a file, local or remote; None where there is none."""
    if not is_remote(path):
        return os.path.getsize(path) if os.path.isfile(path) else None
    with network_errors():
        try:
            return storage.size_of(path)
        except CheckpointNotFoundError:
            return None


def files_in(directory: str) -> dict[str, int]:
    """Returns the files below a directory, local or remote, with their sizes; none where there is none."""
    try:
        return _core.uploads.list_files(directory)
    except CheckpointNotFoundError:
        return {}


def moved(value: Any, device: Any) -> Any:
    """Returns a state with its tensors on a device."""
    if device is None or str(device) == "cpu":
        return value
    if callable(device) or isinstance(device, Mapping):
        raise InvalidArgumentError(f"map_location={device!r}: want a device")
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        for key, item in value.items():  # Changes no state that others hold.
            value[key] = moved(item, device)
        return value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(moved(item, device) for item in value)
    return value
