"""The part of a tensor that this rank holds, of each kind of distributed tensor."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from varve._arguments import first_names
from varve._core import states
from varve._engine import DTYPE_NUMBERS
from varve._warn import warn
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import _layout

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "NUMBERS",
    "PLAIN",
    "Part",
    "Share",
    "boxes_of",
    "check_storage",
    "cuda_device",
    "dtensor_around",
    "dtensor_class",
    "empty_beside",
    "inner_tensors",
    "is_dtensor",
    "is_shard",
    "is_sharded_tensor",
    "is_torch",
    "local_bytes",
    "overlaps",
    "place_of",
    "refuse_copy",
    "shards_of",
    "stretches_of",
    "warn_of_attributes",
]

#: The engine's numbers of the dtypes that it has.
NUMBERS: dict[torch.dtype, int] = {
    dtype: number
    for name, number in DTYPE_NUMBERS.items()
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}

#: Classes of tensors that have memory of their own.
PLAIN = (torch.Tensor, torch.nn.Parameter)

#: The attributes of torch 2.14's CheckpointableTensor protocol.
_CHECKPOINTABLE = ("global_shape", "global_offsets", "local_offsets", "local_sizes")

#: Classes that warn_of_attributes has named.
_named: set[type] = set()

#: A shard: (offsets in the whole, its memory).
_Shard = tuple[Sequence[int], torch.Tensor]


class Part:
    """This rank's shards of a tensor that no DTensor stands for: the whole's shape, and the shards."""

    __slots__ = ("dtype", "shape", "shards")

    def __init__(self, shape: Sequence[int], shards: list[_Shard], dtype: torch.dtype) -> None:
        self.shape = tuple(shape)
        self.shards = shards
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        """The bytes that this rank holds."""
        return sum(int(memory.nbytes) for _, memory in self.shards)


class Share:
    """This rank's share of a tensor that is made of others and that no DTensor stands for.

    `dims` are the stretches of each dimension of the whole that the local tensor holds.
    """

    __slots__ = ("dims", "local", "shape")

    def __init__(self, shape: Sequence[int], dims: list[_layout.Stretches], local: Any) -> None:
        self.shape = tuple(shape)
        self.dims = dims
        self.local = local


def dtensor_class() -> Any:
    """Returns the class DTensor; None where nothing has imported it, so that there are no DTensors.

    Importing it takes half as long as importing torch.
    """
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_dtensor(value: Any) -> TypeGuard[DTensor]:
    """Returns True for a DTensor."""
    kind = dtensor_class()
    return kind is not None and isinstance(value, kind)


def dtensor_around(local: Any, like: DTensor, shape: Any = None, stride: Any = None) -> DTensor:
    """Returns a DTensor of a local tensor, laid out as another one; of its shape and strides if none are given."""
    made: DTensor = dtensor_class().from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape if shape is None else shape,
        stride=like.stride() if stride is None else stride,
    )
    return made


def local_bytes(tensor: Any) -> int:
    """Returns the bytes of the shards of a tensor that this rank holds."""
    if is_dtensor(tensor):
        return int(tensor._local_tensor.nbytes)
    if is_sharded_tensor(tensor):
        return sum(int(shard.tensor.nbytes) for shard in tensor.local_shards())
    return int(tensor.nbytes) if hasattr(tensor, "nbytes") else memoryview(tensor).nbytes


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the inner tensors of this rank's part of a wrapper, none for any other tensor."""
    local: Any = tensor
    if is_dtensor(tensor):
        local = tensor._local_tensor
    if type(local) in PLAIN or not hasattr(type(local), "__tensor_flatten__") or local.is_nested:
        return []
    names, _ = local.__tensor_flatten__()
    return [getattr(local, name) for name in names]


def is_torch(value: Any) -> bool:
    """Returns True for tensors of torch of any kind."""
    return isinstance(value, (torch.Tensor, Part)) or is_sharded_tensor(value)


def is_sharded_tensor(value: Any) -> bool:
    """Returns True for a ShardedTensor. There are none where nothing has imported their module, which takes time."""
    kind = getattr(
        sys.modules.get("torch.distributed._shard.sharded_tensor"), "ShardedTensor", None
    )
    return kind is not None and isinstance(value, kind)


def is_shard(tensor: Any) -> bool:
    """Returns True for a tensor of which each rank may hold another part."""
    if type(tensor) in PLAIN:
        return _has_layout(tensor)
    if isinstance(tensor, Part) or is_sharded_tensor(tensor) or is_dtensor(tensor):
        return True
    return isinstance(tensor, torch.Tensor) and _has_layout(tensor)


def cuda_device(tensor: Any) -> int | None:
    """Returns the CUDA device that the shards this rank holds are on; None for others."""
    if is_dtensor(tensor):
        tensor = tensor._local_tensor
    if is_sharded_tensor(tensor):
        tensor = next((shard.tensor for shard in tensor.local_shards()), None)
    if isinstance(tensor, Part):
        tensor = next((memory for _, memory in tensor.shards), None)
    if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        return tensor.device.index
    return None


def refuse_copy(fqn: str, tensor: Any) -> None:
    """Refuses a destination that looks like a part of a DTensor and is a copy of it.

    torch redistributes a DTensor before it takes a slice along the sharded dimension. The slice is then a
    view of memory that nothing else holds: what a load puts there is lost.
    """
    if not is_dtensor(tensor) or not tensor._is_view():
        return
    base = tensor._base
    if not is_dtensor(base):
        return
    try:
        mine = tensor._local_tensor.untyped_storage()._cdata
        same = mine == base._local_tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return  # Of local tensors without memory of their own.
    if not same:
        raise InvalidArgumentError(
            f'tensor "{fqn}": the destination {list(tensor.shape)} is a copy, which torch made when it '
            f"redistributed the DTensor {list(base.shape)} from {base.placements} to "
            f"{tensor.placements} to take a part of it; a load would not reach that DTensor. Load into it "
            'as a whole; with fit="overlap" its size may differ from the stored one'
        )


def empty_beside(
    fqn: str, shape: Sequence[int], dtype: torch.dtype, parameter: Any
) -> torch.Tensor:
    """Returns an uninitialised tensor of an optimizer's state for a parameter, divided among ranks as that is.

    Raises InvalidArgumentError for one of another shape than a parameter that is divided.
    """
    if not is_dtensor(parameter):
        return torch.empty(shape, dtype=dtype, device=parameter.device)
    mesh, placements, sizes = parameter.device_mesh, parameter.placements, tuple(shape)
    device = parameter._local_tensor.device
    if sizes != tuple(parameter.shape):
        if math.prod(sizes) <= 1:
            return torch.empty(sizes, dtype=dtype, device=device)
        if mesh.size() > 1 and not all(each.is_replicate() for each in placements):
            raise InvalidArgumentError(
                f'tensor "{fqn}": the state has shape {list(sizes)}, its parameter {list(parameter.shape)} '
                f"is divided among the ranks as {list(placements)}, and how the state is divided is not known. Let "
                "the optimizer take a step before the load: the tensors that are there are filled"
            )
        local, stride = sizes, torch.empty(sizes, device="meta").stride()
    else:
        local, stride = tuple(parameter._local_tensor.shape), parameter.stride()
    return dtensor_around(
        torch.empty(local, dtype=dtype, device=device), parameter, torch.Size(sizes), stride
    )


def warn_of_attributes(fqn: str, tensor: Any) -> None:
    """Warns, once for each class, that attributes of a tensor of a class of its own are not stored."""
    kind = type(tensor)
    if kind in PLAIN or kind in _named or is_shard(tensor):
        return
    lost = [name for name in getattr(tensor, "__dict__", ()) if not name.startswith("_")]
    if lost:
        _named.add(kind)
        warn(
            f'tensor "{fqn}": of a {kind.__name__} the elements are saved, and not its attributes '
            f"({first_names(lost)}): a read gives a plain tensor, a load leaves those of the destination. "
            "Save them beside it, under names of their own",
            UserWarning,
        )


def _has_layout(tensor: torch.Tensor) -> bool:
    return all(hasattr(tensor, name) for name in _CHECKPOINTABLE)


def shards_of(fqn: str, tensor: Any) -> tuple[Sequence[int], list[_Shard]]:
    """Returns the whole's shape and this rank's shards of it."""
    if isinstance(tensor, Part):
        return tensor.shape, tensor.shards
    if is_dtensor(tensor):
        return tensor.shape, _dtensorshards(fqn, tensor)
    if is_sharded_tensor(tensor):
        return tensor.metadata().size, [
            (shard.metadata.shard_offsets, shard.tensor) for shard in tensor.local_shards()
        ]
    if _has_layout(tensor):
        return _checkpointableshards(fqn, tensor)
    return tensor.shape, [((0,) * tensor.dim(), tensor)]


def stretches_of(fqn: str, tensor: Any) -> list[_layout.Stretches]:
    """Returns the stretches of each dimension of a DTensor that this rank holds; its mesh has this rank."""
    return _stretches(fqn, tensor.device_mesh, tensor.placements, tensor.shape)


def place_of(mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> states.Place | None:
    """Returns the box of a DTensor that this rank holds; None for several, for none, and for what is refused."""
    if mesh.get_coordinate() is None:
        return None
    try:
        boxes = _layout.boxes(_stretches("", mesh, placements, shape))
    except (InvalidArgumentError, UnsupportedError):
        return None  # Who asks for that tensor alone raises it with its name.
    if len(boxes) != 1:
        return None
    offsets, _, sizes = boxes[0]
    return states.Place(shape, offsets, sizes)


def _stretches(
    fqn: str, mesh: Any, placements: Sequence[Any], shape: Sequence[int]
) -> list[_layout.Stretches]:
    from torch.distributed.tensor.placement_types import Partial, Shard, _StridedShard

    coordinate = mesh.get_coordinate()
    cuts: dict[int, list[_layout.Cut]] = {}
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Partial):
            raise InvalidArgumentError(
                f'tensor "{fqn}": a DTensor with a Partial placement holds unreduced sums, which no '
                "other layout could load; redistribute it to Shard or Replicate first"
            )
        if isinstance(placement, (Shard, _StridedShard)):
            pieces = int(getattr(placement, "split_factor", 1))
            cut = _layout.Cut(mesh.size(mesh_dim), coordinate[mesh_dim], pieces)
            cuts.setdefault(placement.dim % len(shape), []).append(cut)
        elif not placement.is_replicate():
            raise UnsupportedError(f'tensor "{fqn}": placement {placement} is not known')
    return [_layout.stretches(size, cuts.get(dim, ())) for dim, size in enumerate(shape)]


def boxes_of(local: torch.Tensor, dims: list[_layout.Stretches]) -> list[_Shard]:
    """Returns the boxes of a local tensor whose dimensions hold these stretches of the whole."""
    return [
        (offsets, _narrow(local, local_offsets, sizes))
        for offsets, local_offsets, sizes in _layout.boxes(dims)
    ] or [((0,) * local.dim(), local)]


def _dtensorshards(fqn: str, tensor: Any) -> list[_Shard]:
    if tensor.device_mesh.get_coordinate() is None:
        return []  # This rank is not part of the tensor's mesh.
    dims = stretches_of(fqn, tensor)
    local = tensor._local_tensor
    expected = tuple(sum(high - low for low, high in stretches) for stretches in dims)
    if tuple(local.shape) != expected and local.numel() != 0:
        raise InvalidArgumentError(
            f'tensor "{fqn}": the local shard has shape {tuple(local.shape)}, its placements '
            f"{tensor.placements} give {expected}"
        )
    if local.numel() == 0 and 0 not in tensor.shape:
        return []
    return boxes_of(local, dims)


def _checkpointableshards(fqn: str, tensor: Any) -> tuple[Sequence[int], list[_Shard]]:
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


def check_storage(fqn: str, tensor: torch.Tensor) -> None:
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


def overlaps(memory: torch.Tensor) -> bool:
    """Returns True when two elements share memory (expanded tensors): only one thread may write."""
    return any(
        stride == 0 and size > 1 for stride, size in zip(memory.stride(), memory.shape, strict=True)
    )
