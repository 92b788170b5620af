"""The tensors that a rank holds of a model and of its optimizer, by name, whatever wraps the model.

FSDP keeps the parameters of a module one after the other in a flat parameter, and each rank holds a run
of its elements. Of one parameter a rank then holds a `Piece`: a run of the whole tensor's elements in
row-major order. Ranks save and load their pieces without gathering anything. DDP and plain modules hold
whole tensors, FSDP2 holds DTensors; those are taken as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from varve._engine import Filling, Gathered
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch._tensors import TorchArrays, add_shard

try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:  # A torch without torch.distributed.
    FSDP = None  # type: ignore[assignment, misc]

#: Parts of names that wrappers add.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


class Piece:
    """A run of elements of a tensor that several ranks share.

    Attributes:
        shape: The shape of the whole tensor.
        start: The first element of the run, counted in row-major order.
        data: The elements, contiguous in one dimension. Shares the memory of the flat parameter.
    """

    def __init__(self, shape: Iterable[int], start: int, data: torch.Tensor) -> None:
        self.shape = tuple(shape)
        self.start = start
        self.data = data

    @property
    def dtype(self) -> torch.dtype:
        """The type of an element."""
        return self.data.dtype

    @property
    def is_meta(self) -> bool:
        """True for a piece without memory."""
        return self.data.is_meta

    def like(self, data: torch.Tensor) -> Piece:
        """Returns the same run with other elements: those of an optimizer's state."""
        return Piece(self.shape, self.start, data)


def boxes(shape: tuple[int, ...], start: int, count: int) -> list[tuple[list[int], list[int], int]]:
    """Splits a run of elements into boxes of the whole: offsets, sizes, first element of the run.

    At most 2 * dimensions - 1 boxes: partial rows before and after, whole rows between.
    """
    if count == 0:
        return []
    if not shape:
        return [([], [], 0)]
    row = math.prod(shape[1:])
    split: list[tuple[list[int], list[int], int]] = []
    at = start
    end = start + count
    while at < end:
        index, inside = divmod(at, row)
        if inside == 0 and end - at >= row:
            rows = (end - at) // row
            split.append(([index, *[0] * (len(shape) - 1)], [rows, *shape[1:]], at - start))
            at += rows * row
            continue
        stop = min(end, (index + 1) * row)
        for offsets, sizes, first in boxes(shape[1:], inside, stop - at):
            split.append(([index, *offsets], [1, *sizes], at - start + first))
        at = stop
    return split


class PieceArrays(TorchArrays):
    """The arrays of `varve.torch`, and pieces."""

    def is_tensor(self, value: Any) -> bool:
        """Also pieces."""
        return isinstance(value, Piece) or super().is_tensor(value)

    def origin(self, tensor: Any) -> str:
        """Pieces come back as torch's tensors."""
        return "torch" if isinstance(tensor, Piece) else super().origin(tensor)

    def add_sources(self, into: Gathered, fqn: str, tensor: Any) -> None:
        """Adds each box of a piece."""
        if not isinstance(tensor, Piece):
            super().add_sources(into, fqn, tensor)
            return
        data = tensor.data.detach()
        if data.numel() > 0:
            cuda = self._cuda_of(data)
            memory = data if cuda is not None else self._on_cpu(into, fqn, data)
            self._add(into, fqn, tensor, memory, cuda)

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds each box of a piece."""
        if not isinstance(tensor, Piece):
            super().add_targets(into, fqn, tensor)
            return
        data = tensor.data.detach()
        if data.numel() > 0:
            self._add(into, fqn, tensor, *self._memory_to_fill(into, fqn, data))

    def _add(
        self,
        into: Gathered | Filling,
        fqn: str,
        piece: Piece,
        data: torch.Tensor,
        cuda: tuple[int, int] | None,
    ) -> None:
        for offsets, sizes, first in boxes(piece.shape, piece.start, data.numel()):
            run = data[first : first + math.prod(sizes)]
            add_shard(into, fqn, piece.shape, offsets, run.view(sizes), cuda)

    def memory(self, tensor: Any, fqn: str = "") -> Any:
        """Pieces are known by their run and their memory."""
        if not isinstance(tensor, Piece):
            return super().memory(tensor, fqn)
        place = super().memory(tensor.data, fqn) if tensor.data.numel() > 0 else None
        return None if place is None else (tensor.shape, tensor.start, place)

    def note_filled(self, tensors: Iterable[Any]) -> None:
        """Marks the flat parameters as changed."""
        super().note_filled([item.data if isinstance(item, Piece) else item for item in tensors])


def clean(name: str) -> str:
    """Returns a name without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def unwrapped(model: Module) -> Module:
    """Returns the module inside DDP, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


class Parameter:
    """The part that this rank holds of one named parameter."""

    def __init__(self, name: str, held: Any) -> None:
        self.name = name
        self.held: torch.Tensor | Piece = held

    def state(self, value: torch.Tensor, begin: int) -> torch.Tensor | Piece:
        """Returns an optimizer's state of the parameter, `begin` elements into the flat one."""
        if not isinstance(self.held, Piece):
            return value
        count = self.held.data.numel()
        return self.held.like(value.reshape(-1)[begin : begin + count])


#: A named parameter, and the element at which it begins in what the optimizer has.
_Run = tuple[Parameter, int]


class HeldModel:
    """The part of a model that one rank holds.

    Attributes:
        tensors: Parameters and persistent buffers in the order of `state_dict()`, by their name
            without wrappers.
        extra: Modules that have an extra state, by its name in `state_dict()`.
        model: The module inside DDP, or the model itself.
    """

    def __init__(self, model: Module) -> None:
        self.tensors: dict[str, torch.Tensor | Piece] = {}
        self.extra: dict[str, Module] = {}
        #: By the id of an optimizer's parameter: the named parameters in it.
        self._by_parameter: dict[int, list[_Run]] = {}
        inner = unwrapped(model)
        flat = dict(_flat_parameters(inner))
        for prefix, module in inner.named_modules(remove_duplicate=False):
            for key, tensor in _entries(module):
                self._add(clean(_join(prefix, key)), tensor, flat.get(id(tensor)))
            if type(module).get_extra_state is not Module.get_extra_state:
                self.extra[clean(_join(prefix, "_extra_state"))] = module
        self.model = inner

    def _add(self, name: str, tensor: torch.Tensor, runs: list[_Run] | None) -> None:
        if runs is None:
            self.tensors[name] = tensor.detach()
            self._by_parameter.setdefault(id(tensor), [(Parameter(name, tensor), 0)])
            return
        for parameter, _ in runs:
            own = parameter.name if name.endswith("_flat_param") else name
            self.tensors[own] = parameter.held
        self._by_parameter.setdefault(id(tensor), runs)

    def parameters_of(self, parameter: torch.Tensor) -> list[_Run]:
        """Returns the named parameters in an optimizer's parameter: several in a flat one.

        Of tied ones the first name. With each, the element of the optimizer's at which it begins.

        Raises InvalidArgumentError for one that is not the model's.
        """
        found = self._by_parameter.get(id(parameter))
        if found is None:
            raise InvalidArgumentError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not one of the "
                "model's: make the optimizer from the parameters of the wrapped model"
            )
        return found


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _entries(module: Module) -> Iterator[tuple[str, torch.Tensor]]:
    for key, parameter in module._parameters.items():
        if parameter is not None:
            yield key, parameter
    for key, buffer in module._buffers.items():
        if buffer is not None and key not in module._non_persistent_buffers_set:
            yield key, buffer


def _flat_parameters(model: Module) -> Iterator[tuple[int, list[_Run]]]:
    """Yields the parameters of FSDP1's flat parameters, by the id of what an optimizer holds."""
    if FSDP is None:
        return
    for prefix, module in model.named_modules(remove_duplicate=False):
        handle = getattr(module, "_handle", None) if isinstance(module, FSDP) else None
        if handle is None:
            continue
        flat = handle.flat_param
        pieces = list(_runs(prefix, handle))
        if not handle._use_orig_params:
            yield id(flat), pieces
            continue
        for original, (parameter, _begin) in zip(flat._params, pieces, strict=True):
            yield id(original), [(parameter, 0)]
        by_name = {parameter.name: parameter for parameter, _ in pieces}
        for original, info in zip(flat._shared_params, flat._shared_param_infos, strict=True):
            owner = _join(info.prim_module_name, info.prim_param_name)
            yield id(original), [(by_name[clean(_join(prefix, owner))], 0)]


def _runs(prefix: str, handle: Any) -> Iterator[_Run]:
    """Yields the run of each parameter that this rank's part of a flat parameter has."""
    flat = handle.flat_param
    local = flat.detach() if flat.dim() == 1 else flat.detach().reshape(-1)
    if not hasattr(flat, "_shard_param_infos"):
        raise UnsupportedError(
            "this version of FSDP has no _shard_param_infos: torch 2.1 is the oldest"
        )
    begin = 0
    places = []  # Of each parameter in the whole flat one; padding lies between.
    for count, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            places.append((begin, count))
        begin += count
    rows = zip(flat._fqns, flat._shapes, places, flat._shard_param_infos, strict=True)
    for fqn, shape, (place, count), info in rows:
        at, start, size = 0, 0, 0
        if not handle.uses_sharded_strategy:
            at, size = place, count
        elif info.in_shard:
            at, start, size = info.offset_in_shard, info.intra_param_start_idx, info.numel_in_shard
        piece = Piece(shape, start, local[at : at + size])
        yield Parameter(clean(_join(prefix, fqn)), piece), at
