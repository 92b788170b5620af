"""OLMo's functions for a model and its optimizer in a directory, and its classes for DCP."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn import Module
from torch.optim import Optimizer

import varve.torch.dcp as dcp
from varve.errors import CheckpointNotFoundError, UnsupportedError
from varve.olmo import _optim, _restore
from varve.olmo._checkpointer import readable, thread_count_or_default
from varve.olmo._files import PathOrStr, local_path
from varve.olmo._full import save_state
from varve.olmo._pieces import HeldModel
from varve.olmo._sharded import MODEL_AND_OPTIM_FOLDER
from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._coordinator import collective, name_of


def _refuse_upload(upload_to: str | None) -> None:
    if upload_to is not None:
        raise UnsupportedError(
            f"upload_to={upload_to!r}: a DCP directory is not copied while it is saved; copy it afterwards"
        )


def save_fsdp_model_and_optim_state(
    checkpoint_dir: PathOrStr,
    fsdp_model: Module,
    optim: Optimizer,
    *,
    upload_to: str | None = None,
    save_overwrite: bool = False,
) -> None:
    """Saves a model and its optimizer as a PyTorch Distributed Checkpoint, `model_and_optim`. Collective.

    Raises CheckpointExistsError if there is one and `save_overwrite` is false (a FileExistsError).
    `upload_to` is refused.
    """
    _refuse_upload(upload_to)
    path = os.path.join(local_path(checkpoint_dir, "checkpoint_dir"), MODEL_AND_OPTIM_FOLDER)
    with collective(None, TIMEOUT, name_of("save", path)) as coordinator:
        save_state(path, HeldModel(fsdp_model), optim, Steps(coordinator), "dcp", save_overwrite)


def load_fsdp_model_and_optim_state(
    checkpoint_dir: PathOrStr,
    fsdp_model: Module,
    optim: Optimizer,
    *,
    local_cache: PathOrStr | None = None,
    load_optimizer_state: bool = True,
) -> None:
    """Fills a model and its optimizer from the `model_and_optim` of a directory. Collective.

    Raises CheckpointNotFoundError where there is none (a FileNotFoundError).
    """
    path = os.path.join(readable(checkpoint_dir, local_cache), MODEL_AND_OPTIM_FOLDER)
    with collective(None, TIMEOUT, name_of("load", path)) as coordinator:
        _restore.restore(
            _restore.Source(path), fsdp_model, optim if load_optimizer_state else None, coordinator
        )


def load_model_state(checkpoint_dir: PathOrStr, model: Module) -> None:
    """Fills a model that is not wrapped from the `model_and_optim` of a directory, in one process."""
    path = os.path.join(local_path(checkpoint_dir, "checkpoint_dir"), MODEL_AND_OPTIM_FOLDER)
    if not os.path.isdir(path):
        raise CheckpointNotFoundError(f"load {path}: there is no such directory", path=path)
    _restore.restore(_restore.Source(path), model, None, None)


def load_fsdp_optim_state(
    fsdp_model: Module, optim: Optimizer, optim_state: dict[str, Any]
) -> None:
    """Loads an optimizer's state that is keyed by names, sharded or whole. Collective for FSDP.

    Raises WrongGroupsError where the groups differ (an AssertionError).
    """
    if isinstance(fsdp_model, FSDP):
        flat = FSDP.optim_state_dict_to_load(fsdp_model, optim, optim_state)
    else:
        flat = _numbered(HeldModel(fsdp_model), optim, optim_state)
    for entries in flat["state"].values():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                entries[key] = value.cpu()
    groups = _optim.restored_groups(optim, flat["param_groups"])
    number = 0
    for live, group in zip(optim.param_groups, groups, strict=True):
        group["params"] = list(range(number, number + len(live["params"])))
        number += len(live["params"])
    optim.load_state_dict({"state": flat["state"], "param_groups": groups})


def _numbered(held: HeldModel, optim: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    names = [name for group in _optim.names_of_groups(held, optim) for name in group]
    by_name = state["state"]
    return {
        "state": {i: dict(by_name[name]) for i, name in enumerate(names) if name in by_name},
        "param_groups": state["param_groups"],
    }


class RemoteFileSystemWriter(dcp.FileSystemWriter):
    """OLMo's storage writer for DCP; local directories. See `varve.torch.dcp.FileSystemWriter`."""

    def __init__(
        self,
        path: PathOrStr,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int | None = None,
        per_thread_copy_ahead: int = 10_000_000,
        upload_to: str | None = None,
        save_overwrite: bool = False,
    ) -> None:
        _refuse_upload(upload_to)
        if thread_count is not None:
            thread_count_or_default(thread_count)
        super().__init__(
            local_path(path, "path"),
            single_file_per_rank=single_file_per_rank,
            sync_files=sync_files,
            thread_count=thread_count or 1,
            per_thread_copy_ahead=per_thread_copy_ahead,
            overwrite=save_overwrite,
        )
        self.upload_to = None
        self.save_overwrite = save_overwrite


class RemoteFileSystemReader(dcp.FileSystemReader):
    """OLMo's storage reader for DCP; local directories. See `varve.torch.dcp.FileSystemReader`."""

    def __init__(
        self,
        path: PathOrStr,
        *,
        local_cache: PathOrStr | None = None,
        thread_count: int | None = None,
    ) -> None:
        self.thread_count = thread_count_or_default(thread_count)
        super().__init__(readable(path, local_cache))
