"""Files of state dicts in directories, read without running their pickles."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch

import varve.torch
from varve.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    UnsupportedError,
)
from varve.olmo._pickle import sync, write
from varve.olmo._steps import Steps
from varve.torch._coordinator import collective, name_of

PathOrStr = str | os.PathLike[str]


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def local_path(path: PathOrStr, what: str) -> str:
    """Returns the path of a local directory; also of a file:// URL.

    Raises UnsupportedError for remote storage.
    """
    text = os.fspath(path)
    parts = urlsplit(text) if "://" in text else None
    if parts is None:
        return text.rstrip("/") or "/"
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path).rstrip("/") or "/"
    raise UnsupportedError(
        f"{what}={text!r}: storage of the kind {parts.scheme}:// is not supported; want a local directory"
    )


def upload_directory(upload_to: str | None) -> Path | None:
    """Returns where copies of a checkpoint's files go; None for nowhere."""
    return None if upload_to is None else Path(local_path(upload_to, "upload_to"))


def upload(source: Path, target: Path, overwrite: bool) -> None:
    """Copies a file to another local directory, whole or not at all.

    Raises CheckpointExistsError where a file is there and `overwrite` is false.
    """
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
        checkpoint_dir: Made as needed.
        fname: Relative to the directory; each rank's own.
        state_dict: Tensors on devices are copied.
        upload_to: A directory that gets a copy.
        save_overwrite: Replace a file that is there.
        synchronize: All ranks call this: when one fails, all raise. False for a call on one rank.

    Raises:
        CheckpointExistsError: The file is there and `save_overwrite` is false (a FileExistsError).
        UnsupportedError: A path is remote.
    """

    def run() -> None:
        target = Path(local_path(checkpoint_dir, "checkpoint_dir")) / fname
        copies = upload_directory(upload_to)
        if not save_overwrite and target.exists():
            raise CheckpointExistsError(
                f"save {target}: there is a file; save_overwrite=True would replace it",
                path=str(target),
            )
        write(target, state_dict)
        if copies is not None:
            upload(target, copies / fname, save_overwrite)

    if not synchronize:
        run()
        return
    with collective(None, 1800.0, name_of("save_state_dict", checkpoint_dir)) as coordinator:
        Steps(coordinator).each(f"save {checkpoint_dir}", run)


def load_state_dict(
    checkpoint_dir: PathOrStr,
    fname: str,
    *,
    local_cache: PathOrStr | None = None,
    map_location: Any = None,
) -> Any:
    """Reads the file `fname` of torch.save in a directory, and runs no pickle.

    Args:
        checkpoint_dir: A local directory.
        fname: Relative to it. The safetensors twin of OLMo's `model.pt`, `optim.pt` and `train.pt` is
            preferred where it is there.
        local_cache: A directory that is looked into first.
        map_location: A device for the tensors; None and "cpu" leave them in host memory.

    Raises:
        CheckpointNotFoundError: There is no such file (a FileNotFoundError).
        UnsupportedError: It holds objects of classes that Varve does not make; torch.load opens it, if
            you trust it.
    """
    folders = [local_path(checkpoint_dir, "checkpoint_dir")]
    if local_cache is not None:
        folders.insert(0, local_path(local_cache, "local_cache"))
    stem, extension = os.path.splitext(fname)
    for folder in folders:
        part = {"model": "model", "optim": "optim", "train": "train", "other": "train"}.get(stem)
        if (
            extension == ".pt"
            and part
            and os.path.isfile(os.path.join(folder, f"{stem}.safetensors"))
        ):
            return moved(varve.torch.read(folder, keys=part)[part], map_location)
    for folder in folders:
        path = os.path.join(folder, fname)
        if os.path.isfile(path):
            return moved(varve.torch.read(path), map_location)
    raise CheckpointNotFoundError(
        f"load {os.path.join(folders[-1], fname)}: there is no such file",
        path=os.path.join(folders[-1], fname),
    )


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
