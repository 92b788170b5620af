"""One rank's part of a checkpoint, as the engine takes it."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from varve import _classes, _core
from varve._engine import Gathered, collector_at_rest
from varve._values import TensorLeaf
from varve.errors import InvalidArgumentError
from varve.hfai import _split
from varve.hfai._errors import ReservedKeyError, WrongTypeError
from varve.torch._tensors import TorchArrays

VERSION = "2.0.0"

#: Tensors, and containers that may hold them. A list of anything else is stored as one value.
_NESTED = (torch.Tensor, dict, list, tuple)

#: Types of values that hold no others, and of containers of which the parts keep the type.
_SIMPLE = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray))
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_SEQUENCES = (list, tuple, set, frozenset)

#: Keys of a part that are not the caller's.
RESERVED = ("model", "optimizer", "__nshards__", "__version__")


def as_list(name: str, value: Any, kind: type) -> list[Any]:
    """Returns one object of a kind, or a list of them, as a list; None as an empty one."""
    if value is None:
        return []
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in items:
        if not isinstance(item, kind):
            raise WrongTypeError(
                f"`{name}` holds a {type(item).__name__}: want a torch {kind.__name__} or a list of them"
            )
    return items


def checked_others(others: Any) -> dict[Any, Any]:
    """Returns the caller's entries. Raises WrongTypeError and ReservedKeyError."""
    if others is None:
        return {}
    if not isinstance(others, dict):
        raise WrongTypeError(f"`others` is a {type(others).__name__}: want a dict or None")
    for key in RESERVED:
        if key in others:
            raise ReservedKeyError(
                f"`others` has the key {key!r}, which the checkpoint uses itself; rename it"
            )
    return others


class PartBuilder:
    """Collects a part: its tensors by address, and the dict around them.

    Raises InvalidArgumentError, with the name, for what a part cannot hold.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        self._file = f"PART_{rank:03d}.pt"
        self._arrays = TorchArrays()
        self._count = 0
        self._names: set[str] = set()
        self.gathered = Gathered()

    def build(
        self, models: list[Module], optimizers: list[Optimizer], others: dict[Any, Any]
    ) -> Gathered:
        """Returns the part of this rank."""
        with collector_at_rest():
            part: dict[str, Any] = {"__nshards__": self._world, "__version__": VERSION}
            part["model"] = [self._model(f"model.{i}", m) for i, m in enumerate(models)]
            part["optimizer"] = [
                self._optimizer(f"optimizer.{i}", o) for i, o in enumerate(optimizers)
            ]
            if self._rank == 0:
                _check_classes(list(others), "others")
                for key, value in others.items():
                    part[key] = self._leafed(value, str(key))
            encoded = _core.encode_value(part, "", False)
            self.gathered.engine.add_object(self._file, encoded)
        return self.gathered

    def _model(self, name: str, model: Module) -> tuple[Any, dict[Any, Any]]:
        params = dict(model.state_dict())
        # A buffer that is not persistent is in no state dict.
        buffers = {key: params.pop(key) for key, _ in model.named_buffers() if key in params}
        large = {
            key: self._piece(params.pop(key), f"{name}.{key}")
            for key in list(params)
            if _split.is_large(params[key])
        }
        mine = _split.share(params, self._rank, self._world)
        if self._rank == 0:
            mine.update(buffers)
        small = collections.OrderedDict(
            (key, self._leafed(value, f"{name}.{key}")) for key, value in mine.items()
        )
        return small, large

    def _optimizer(self, name: str, optimizer: Optimizer) -> tuple[dict[Any, Any], dict[Any, Any]]:
        whole = dict(optimizer.state_dict())
        state = dict(whole.get("state", {}))
        large: dict[Any, Any] = {}
        for number, entry in state.items():
            if isinstance(entry, dict):
                state[number] = self._without_large(name, number, entry, large)
        whole["state"] = _split.share(state, self._rank, self._world)
        return self._leafed(whole, name), large

    def _without_large(
        self, name: str, number: Any, entry: dict[Any, Any], large: dict[Any, Any]
    ) -> dict[Any, Any]:
        """Moves this rank's pieces of the large tensors of one parameter to `large`."""
        left = dict(entry)
        for key, value in entry.items():
            if _split.is_large(value):
                large[number, key] = self._piece(left.pop(key), f"{name}.state.{number}.{key}")
        return left

    def _piece(self, tensor: torch.Tensor, name: str) -> tuple[torch.Size, TensorLeaf]:
        _check_plain(tensor, name)
        with torch.no_grad():
            piece = _split.piece(tensor.detach(), self._rank, self._world)
        return torch.Size(tensor.shape), self._leaf(piece, name)

    def _leafed(self, value: Any, name: str) -> Any:
        """Returns a value with its tensors replaced by leaves."""
        if isinstance(value, torch.Tensor):
            return self._leaf(value, name)
        if type(value) in (dict, collections.OrderedDict, collections.defaultdict):
            _check_classes(list(value), name)
            items = {key: self._leafed(item, f"{name}.{key}") for key, item in value.items()}
            if type(value) is collections.defaultdict:
                return collections.defaultdict(value.default_factory, items)
            return type(value)(items)
        if type(value) in (list, tuple) and any(isinstance(item, _NESTED) for item in value):
            return type(value)(self._leafed(item, f"{name}.{i}") for i, item in enumerate(value))
        self._take_name(name)
        _core.encode_value(value, name, False)  # Alone, so that an error has its name.
        _check_classes(value, name)
        return value

    def _take_name(self, name: str) -> None:
        """Refuses two entries of one name: readers could not tell them apart."""
        if name in self._names:
            raise InvalidArgumentError(
                f'two entries get the name "{name}" when the keys of their paths are joined with "."; rename '
                "one of their keys"
            )
        self._names.add(name)

    def _leaf(self, tensor: torch.Tensor, name: str) -> TensorLeaf:
        _check_plain(tensor, name)
        self._take_name(name)
        tensor = tensor.detach()
        self.gathered.keep.append(tensor)
        self._arrays.add_sources(self.gathered, f"{self._file}: {name}", tensor)
        self._count += 1
        return TensorLeaf(str(self._count - 1))


def _check_classes(value: Any, name: str) -> None:
    """Refuses objects that only their class makes: a part would have a plain value in their place."""
    kind = type(value)
    if kind in _SIMPLE:
        return
    if kind in _MAPPINGS or kind in _SEQUENCES:
        items = [*value, *value.values()] if kind in _MAPPINGS else value
        if not _SIMPLE.issuperset(map(type, items)):
            for item in items:
                _check_classes(item, name)
    elif _classes.parts(value, name, False) is not None:
        raise InvalidArgumentError(
            f'"{name}" holds a {kind.__module__}.{kind.__qualname__}: a file of hfai has plain values alone, and a load '
            "would give another type. Make it one of Python's own types, or save with varve.torch.save"
        )


def _check_plain(tensor: torch.Tensor, name: str) -> None:
    """Refuses tensors of which no rank holds the whole, and those without elements in memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise InvalidArgumentError(
            f'"{name}" is a {type(tensor).__name__}: hfai saves states that every rank holds whole, as '
            "with DistributedDataParallel; varve.torch.save saves sharded ones"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgumentError(
            f'"{name}" has the layout {tensor.layout}: Varve stores strided tensors only'
        )
    if tensor.is_meta:
        raise InvalidArgumentError(f'"{name}" is on the meta device: it has no values')
