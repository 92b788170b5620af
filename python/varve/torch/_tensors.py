"""Torch tensors of every kind as shards in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from varve import _core, _tree
from varve._arrays import _DLPACK, NumpyArrays
from varve._core import states
from varve._engine import DTYPE_NUMBERS, Filling, Gathered
from varve._objects import Planned, Source, Upgrade
from varve._values import LEAVES
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import _devices, _modules, _optimizers
from varve.torch._grown import Shapes, made_shape
from varve.torch._shards import (
    NUMBERS,
    Part,
    Share,
    check_storage,
    dtensor_around,
    dtensor_class,
    empty_beside,
    inner_tensors,
    is_dtensor,
    is_shard,
    is_torch,
    overlaps,
    place_of,
    refuse_copy,
    shards_of,
    warn_of_attributes,
)
from varve.torch._wrapping import Wrapping

_DTYPES: dict[int, torch.dtype] = {number: dtype for dtype, number in NUMBERS.items()}

#: The dtypes that loads with `cast` convert.
_CASTABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # Since torch 2.10.
if _exchange is not None:
    states.set_torch(
        _exchange,
        torch.Tensor,
        torch.nn.Parameter,
        {code: DTYPE_NUMBERS[name] for code, name in _DLPACK.items()},
        frozenset(NUMBERS),
    )


class TorchArrays(NumpyArrays):
    """The Arrays of `varve.torch`. NumPy arrays in a state are tensors too and come back as arrays.

    One object serves one save or load.

    Args:
        from_devices: Give tensors on CUDA devices to the engine as they are. False: by copies on the CPU
            that torch makes. None: as they are wherever there is a driver.
        device: Where `create` makes tensors; None for torch's default device.
        grown: Given where tensors may be filled in part, and keep the rest of what they hold: the shapes of
            parameters whose optimizers have nothing yet.
        cast: State of optimizers may be converted between floating-point types.
    """

    def __init__(
        self,
        from_devices: bool | None = None,
        device: Any = None,
        grown: Shapes | None = None,
        cast: bool = False,
    ) -> None:
        self._from_devices = from_devices is not False
        self._device = device
        self._grown = grown
        self._cast = cast
        #: Whether `add_plain` may take tensors on devices; known when the first comes.
        self._plain_devices = False
        #: Where this rank's boxes of DTensors are, by mesh, placements and shape.
        self._places: dict[Any, states.Place | None] = {}
        #: Copies on the CPU, by the memory that they are of: tied tensors stay tied.
        self._copies: dict[Any, torch.Tensor] = {}
        self._fresh: dict[int, torch.Tensor] = {}
        self.wrapping: _tree.Wrapping | None = Wrapping(self._fresh)
        if (dtensor := dtensor_class()) is not None:
            states.set_dtensors(dtensor, place_of)

    def is_tensor(self, value: Any) -> bool:
        """Tensors, ShardedTensors and arrays."""
        return isinstance(value, Share) or is_torch(value) or super().is_tensor(value)

    def origin(self, tensor: Any) -> str:
        """Returns the library of a read's results."""
        return "numpy" if not is_torch(tensor) else "torch"

    def add_sources(self, into: Gathered, fqn: str, tensor: Any) -> None:
        """Adds the shards this rank holds; none where it holds nothing."""
        if self._added_plain(into, fqn, tensor):
            return
        if not is_torch(tensor):
            super().add_sources(into, fqn, tensor)
            return
        _check(fqn, tensor)
        warn_of_attributes(fqn, tensor)
        shape, parts = shards_of(fqn, tensor)
        for offsets, local in parts:
            self._add_source(into, fqn, shape, offsets, local)

    def _add_source(
        self,
        into: Gathered,
        fqn: str,
        shape: Sequence[int],
        offsets: Sequence[int],
        local: torch.Tensor,
    ) -> None:
        """Adds a shard where it lies, or as a copy on the CPU."""
        cuda = self._cuda_of(local)
        memory = local if cuda is not None else self._on_cpu(into, fqn, local)
        add_shard(into, fqn, shape, offsets, memory, cuda)

    def taker(self, into: Gathered) -> _tree.Take:
        """Returns a function that adds a dict's tensors in row-major memory, whole ones and DTensors."""
        add, leaf = into.engine.add_plain_items, LEAVES["torch"]

        def take(
            entries: Any, path: str | None, names: Any, items: Any, taken: list[Any]
        ) -> tuple[Any, Any] | None:
            return self._run_of_plain(
                entries,
                lambda more, devices: add(
                    more, path, names, items, leaf, taken, devices, self._places
                ),
            )

        return take

    def matcher(self, into: Filling) -> _tree.Pair:
        """Returns a function that adds such tensors of a dict to fill."""
        add, leaf = into.engine.match_plain_items, LEAVES["torch"]

        def take(
            entries: Any, path: str | None, stored: Any, taken: list[tuple[str, Any]]
        ) -> tuple[Any, Any] | None:
            return self._run_of_plain(
                entries,
                lambda more, devices: add(
                    more, path, stored, leaf, taken, into.keep, devices, self._places
                ),
            )

        return take

    def _run_of_plain(
        self, entries: Any, add: Callable[[Any, bool], tuple[Any, Any] | None]
    ) -> tuple[Any, Any] | None:
        """Returns the first entry that `add` does not take; the first tensor on a device is tried again."""
        other = add(entries, self._plain_devices)
        while other is not None and self._may_now_be_plain(other[1]):
            entries = itertools.chain((other,), entries)
            other = add(entries, True)
        return other

    def _added_plain(self, into: Gathered | Filling, fqn: str, tensor: Any) -> bool:
        """Adds a whole tensor in row-major memory, which nearly all are; False for all others."""
        storage = into.engine.add_plain(fqn, tensor, self._plain_devices)
        if storage is None:
            if _added_quickly(into, fqn, tensor):
                return True
            if not self._may_now_be_plain(tensor):
                return False
            storage = into.engine.add_plain(fqn, tensor, True)
        into.keep.append(storage)
        return storage is not None

    def _may_now_be_plain(self, tensor: Any) -> bool:
        """Returns True for the first tensor on a device that the engine can use; from then on they are plain."""
        if self._plain_devices or not self._from_devices:
            return False
        if is_dtensor(tensor):
            tensor = tensor._local_tensor
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cuda:
            return False
        self._plain_devices = not _devices.problem()
        return self._plain_devices

    def _cuda_of(self, local: torch.Tensor) -> tuple[int, int] | None:
        """Returns device and stream of memory that the engine copies itself, else None."""
        return _devices.cuda_of(local) if self._from_devices else None

    def _note_copied(self, into: Gathered | Filling, tensor: torch.Tensor) -> None:
        """Counts a tensor of a device that torch copies, in the report."""
        if tensor.is_cuda:
            into.engine.note_copied(_devices.problem() if self._from_devices else "")

    def _on_cpu(self, into: Gathered, fqn: str, tensor: torch.Tensor) -> torch.Tensor:
        plain = _plain(fqn, tensor)
        if plain is not None:
            return plain
        self._note_copied(into, tensor)
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
        if isinstance(tensor, torch.Tensor) and (inner := inner_tensors(tensor)):
            below = tuple(self.memory(each, fqn) for each in inner)
            return None if None in below else (type(tensor), tuple(tensor.shape), below)
        shape, parts = shards_of(fqn, tensor)
        places = [(tuple(offsets), _place(local)) for offsets, local in parts]
        if not places or any(place is None for _, place in places):
            return None
        return tuple(shape), tuple(places)

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds the shards this rank wants filled; what the engine cannot reach goes by a copy on the CPU."""
        if self._added_plain(into, fqn, tensor):
            return
        if not is_torch(tensor):
            super().add_targets(into, fqn, tensor)
            return
        _check(fqn, tensor)
        refuse_copy(fqn, tensor)
        shape, parts = shards_of(fqn, tensor)
        for offsets, local in parts:
            memory, cuda = self._memory_to_fill(into, fqn, local)
            add_shard(into, fqn, shape, offsets, memory, cuda)

    def _memory_to_fill(
        self, into: Filling, fqn: str, local: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[int, int] | None]:
        """Returns the tensor itself, or a copy on the CPU: one for all names of the same memory."""
        if (cuda := self._cuda_of(local)) is not None:
            return local, cuda
        memory = _plain(fqn, local, loading=True)
        if memory is not None:
            return memory, None
        if overlaps(local):
            raise InvalidArgumentError(
                f'tensor "{fqn}": elements of the destination share memory (an expanded tensor); '
                "load into a copy of it"
            )
        self._note_copied(into, local)
        place = _place(local)
        copy = self._copies.get(place)
        if copy is None:
            copy = torch.empty(local.shape, dtype=local.dtype, device="cpu")
            if self._grown is not None:
                _copier(copy, local)()
            into.after.append(_copier(local, copy))
            if place is not None:
                self._copies[place] = copy
        return copy, None

    def create(
        self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str, like: Any = None
    ) -> Any:
        """Returns an uninitialised tensor, or an array where an array was saved."""
        if origin == "numpy":
            return super().create(fqn, dtype, shape, origin)
        if dtype not in _DTYPES:
            raise UnsupportedError(
                f'tensor "{fqn}": this torch has no dtype {_core.DTYPE_NAMES[dtype]}'
            )
        made = shape if self._grown is None else made_shape(self._grown, fqn, shape)
        if like is None or like.is_meta:
            if self._device is None:
                self._device = _default_device()
            tensor = torch.empty(made, dtype=_DTYPES[dtype], device=self._device)
        else:
            tensor = empty_beside(fqn, made, _DTYPES[dtype], like)
        return tensor if tuple(made) == tuple(shape) else tensor.zero_()

    def hollow(self, tensor: Any) -> bool:
        """Returns True for tensors on the meta device, and DTensors whose shards are there."""
        return isinstance(tensor, torch.Tensor) and tensor.is_meta

    def fresh(self, tensor: Any, dtype: int | None) -> Any:
        """Returns a tensor on the default device, or the CPU where that is meta; of a DTensor with its mesh and placements."""
        kind = tensor.dtype if dtype is None else _DTYPES[dtype]
        made: torch.Tensor
        if is_dtensor(tensor):
            device = tensor.device_mesh.device_type
            local = torch.empty(tensor._local_tensor.shape, dtype=kind, device=device)
            made = dtensor_around(local, tensor)
        else:
            made = torch.empty(tensor.shape, dtype=kind, device=_default_device())
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        self._fresh[id(made)] = made
        return made

    def dtype_of(self, tensor: Any) -> int | None:
        """Returns the engine's number of a tensor's dtype."""
        return NUMBERS.get(tensor.dtype) if is_torch(tensor) else super().dtype_of(tensor)

    def dtype_at(self, number: int) -> Any:
        """Returns the torch dtype with this number in the engine; None where there is none."""
        return _DTYPES.get(number)

    def buffers(self, value: Any) -> Iterable[str]:
        """Returns the names of a module's buffers in its state dict; none for anything else."""
        if isinstance(value, torch.nn.Module):
            for name, _ in value.named_buffers(remove_duplicate=False):
                yield name
                yield name.replace(
                    "_checkpoint_wrapped_module.", ""
                )  # It takes itself out of names.

    def is_module(self, value: Any) -> bool:
        """Returns True for torch's modules."""
        return isinstance(value, torch.nn.Module)

    def is_shard(self, tensor: Any) -> bool:
        """Returns True for a tensor of which each rank may hold another part."""
        return is_shard(tensor)

    def plan_module(
        self, module: Any, state: Any, stored: Any, path: str | None, source: Source
    ) -> Upgrade:
        """Returns what a module's hooks make of stored keys."""
        return _modules.plan(module, state, stored, path, source, _DTYPES)

    def plan_optimizer(
        self,
        value: Any,
        state: Any,
        stored: Any,
        path: str | None,
        source: Source,
        chosen: Callable[[], bool],
    ) -> Planned | None:
        """Returns what is stored for an optimizer, whose keys are all `chosen` or not; None for other objects."""
        default, overlap = _default_device(), self._grown is not None
        return _optimizers.plan(
            value, state, stored, path, source, chosen, default, self._cast, overlap
        )

    def give_back(self, value: Any, state: Any) -> None:
        """Calls `load_state_dict`; a module takes over the fresh tensors, and keeps its others.

        State of optimizers keeps the dtypes that were stored.
        """
        if not isinstance(value, torch.nn.Module):
            with _optimizers.stored_dtypes(value, _CASTABLE if self._cast else ()):
                value.load_state_dict(state)
            return
        _modules.give_back(value, state, self._fresh, self.memory)

    def note_filled(self, tensors: Iterable[Any]) -> None:
        """Marks tensors as changed: autograd refuses a backward pass with the old values."""
        changed: list[torch.Tensor] = []
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                changed.append(tensor)
                if is_dtensor(tensor):
                    changed.append(tensor._local_tensor)
            elif isinstance(tensor, Part):
                changed += [memory for _, memory in tensor.shards]
        increment_version([tensor for tensor in changed if not tensor.is_inference()])


def _default_device() -> torch.device:
    """Returns torch's default device, the CPU where that is meta, which has no memory."""
    device = torch.get_default_device()
    return torch.device("cpu") if device.type == "meta" else device


def _added_quickly(into: Gathered | Filling, fqn: str, tensor: Any) -> bool:
    """Adds a plain contiguous CPU tensor as torch before 2.10 lets it be seen; False for all others."""
    kind = type(tensor)
    if (
        _exchange is None
        and (kind is torch.Tensor or kind is torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
        and not hasattr(tensor, "global_shape")  # Asking __dict__ would make one for each tensor.
        and tensor.untyped_storage().nbytes()
        >= tensor.nbytes + tensor.storage_offset() * tensor.itemsize
    ):
        number = NUMBERS.get(tensor.dtype)
        if number is not None:
            into.engine.add(fqn, number, tensor.shape, tensor.data_ptr())
            into.keep.append(tensor.untyped_storage())
            return True
    return False


def _check(fqn: str, tensor: Any) -> None:
    """Refuses an object that has no shape."""
    if isinstance(tensor, (UninitializedBuffer, UninitializedParameter)):
        raise InvalidArgumentError(
            f'tensor "{fqn}": a lazy parameter has no shape before its module has run'
        )


def _plain(fqn: str, tensor: torch.Tensor, loading: bool = False) -> torch.Tensor | None:
    """Returns the tensor when its memory can be used as it is; None when it needs a copy."""
    if tensor.is_cpu and tensor.layout is torch.strided:
        check_storage(fqn, tensor)
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
    cuda: tuple[int, int] | None = None,
) -> None:
    """Adds the box at `offsets` of a tensor of this shape; `cuda` is device and stream of device memory."""
    _check_memory(fqn, memory)
    if cuda is not None:
        check_storage(fqn, memory)
    into.keep.append(memory)
    strides = None if memory.is_contiguous() else memory.stride()
    number, address = NUMBERS[memory.dtype], memory.data_ptr()
    into.engine.add(fqn, number, shape, address, strides, offsets, memory.shape, cuda)


def _check_memory(fqn: str, memory: torch.Tensor) -> None:
    """Refuses a tensor whose elements are not in memory as the engine stores them."""
    if memory.dtype not in NUMBERS:
        raise InvalidArgumentError(f'tensor "{fqn}": dtype {memory.dtype} is not stored')
    if memory.is_quantized:
        raise InvalidArgumentError(f'tensor "{fqn}": quantized tensors are not stored')
    if memory.data_ptr() == 0 and memory.numel() > 0:
        raise InvalidArgumentError(
            f'tensor "{fqn}": a {type(memory).__name__} has no memory of its own; save the tensors it '
            "is made of"
        )
