"""FSDP1's sharded state dicts, whose shards the engine copies to the CPU.

FSDP gathers a parameter, cuts this rank's rows out of it and, with `offload_to_cpu`, copies them by
`ShardedTensor.cpu()` or `DTensor.cpu()`, which leave alone what is on the CPU. Its hook for tensor parallelism is where
rows are cut out; there they are copied before.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import _fsdp_extensions
from torch.distributed.tensor import DTensor
from torch.nn import Module

from varve.torch._devices import on_host

_by_torch: Any = _fsdp_extensions


@contextlib.contextmanager
def shards_on_host(model: Module) -> Iterator[None]:
    """Lets the engine copy what the model's sharded state dicts have of this rank."""
    changed = [
        module
        for module in model.modules()
        if isinstance(module, FSDP) and getattr(module, "_fsdp_extension", 0) is None
    ]
    for module in changed:
        module._fsdp_extension = _OnHost()
    try:
        yield
    finally:
        for module in changed:
            module._fsdp_extension = None


class _OnHost(_fsdp_extensions.FSDPExtensions):
    """As FSDP does it without an extension, but for the copies."""

    def chunk_tensor(self, *arguments: Any, **options: Any) -> Any:
        made = _by_torch._create_chunk_sharded_tensor(*arguments, **options)
        return _sharded_on_host(made)

    def chunk_dtensor(self, *arguments: Any, **options: Any) -> Any:
        made = _by_torch._create_chunk_dtensor(*arguments, **options)
        kind: Any = DTensor
        return kind(on_host(made._local_tensor), made._spec, requires_grad=False)

    def pre_flatten_transform(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    def post_unflatten_transform(self, tensor: torch.Tensor, _: Any) -> torch.Tensor:
        return tensor

    def pre_load_state_dict_transform(self, tensor: Any) -> tuple[Any, list[Shard]]:
        return tensor, tensor.local_shards()

    def all_gather_dtensor(self, *arguments: Any, **options: Any) -> Any:
        return _by_torch._all_gather_dtensor(*arguments, **options)


def _sharded_on_host(tensor: ShardedTensor) -> ShardedTensor:
    """Returns what `ShardedTensor.cpu()` does."""
    shards = [Shard(on_host(each.tensor), _placed(each.metadata)) for each in tensor.local_shards()]
    metadata = copy.copy(tensor.metadata())
    metadata.shards_metadata = [_placed(each) for each in metadata.shards_metadata]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards,
        sharded_tensor_metadata=metadata,
        process_group=tensor._process_group,
        init_rrefs=tensor._init_rrefs,
    )


def _placed(metadata: Any) -> Any:
    """Returns the metadata of a shard that is on the CPU."""
    made = copy.deepcopy(metadata)
    made.placement._device = torch.device("cpu")
    return made
