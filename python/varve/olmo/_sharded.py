"""Checkpoints of which each rank writes its own part: torch_new, torch_legacy and local."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import (
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp._flat_param import _ShardParamInfo
from torch.nn import Module
from torch.optim import Optimizer

from varve import _core
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.olmo import _files, _optim, _ranks
from varve.olmo._apart import write_dcp
from varve.olmo._checkpointer import Checkpointer, Config, Training
from varve.olmo._directory import Directory
from varve.olmo._full import save_state
from varve.olmo._gathered import shards_on_host
from varve.olmo._pickle import on_cpu
from varve.olmo._pieces import HeldModel, Piece, unwrapped
from varve.olmo._steps import Steps
from varve.torch._devices import on_host
from varve.torch._shards import is_dtensor, shards_of

MODEL_AND_OPTIM_FOLDER = "model_and_optim"

#: The metadata of a flat parameter that `local` stores, as torch 2.1 and later have it.
_METADATA = (
    "_fqns",
    "_shard_param_offsets",
    "_shard_indices",
    "_numels",
    "_numels_with_padding",
    "_shapes",
    "_shard_numel_padded",
    "_shard_param_infos",
)


class TorchNewStyleShardedCheckpointer(Checkpointer):
    """Saves a PyTorch Distributed Checkpoint, `model_and_optim`, and each rank's `train/rank{R}.pt`."""

    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        directory.require_shared("torch_new")
        folder = directory.path / MODEL_AND_OPTIM_FOLDER
        if directory.is_shared:
            save_state(str(folder), HeldModel(training.model), training.optim, steps, "dcp")
            written = sorted(folder.iterdir()) if steps.rank == 0 else []
        else:
            written = write_dcp(folder, _sharded_state(training.model, training.optim), steps)
        for path in written:
            directory.add(path)
        self._write_files(directory, steps, {f"train/rank{_ranks.rank()}.pt": training.state})


class TorchLegacyShardedCheckpointer(Checkpointer):
    """Saves each rank's sharded state and trainer as one pickle, `rank{R}.pt`.

    `use_shared_mem_impl` is accepted and changes nothing: unsharding needs no shared memory here.
    """

    def __init__(
        self,
        cfg: Config,
        thread_count: int | None = None,
        use_shared_mem_impl: bool = False,
        *,
        class_paths: Literal["oldest", "installed"] = "oldest",
        remote_overwrite: Literal["refuse", "in_place"] = "refuse",
        upload_in_background: bool = False,
    ) -> None:
        super().__init__(
            cfg,
            thread_count,
            class_paths=class_paths,
            remote_overwrite=remote_overwrite,
            upload_in_background=upload_in_background,
        )
        self.use_shared_mem_impl = use_shared_mem_impl

    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        what = f"save {directory.path}"
        told = steps.each(what, lambda: _check_keys(training.state))
        steps.each(what, lambda: _check_same(told))
        sharded = _as_cpu(_sharded_state(training.model, training.optim))
        whole = {**sharded, **training.state}
        self._write_files(directory, steps, {f"rank{_ranks.rank()}.pt": whole})


def _check_keys(state: dict[str, Any]) -> dict[str, str]:
    """Returns what must be the same on all ranks, as text."""
    if taken := sorted({"model", "optim"} & set(state)):
        raise InvalidArgumentError(
            f"the trainer's state has the keys {taken}, which are the checkpoint's own in this layout"
        )
    return {key: repr(state[key]) for key in _core.OLMO_SAME_ON_ALL_RANKS if key in state}


def _check_same(told: list[dict[str, str]]) -> None:
    for key, value in told[0].items():
        for rank, other in enumerate(told):
            if other.get(key, value) != value:
                raise InvalidArgumentError(
                    f'the trainer\'s "{key}" is {value} on rank 0 and {other[key]} on rank {rank}: in this '
                    "layout it shows that their files belong together"
                )


def _sharded_state(model: Module, optim: Optimizer) -> dict[str, Any]:
    """Returns the state of this rank: FSDP1's shards on the CPU, all else where it is."""
    if isinstance(model, FSDP):
        with (
            shards_on_host(model),
            FSDP.state_dict_type(
                model,
                state_dict_type=StateDictType.SHARDED_STATE_DICT,
                state_dict_config=ShardedStateDictConfig(offload_to_cpu=True),
                optim_state_dict_config=ShardedOptimStateDictConfig(offload_to_cpu=True),
            ),
        ):
            return {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optim)}
    held = HeldModel(model)
    return {
        "model": dict(unwrapped(model).state_dict()),
        "optim": _optim.named_state(held, optim),
    }


def _as_cpu(value: Any) -> Any:
    """Returns a state that a file will have on the CPU."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return on_cpu(value)
    if is_dtensor(value):
        return type(value)(on_host(value._local_tensor), value._spec, requires_grad=False)
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        made = copy.copy(value)  # With the attributes that torch gives it.
        made.update((key, _as_cpu(item)) for key, item in value.items())
        return made
    if type(value) in (list, tuple):
        return type(value)(_as_cpu(item) for item in value)
    return value


class LocalShardedCheckpointer(Checkpointer):
    """Saves the memory of each rank's shards as it is: `model`, `optim` and `train/rank{R}.pt`.

    Nothing is gathered or rearranged. Here any world restores it.
    """

    def _write(self, directory: Directory, steps: Steps, training: Training) -> None:
        parts: dict[str, Any] = {}
        steps.each(f"save {directory.path}", lambda: parts.update(_parts(training)))
        parts["train"] = training.state
        rank = f"rank{_ranks.rank()}.pt"
        self._write_files(directory, steps, {f"{part}/{rank}": parts[part] for part in parts})
        if directory.is_first:
            content = f"world_size: {_ranks.world_size()}\n".encode()
            directory.add(_files.write_bytes(directory.path / "metadata.yaml", content))


def _parts(training: Training) -> dict[str, Any]:
    held = HeldModel(training.model)
    if held.extra:
        raise UnsupportedError(
            f"the model has extra states, {sorted(held.extra)}: the local layout holds tensors; use torch_new"
        )
    return {"model": _modules(training.model, held), "optim": _optimizer(held, training.optim)}


def _modules(model: Module, held: HeldModel) -> dict[str, Any]:
    """Returns the flat parameters of a model, and what is in none of them as flat ones of their own."""
    modules: list[dict[str, Any]] = []
    flat: set[int] = set()
    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FSDP) else None
        if isinstance(module, FSDP):
            handles = [] if handle is None else [_handle(handle, flat)]
            modules.append({"name": name, "handles": handles})
    own = [
        _own_handle(name, tensor)
        for name, tensor in held.tensors.items()
        if not (isinstance(tensor, Piece) and tensor.data.untyped_storage().data_ptr() in flat)
        and not isinstance(tensor, Piece)
    ]
    if own:
        modules.append({"name": "", "handles": own})
    return {"modules": modules}


def _handle(handle: Any, flat: set[int]) -> dict[str, Any]:
    parameter = handle.flat_param
    flat.add(parameter.untyped_storage().data_ptr())
    data: dict[str, Any] = {"flat_param.data": on_cpu(parameter.detach().reshape(-1))}
    for key in _METADATA:
        if hasattr(parameter, key):
            data[f"flat_param.{key}"] = getattr(parameter, key)
    return data


def _own_handle(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Returns a flat parameter with the run of one tensor that this rank holds."""
    shape, start, data = _run_of(name, tensor)
    count = data.numel()
    in_shard = count > 0 or math.prod(shape) == 0
    info = (
        _ShardParamInfo(True, 0, count, start, start + count - 1)
        if in_shard
        else _ShardParamInfo(False, None, None, None, None)
    )
    return {
        "flat_param.data": on_cpu(data),
        "flat_param._fqns": (name,),
        "flat_param._numels": (math.prod(shape),),
        "flat_param._numels_with_padding": (math.prod(shape),),
        "flat_param._shapes": (torch.Size(shape),),
        "flat_param._shard_numel_padded": 0,
        "flat_param._shard_param_infos": (info,),
    }


def _run_of(name: str, tensor: torch.Tensor) -> tuple[tuple[int, ...], int, torch.Tensor]:
    """Returns the whole's shape and the run of elements that a rank holds: first element, elements."""
    shape, shards = shards_of(name, tensor)
    if not shards:
        return tuple(shape), 0, torch.empty(0, dtype=tensor.dtype)
    offsets, local = shards[0]
    rows_only = all(
        offset == 0 and size == whole
        for offset, size, whole in zip(offsets[1:], local.shape[1:], shape[1:], strict=True)
    )
    if len(shards) > 1 or not rows_only:
        raise UnsupportedError(
            f'tensor "{name}" is sharded along another dimension than its first: the local layout stores '
            "runs of elements; use torch_new"
        )
    start = (offsets[0] if offsets else 0) * math.prod(shape[1:])
    return tuple(shape), start, local.detach().reshape(-1)


def _optimizer(held: HeldModel, optim: Optimizer) -> dict[str, Any]:
    """Returns the optimizer's own state dict, flat, with the names of its parameters."""
    saved = optim.state_dict()
    names = _optim.names_of_groups(held, optim)
    for group, own in zip(saved["param_groups"], names, strict=True):
        if len(own) != len(group["params"]):
            raise UnsupportedError(
                "FSDP with use_orig_params=False: the local layout has one name for each of the "
                "optimizer's parameters; use torch_new"
            )
        group["param_names"] = own
    by_number = dict(_numbered(saved["param_groups"]))
    state = {
        number: {key: _flat_state(by_number[number], value) for key, value in entries.items()}
        for number, entries in saved["state"].items()
    }
    return {"state": state, "param_groups": saved["param_groups"]}


def _numbered(groups: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    for group in groups:
        yield from zip(group["params"], group["param_names"], strict=True)


def _flat_state(name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    return on_cpu(_run_of(name, value)[2])
