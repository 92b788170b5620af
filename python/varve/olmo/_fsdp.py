"""OLMo's functions for a model and its optimizer in a directory, and its classes for DCP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn import Module
from torch.optim import Optimizer

import varve.torch.dcp as dcp
from varve._arguments import RemoteOverwrite
from varve._engine import is_remote
from varve.errors import CheckpointExistsError, CheckpointNotFoundError
from varve.olmo import _optim, _restore
from varve.olmo._checkpointer import thread_count_or_default
from varve.olmo._files import PathOrStr, any_path, cache_path, joined, refuse_second_copy
from varve.olmo._full import save_state
from varve.olmo._pieces import HeldModel
from varve.olmo._remote import copy_of, make, promised, readable
from varve.olmo._sharded import MODEL_AND_OPTIM_FOLDER
from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._coordinator import collective, name_of
from varve.torch._devices import on_device, on_host


def save_fsdp_model_and_optim_state(
    checkpoint_dir: PathOrStr,
    fsdp_model: Module,
    optim: Optimizer,
    *,
    upload_to: str | None = None,
    save_overwrite: bool = False,
    remote_overwrite: RemoteOverwrite = "refuse",
) -> None:
    """Saves a model and its optimizer as a PyTorch Distributed Checkpoint, `model_and_optim`. Collective.

    Args:
        checkpoint_dir: A local directory, or a name in an object store.
        fsdp_model: The wrapped model.
        optim: Made from the wrapped model's parameters.
        upload_to: A directory, as a rule a remote one, that gets a copy of `model_and_optim`, its index last.
            If that fails, all ranks raise, and the local checkpoint stays.
        save_overwrite: Replace a checkpoint that is there.
        remote_overwrite: As `Checkpointer` takes it.

    Raises CheckpointExistsError if there is one and `save_overwrite` is false (a FileExistsError).
    """
    path = joined(any_path(checkpoint_dir, "checkpoint_dir"), MODEL_AND_OPTIM_FOLDER)
    refuse_second_copy(path, upload_to)
    copy = None
    if upload_to is not None:
        target = joined(any_path(upload_to, "upload_to"), MODEL_AND_OPTIM_FOLDER)
        copy = copy_of(os.path.realpath(path), target, save_overwrite, remote_overwrite)
    with collective(None, TIMEOUT, name_of("save", path)) as coordinator:
        steps = Steps(coordinator)
        try:
            with promised(copy, steps):
                save_state(path, HeldModel(fsdp_model), optim, steps, "dcp", save_overwrite)
        except CheckpointExistsError as error:
            raise CheckpointExistsError(
                f"{path} holds a checkpoint already; save_overwrite=True would replace it",
                path=path,
            ) from error
        if copy is not None:
            make(copy, coordinator)


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
    path = _readable_folder(checkpoint_dir, local_cache)
    with collective(None, TIMEOUT, name_of("load", path)) as coordinator:
        _restore.restore(
            _restore.Source(path), fsdp_model, optim if load_optimizer_state else None, coordinator
        )


def _readable_folder(checkpoint_dir: PathOrStr, local_cache: PathOrStr | None) -> str:
    """Returns the `model_and_optim` to read: the mirror's where that is one."""
    there = joined(any_path(checkpoint_dir, "checkpoint_dir"), MODEL_AND_OPTIM_FOLDER)
    if local_cache is None:
        return there
    return readable(there, joined(cache_path(local_cache), MODEL_AND_OPTIM_FOLDER))


def load_model_state(checkpoint_dir: PathOrStr, model: Module) -> None:
    """Fills a model that is not wrapped from the `model_and_optim` of a directory, in one process."""
    path = _readable_folder(checkpoint_dir, None)
    if not is_remote(path) and not os.path.isdir(path):
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
    theirs = {tensor.untyped_storage().data_ptr() for tensor in _tensors_in(optim_state)}
    parameters = [parameter for group in optim.param_groups for parameter in group["params"]]
    for at, entries in flat["state"].items():
        # State of the user's has other keys than numbers, and parameters that are not trained any more.
        parameter = parameters[at] if isinstance(at, int) else None
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                is_own = value.untyped_storage().data_ptr() not in theirs
                entries[key] = _beside(parameter, key, value, is_own)
    groups = _optim.restored_groups(optim, flat["param_groups"])
    number = 0
    for live, group in zip(optim.param_groups, groups, strict=True):
        group["params"] = list(range(number, number + len(live["params"])))
        number += len(live["params"])
    optim.load_state_dict({"state": flat["state"], "param_groups": groups})


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if type(value) in (torch.Tensor, torch.nn.Parameter):  # Of the others FSDP makes new ones.
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)


def _beside(
    parameter: torch.Tensor | None, key: str, value: torch.Tensor, is_own: bool
) -> torch.Tensor:
    """Returns a tensor of an optimizer's state where the optimizer will have it: `load_state_dict` copies none.

    `is_own`: the caller's state does not have its memory.
    """
    if parameter is None or key == "step" or parameter.device.type != "cuda":
        return on_host(value)
    if value.device != parameter.device:
        return on_device(value, parameter.device)
    return value if is_own else value.clone()


def _numbered(held: HeldModel, optim: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    names = [name for group in _optim.names_of_groups(held, optim) for name in group]
    by_name = state["state"]
    return {
        "state": {i: dict(by_name[name]) for i, name in enumerate(names) if name in by_name},
        "param_groups": state["param_groups"],
    }


class RemoteFileSystemWriter(dcp.FileSystemWriter):
    """OLMo's and OLMo-core's storage writer for DCP. See `varve.torch.dcp.FileSystemWriter`.

    The checkpoint is saved at `path`, a directory or a name in an object store. With `upload_to` rank 0 uploads it when it is published, `.metadata`
    last; if that fails, all ranks raise, and the checkpoint at `path` stays.

    Args:
        path: As `varve.torch.dcp.FileSystemWriter` takes it; also a `file://` URL.
        single_file_per_rank: As there.
        sync_files: As there.
        thread_count: As there, at least 1.
        per_thread_copy_ahead: As there.
        upload_to: A directory, as a rule a remote one, that gets a copy.
        save_overwrite: Replace a checkpoint at `path`.
        remote_overwrite: As `Checkpointer` takes it.
        process_count: OLMo-core's; accepted, and changes nothing, like the next two.
        process_group: Give it to the function that saves.
        throttle_uploads: OLMo-core's.
    """

    def __init__(
        self,
        path: PathOrStr,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int | None = None,
        per_thread_copy_ahead: int = 10_000_000,
        upload_to: str | None = None,
        save_overwrite: bool = False,
        *,
        remote_overwrite: RemoteOverwrite = "refuse",
        process_count: int | None = None,
        process_group: Any = None,
        throttle_uploads: bool = False,
    ) -> None:
        if thread_count is not None:
            thread_count_or_default(thread_count)
        super().__init__(
            any_path(path, "path"),
            single_file_per_rank=single_file_per_rank,
            sync_files=sync_files,
            thread_count=thread_count or 1,
            per_thread_copy_ahead=per_thread_copy_ahead,
            overwrite=save_overwrite,
        )
        refuse_second_copy(any_path(path, "path"), upload_to)
        self.upload_to = None if upload_to is None else any_path(upload_to, "upload_to")
        self.save_overwrite = save_overwrite
        self.remote_overwrite = remote_overwrite
        self.process_count = process_count
        self.process_group = process_group
        self.throttle_uploads = throttle_uploads

    def reset(self, checkpoint_id: PathOrStr | None = None) -> None:
        """Begins anew, under another name if one is given."""
        super().reset(any_path(checkpoint_id, "checkpoint_id") if checkpoint_id else None)

    def finish(self, metadata: Any, results: Any) -> None:
        """Publishes the checkpoint, and uploads it."""
        if self.upload_to is None:
            super().finish(metadata, results)
            return
        source = os.path.realpath(self.path)
        copy = copy_of(source, self.upload_to, self.save_overwrite, self.remote_overwrite)
        with promised(copy, Steps(None)):
            super().finish(metadata, results)
        make(copy, None)

    @property
    def metadata_path(self) -> str:
        """The name of the index."""
        return joined(str(self.path), ".metadata")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathOrStr) -> bool:
        """Returns True: what cannot be saved to is refused with the reason."""
        return True


class RemoteFileSystemReader(dcp.FileSystemReader):
    """OLMo's and OLMo-core's storage reader for DCP. See `varve.torch.dcp.FileSystemReader`.

    Args:
        path: A directory, local or remote.
        local_cache: A local directory to read instead, where it is a mirror of `path`; compared with it.
        thread_count: Accepted, at least 1.
        pre_download: OLMo-core's; accepted. The engine reads the ranges that are needed.
        work_dir: OLMo-core's name of `local_cache`, for `pre_download`.
    """

    def __init__(
        self,
        path: PathOrStr,
        *,
        local_cache: PathOrStr | None = None,
        thread_count: int | None = None,
        pre_download: bool = False,
        work_dir: PathOrStr | None = None,
    ) -> None:
        self.thread_count = thread_count_or_default(thread_count)
        self.cache = local_cache if local_cache is not None else work_dir
        self.pre_download = pre_download
        super().__init__(readable(path, self.cache))

    def reset(self, checkpoint_id: PathOrStr | None = None) -> None:
        """Begins anew, with another checkpoint if one is given."""
        super().reset(readable(checkpoint_id, self.cache) if checkpoint_id else None)

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint's name."""
        return str(self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathOrStr) -> bool:
        """Returns True: what cannot be read is refused with the reason."""
        return True
