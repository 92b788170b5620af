"""Plans of loads into states of plain tensors and values, in one call of the engine for many tensors.

Torch's default planner makes some ten objects of Python for each tensor: 15 us for a load.
Nearly all states of one process hold nothing but tensors of torch itself and plain values. The planner here fills
them without an object for each step:

  - The walk gives names, paths and an order as torch's `flatten_state_dict`.
  - Tensors are filled whose dtype and shape are the stored ones. Values are read as for torch's planner.

Whatever else a state holds, torch's planner plans all of it, and reports what is wrong with it: missing names, other
shapes, names that occur twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from varve import _core
from varve._core import states
from varve._engine import collector_at_rest
from varve.torch._devices import cuda_of
from varve.torch.dcp._read import can_be_filled

_Path = tuple[str | int, ...]
_Entry = tuple[Any, Any]

#: Takes plain tensors from entries of a dict, given its name, and returns the first other entry.
_Take = Callable[[Iterator[_Entry], str | None, bool], _Entry | None]

#: Takes a leaf, given its name and path.
_TakeLeaf = Callable[[str, _Path, Any], None]


class _NotPlain(Exception):
    """The state holds what torch's planner has to plan."""


class _Walk:
    """Visits a state in the order of torch's traverse_state_dict."""

    def __init__(self, take: _Take, leaf: _TakeLeaf) -> None:
        self._take = take
        self._leaf = leaf
        self._devices = False
        #: Paths of dicts without entries.
        self.empty: list[_Path] = []

    def walk(self, state: Mapping[Any, Any], path: _Path = (), name: str | None = None) -> None:
        """Visits the entries of a dict."""
        left = iter(state.items())
        if not state:
            self.empty.append(path)
        while (other := self._take(left, name, self._devices)) is not None:
            key, value = other
            if not self._devices and _is_on_device(value):
                self._devices = True
                left = itertools.chain((other,), left)
                continue
            part = str(key)
            self._visit(part if name is None else f"{name}.{part}", (*path, part), value)

    def _visit(self, name: str, path: _Path, value: Any) -> None:
        if isinstance(value, Mapping):
            self.walk(value, path, name)
        elif isinstance(value, list) and not _is_value(value):
            for i, each in enumerate(value):
                self._visit(f"{name}.{i}", (*path, i), each)
        else:
            self._leaf(name, path, value)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda and cuda_of(value) is not None


def _is_value(items: list[Any]) -> bool:
    """Returns True for a list that is stored as one value."""
    return not any(
        isinstance(item, (torch.Tensor, Mapping))
        or (isinstance(item, list) and not _is_value(item))
        for item in items
    )


class PlainLoadPlanner(DefaultLoadPlanner):
    """The plan of a rank that fills a plain state; torch's plan for its values."""

    @staticmethod
    def of(state: dict[str, Any], reader: _core.Reader) -> PlainLoadPlanner | None:
        """Returns the plan for a state; None where torch's planner has to make it."""
        made = PlainLoadPlanner(state, reader)
        with collector_at_rest():
            try:
                made._walk(state)
            except Exception:  # Likewise.
                return None
        return made

    def __init__(self, state: dict[str, Any], reader: _core.Reader) -> None:
        super().__init__()
        self.original_state_dict = state
        self.reader = reader
        self.request = states.LoadRequest()
        self._leaves: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._keep: list[Any] = []

    def _walk(self, state: dict[str, Any]) -> None:
        objects = set(self.reader.object_names())
        if self.reader.variants():
            raise _NotPlain

        def match(entries: Iterator[_Entry], name: str | None, devices: bool) -> _Entry | None:
            return self.reader.match_plain_items(
                self.request, entries, name, self._leaves, self._keep, devices
            )

        def add(fqn: str, path: _Path, value: Any) -> None:
            if fqn in self._leaves:
                raise _NotPlain
            self._leaves[fqn] = value
            if isinstance(value, torch.Tensor):
                self._add(fqn, value)
            elif fqn in objects:
                self._values[fqn] = value
                self.mappings[fqn] = path
            else:
                raise _NotPlain

        walk = _Walk(match, add)
        walk.walk(state)
        if any(isinstance(part, int) for path in walk.empty for part in path):
            raise _NotPlain  # Torch's planner finds None in that list.
        # Torch 2.3 gave dicts of values one name: its planner looks for that where entries are left over.
        nested = bool(walk.empty) or any(len(path) > 1 for path in self.mappings.values())
        if nested and len(self._leaves) < len(self.reader.tensor_names()) + len(objects):
            raise _NotPlain

    def _add(self, fqn: str, tensor: torch.Tensor) -> None:
        """Adds a tensor in other memory than row-major, or whose name is not ASCII."""
        number, shape = self.reader.tensors([fqn]).get(fqn, (-1, ()))
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if (
            hasattr(tensor, "__create_chunk_list__")
            or not plain
            or tensor.shape != shape
            or not can_be_filled(tensor, number)
        ):
            raise _NotPlain
        memory = tensor.detach()  # Keeps it, also where the tensor gets another storage.
        self._keep.append(memory)
        strides = None if memory.is_contiguous() else memory.stride()
        self.request.add(fqn, number, shape, memory.data_ptr(), strides, cuda=cuda_of(memory))

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the state is known."""

    def create_local_plan(self) -> LoadPlan:
        """Returns a plan of the values: the engine has the tensors."""
        none = torch.Size((0,))
        return LoadPlan(
            [
                ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none)
                for index in map(MetadataIndex, self._values)
            ]
        )
