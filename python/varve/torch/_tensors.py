"""Torch tensors of every kind as shards in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from varve import _core
from varve._arrays import NumpyArrays
from varve._engine import DTYPE_NUMBERS, Filling, Gathered
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import _layout

try:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Partial, Shard, _StridedShard
except ImportError:  # A torch built without distributed.
    DTensor = None  # type: ignore[assignment,misc]
try:
    from torch.distributed._shard.sharded_tensor import ShardedTensor  # type: ignore[attr-defined]
except ImportError:
    ShardedTensor = None  # type: ignore[assignment,misc]

_NUMBERS: dict[torch.dtype, int] = {
    dtype: number
    for name, number in DTYPE_NUMBERS.items()
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
_DTYPES: dict[int, torch.dtype] = {number: dtype for dtype, number in _NUMBERS.items()}

#: The attributes of torch 2.14's CheckpointableTensor protocol.
_CHECKPOINTABLE = ("global_shape", "global_offsets", "local_offsets", "local_sizes")

#: A shard: (offsets in the whole, its memory).
_Shard = tuple[Sequence[int], torch.Tensor]


class TorchArrays(NumpyArrays):
    """The Arrays of `varve.torch`. NumPy arrays in a state are tensors too and come back as arrays.

    With `from_devices`, sources on CUDA devices are given as they are; else by a copy on the CPU. One
    object serves one save or load.
    """

    def __init__(self, from_devices: bool = False) -> None:
        self._from_devices = from_devices
        #: Copies on the CPU, by the memory that they are of: tied tensors stay tied.
        self._copies: dict[Any, torch.Tensor] = {}
        self._fresh: dict[int, torch.Tensor] = {}

    def is_tensor(self, value: Any) -> bool:
        """Tensors, ShardedTensors and arrays."""
        if isinstance(value, torch.Tensor):
            return True
        if ShardedTensor is not None and isinstance(value, ShardedTensor):
            return True
        return super().is_tensor(value)

    def origin(self, tensor: Any) -> str:
        """Returns the library of a read's results."""
        return "numpy" if not is_torch(tensor) else "torch"

    def add_sources(self, into: Gathered, fqn: str, tensor: Any) -> None:
        """Adds the shards this rank holds; none where it holds nothing."""
        if _added_quickly(into, fqn, tensor):
            return
        if not is_torch(tensor):
            super().add_sources(into, fqn, tensor)
            return
        _check(fqn, tensor)
        shape, shards = _shards(fqn, tensor)
        for offsets, local in shards:
            device = _cuda_memory(local) if self._from_devices else None
            if device is not None:
                _check_memory(fqn, local)
                into.keep.append(local)
                number, address = _NUMBERS[local.dtype], local.data_ptr()
                into.engine.add(fqn, number, shape, address, None, offsets, local.shape, device)
            else:
                add_shard(into, fqn, shape, offsets, self._on_cpu(fqn, local))

    def _on_cpu(self, fqn: str, tensor: torch.Tensor) -> torch.Tensor:
        plain = _plain(fqn, tensor)
        if plain is not None:
            return plain
        place = _place(tensor)
        if place is None:
            return _copy_to_cpu(tensor)
        if place not in self._copies:
            self._copies[place] = _copy_to_cpu(tensor)
        return self._copies[place]

    def memory(self, tensor: Any, fqn: str = "") -> Any:
        """Returns a key that is equal for tensors of one memory; None where that is unknown."""
        if not is_torch(tensor):
            return super().memory(tensor, fqn)
        _check(fqn, tensor)
        shape, shards = _shards(fqn, tensor)
        places = [(tuple(offsets), _place(local)) for offsets, local in shards]
        if not places or any(place is None for _, place in places):
            return None
        return tuple(shape), tuple(places)

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds the shards this rank wants filled; memory elsewhere is filled through a copy on the CPU."""
        if _added_quickly(into, fqn, tensor):
            return
        if not is_torch(tensor):
            super().add_targets(into, fqn, tensor)
            return
        _check(fqn, tensor)
        shape, shards = _shards(fqn, tensor)
        for offsets, local in shards:
            memory = self._memory_to_fill(fqn, local, into.after)
            add_shard(into, fqn, shape, offsets, memory)

    def _memory_to_fill(
        self, fqn: str, local: torch.Tensor, after: list[Callable[[], None]]
    ) -> torch.Tensor:
        """Returns the tensor itself, or a copy on the CPU: one for all names of the same memory."""
        memory = _plain(fqn, local, loading=True)
        if memory is not None:
            return memory
        if _overlaps(local):
            raise InvalidArgumentError(
                f'tensor "{fqn}": elements of the destination share memory (an expanded tensor); '
                "load into a copy of it"
            )
        place = _place(local)
        copy = self._copies.get(place)
        if copy is None:
            copy = torch.empty(local.shape, dtype=local.dtype, device="cpu")
            after.append(_copier(local, copy))
            if place is not None:
                self._copies[place] = copy
        return copy

    def create(self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str) -> Any:
        """Returns an uninitialised tensor on the CPU, or an array where an array was saved."""
        if origin == "numpy":
            return super().create(fqn, dtype, shape, origin)
        if dtype not in _DTYPES:
            raise UnsupportedError(
                f'tensor "{fqn}": this torch has no dtype {_core.DTYPE_NAMES[dtype]}'
            )
        return torch.empty(shape, dtype=_DTYPES[dtype])

    def hollow(self, tensor: Any) -> bool:
        """Returns True for tensors on the meta device, and DTensors whose shards are there."""
        return isinstance(tensor, torch.Tensor) and tensor.is_meta

    def fresh(self, tensor: Any, dtype: int | None) -> Any:
        """Returns a tensor on the default device; of a DTensor with its mesh and placements."""
        kind = tensor.dtype if dtype is None else _DTYPES[dtype]
        made: torch.Tensor
        if DTensor is not None and isinstance(tensor, DTensor):
            device = tensor.device_mesh.device_type
            made = DTensor.from_local(
                torch.empty(tensor._local_tensor.shape, dtype=kind, device=device),
                tensor.device_mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
        else:
            made = torch.empty(tensor.shape, dtype=kind)
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        self._fresh[id(made)] = made
        return made

    def dtype_of(self, tensor: Any) -> int | None:
        """Returns the engine's number of a tensor's dtype."""
        return _NUMBERS.get(tensor.dtype) if is_torch(tensor) else super().dtype_of(tensor)

    def dtype_at(self, number: int) -> Any:
        """Returns the torch dtype with this number in the engine; None where there is none."""
        return _DTYPES.get(number)

    def give_back(self, value: Any, state: Any) -> None:
        """Calls `load_state_dict`; a module takes over the fresh tensors, and keeps its others."""
        made = {key: item for key, item in state.items() if id(item) in self._fresh}
        if not made or not isinstance(value, torch.nn.Module):
            value.load_state_dict(state)
            return
        tied = _tied_parameters(value)
        if len(made) == len(state):
            value.load_state_dict(state, assign=True)
        else:
            value.load_state_dict(made, strict=False, assign=True)
            rest = {key: item for key, item in state.items() if key not in made}
            value.load_state_dict(rest, strict=False)
        _tie(value, tied)

    def note_filled(self, tensors: Iterable[Any]) -> None:
        """Marks tensors as changed: autograd refuses a backward pass with the old values."""
        changed: list[torch.Tensor] = []
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                changed.append(tensor)
                if DTensor is not None and isinstance(tensor, DTensor):
                    changed.append(tensor._local_tensor)
        increment_version(changed)


def _tied_parameters(module: torch.nn.Module) -> list[list[str]]:
    """Returns the names of each parameter that a module has under several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def _tie(module: torch.nn.Module, tied: list[list[str]]) -> None:
    """Makes names one parameter again that hold the same memory: assignment wraps it anew for each."""
    for first, *others in tied:
        parameter = module.get_parameter(first)
        for name in others:
            place = _place(parameter)
            if place is not None and place == _place(module.get_parameter(name)):
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, parameter)


def is_torch(value: Any) -> bool:
    """Returns True for tensors of torch of any kind."""
    return isinstance(value, torch.Tensor) or (
        ShardedTensor is not None and isinstance(value, ShardedTensor)
    )


def _added_quickly(into: Gathered | Filling, fqn: str, tensor: Any) -> bool:
    """Adds a plain contiguous CPU tensor; False for all others.

    States have tens of thousands of these, and each Python call here is paid for each of them.
    """
    kind = type(tensor)
    if (
        (kind is torch.Tensor or kind is torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
        and not hasattr(tensor, "global_shape")  # Asking __dict__ would make one for each tensor.
        and tensor.untyped_storage().nbytes()
        >= tensor.nbytes + tensor.storage_offset() * tensor.itemsize
    ):
        number = _NUMBERS.get(tensor.dtype)
        if number is not None:
            into.engine.add(fqn, number, tensor.shape, tensor.data_ptr())
            return True
    return False


def _check(fqn: str, tensor: Any) -> None:
    """Refuses an object that has no shape."""
    if isinstance(tensor, (UninitializedBuffer, UninitializedParameter)):
        raise InvalidArgumentError(
            f'tensor "{fqn}": a lazy parameter has no shape before its module has run'
        )
    if ShardedTensor is not None and isinstance(tensor, ShardedTensor):
        return  # Answers to hardly any attribute.
    if tensor.is_nested:
        raise InvalidArgumentError(
            f'tensor "{fqn}": nested tensors are not stored; convert it to a dense one'
        )


def local_bytes(tensor: Any) -> int:
    """Returns the bytes of the shards of a tensor that this rank holds."""
    if DTensor is not None and isinstance(tensor, DTensor):
        return int(tensor._local_tensor.nbytes)
    if ShardedTensor is not None and isinstance(tensor, ShardedTensor):
        return sum(int(shard.tensor.nbytes) for shard in tensor.local_shards())
    return int(tensor.nbytes) if hasattr(tensor, "nbytes") else memoryview(tensor).nbytes


def cuda_device(tensor: Any) -> int | None:
    """Returns the CUDA device that the shards this rank holds are on; None for others."""
    if DTensor is not None and isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        return tensor.device.index
    return None


def _has_layout(tensor: torch.Tensor) -> bool:
    return all(hasattr(tensor, name) for name in _CHECKPOINTABLE)


def _shards(fqn: str, tensor: Any) -> tuple[Sequence[int], list[_Shard]]:
    """Returns the whole's shape and this rank's shards of it."""
    if DTensor is not None and isinstance(tensor, DTensor):
        return tensor.shape, _dtensor_shards(fqn, tensor)
    if ShardedTensor is not None and isinstance(tensor, ShardedTensor):
        return tensor.metadata().size, [
            (shard.metadata.shard_offsets, shard.tensor) for shard in tensor.local_shards()
        ]
    if _has_layout(tensor):
        return _checkpointable_shards(fqn, tensor)
    return tensor.shape, [((0,) * tensor.dim(), tensor)]


def _dtensor_shards(fqn: str, tensor: Any) -> list[_Shard]:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []  # This rank is not part of the tensor's mesh.
    dims: list[_layout.Stretches] = [[(0, size)] for size in tensor.shape]
    for mesh_dim, placement in enumerate(tensor.placements):
        count = tensor.device_mesh.size(mesh_dim)
        index = coordinate[mesh_dim]
        if isinstance(placement, Partial):
            raise InvalidArgumentError(
                f'tensor "{fqn}": a DTensor with a Partial placement holds unreduced sums, which no '
                "other layout could load; redistribute it to Shard or Replicate first"
            )
        if isinstance(placement, _StridedShard):
            dims[placement.dim] = _layout.strided_shard(
                dims[placement.dim], count, index, int(placement.split_factor)
            )
        elif isinstance(placement, Shard):
            dims[placement.dim] = _layout.shard(dims[placement.dim], count, index)
        elif not placement.is_replicate():
            raise UnsupportedError(f'tensor "{fqn}": placement {placement} is not known')
    local = tensor._local_tensor
    expected = tuple(sum(high - low for low, high in stretches) for stretches in dims)
    if tuple(local.shape) != expected and local.numel() != 0:
        raise InvalidArgumentError(
            f'tensor "{fqn}": the local shard has shape {tuple(local.shape)}, its placements '
            f"{tensor.placements} give {expected}"
        )
    if local.numel() == 0 and 0 not in tensor.shape:
        return []
    return [
        (offsets, _narrow(local, local_offsets, sizes))
        for offsets, local_offsets, sizes in _layout.boxes(dims)
    ] or [((0,) * local.dim(), local)]


def _checkpointable_shards(fqn: str, tensor: Any) -> tuple[Sequence[int], list[_Shard]]:
    """Returns shards by the attributes: the place of each in the whole and in the local memory."""
    shape = tuple(tensor.global_shape)
    columns = [getattr(tensor, name) for name in _CHECKPOINTABLE[1:]]
    if all(not column or isinstance(column[0], int) for column in columns):
        columns = [[column] for column in columns]  # One shard, given without the outer tuple.
    if len({len(column) for column in columns}) != 1:
        raise InvalidArgumentError(
            f'tensor "{fqn}": {", ".join(_CHECKPOINTABLE[1:])} differ in length'
        )
    return shape, [
        (tuple(offsets), _narrow(tensor.detach(), local_offsets, sizes))
        for offsets, local_offsets, sizes in zip(*columns, strict=True)
    ]


def _narrow(local: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if size != local.shape[dim]:
            local = local.narrow(dim, offset, size)
    return local


def _plain(fqn: str, tensor: torch.Tensor, loading: bool = False) -> torch.Tensor | None:
    """Returns the tensor when its memory can be used as it is; None when it needs a copy."""
    if tensor.is_cpu and tensor.layout is torch.strided:
        _check_storage(fqn, tensor)
        return None if tensor.is_conj() or tensor.is_neg() else tensor
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidArgumentError(
            f'tensor "{fqn}": {tensor.layout} tensors are not stored; convert it to a dense one'
        )
    if tensor.is_meta:
        remedy = (
            "load with assign=True to replace it, or give it memory with to_empty()"
            if loading
            else "it has no values to save"
        )
        raise InvalidArgumentError(f'tensor "{fqn}" is on the meta device: {remedy}')
    return None


def _check_storage(fqn: str, tensor: torch.Tensor) -> None:
    """Refuses a tensor whose storage ends before its last element."""
    if tensor.numel() == 0:
        return
    try:
        there = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return  # Of a subclass without memory of its own: refused by its address.
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if there < needed:
        raise InvalidArgumentError(
            f'tensor "{fqn}": its shape {tuple(tensor.shape)} needs {needed} bytes of storage and '
            f"there are {there}; a sharding library may have freed it: gather or reshard it first"
        )


def _place(tensor: torch.Tensor) -> Any:
    """Returns a key that is equal for tensors of one memory; None where the address does not tell."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    if tensor.device.type not in ("cpu", "cuda", "meta") or tensor.numel() == 0:
        return None
    flags = tensor.is_conj(), tensor.is_neg()
    address = (
        (tensor.untyped_storage()._cdata, tensor.storage_offset())
        if tensor.is_meta  # It has no memory; what was one tensor still shares a storage.
        else tensor.data_ptr()
    )
    return (
        tensor.device,
        address,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        flags,
    )


def _copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def _cuda_memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    """(device, stream) of a tensor whose memory the engine can copy; None when it needs another copy.

    The stream is the current one of this thread: what the caller has queued there comes before.
    """
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or not tensor.is_cuda
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or not tensor.is_contiguous()
    ):
        return None
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream


def _overlaps(memory: torch.Tensor) -> bool:
    """Returns True when two elements share memory (expanded tensors): only one thread may write."""
    return any(
        stride == 0 and size > 1 for stride, size in zip(memory.stride(), memory.shape, strict=True)
    )


def _copier(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    def copy() -> None:
        with torch.no_grad():
            target.copy_(source)

    return copy


def add_shard(
    into: Gathered | Filling,
    fqn: str,
    shape: Sequence[int],
    offsets: Sequence[int],
    memory: torch.Tensor,
) -> None:
    """Adds the box at `offsets` of a tensor of this shape, which is in CPU memory."""
    _check_memory(fqn, memory)
    into.keep.append(memory)
    strides = None if memory.is_contiguous() else memory.stride()
    number = _NUMBERS[memory.dtype]
    into.engine.add(fqn, number, shape, memory.data_ptr(), strides, offsets, memory.shape)


def _check_memory(fqn: str, memory: torch.Tensor) -> None:
    """Refuses a tensor whose elements are not in memory as the engine stores them."""
    if memory.dtype not in _NUMBERS:
        raise InvalidArgumentError(f'tensor "{fqn}": dtype {memory.dtype} is not stored')
    if memory.is_quantized:
        raise InvalidArgumentError(f'tensor "{fqn}": quantized tensors are not stored')
    if memory.data_ptr() == 0 and memory.numel() > 0:
        raise InvalidArgumentError(
            f'tensor "{fqn}": a {type(memory).__name__} has no memory of its own; save the tensors it '
            "is made of"
        )
