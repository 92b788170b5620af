"""Loads of a model and an optimizer from a checkpoint of any of OLMo's layouts, or of Varve's own.

Each rank reads the ranges of what it holds. Nothing is gathered, no pickle is run, and the world may
be another than the one that saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from varve import _core, _engine
from varve._core import Channel
from varve._load import read_from
from varve._plain_values import plain_values
from varve.errors import CheckpointNotFoundError, CorruptCheckpointError, Error
from varve.olmo import _optim, _ranks
from varve.olmo._pieces import HeldModel, Piece, PieceArrays
from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._devices import wanted_cuda
from varve.torch._tensors import TorchArrays

_Shapes = Mapping[str, tuple[int, tuple[int, ...]]]


class Source:
    """A checkpoint that is open, of any of OLMo's layouts or of Varve's own.

    With `own_ranks` the directory may be a node's own, with the files of this rank and not of all. The
    other ranks are then those that saved.

    Raises CheckpointNotFoundError, and CorruptCheckpointError for an index that contradicts itself and
    for files that are missing.
    """

    def __init__(self, path: str, own_ranks: bool = False) -> None:
        self.path = path
        #: True where only some ranks' files are here. Each rank then loads by itself.
        self.is_own_ranks = False
        where = _engine.path_text(path)
        try:
            self.reader = _core.Reader(where, True)
        except CorruptCheckpointError:
            found = _own_ranks(where) if own_ranks else None
            if found is None:
                raise
            self.reader = found
            self.is_own_ranks = True

    def read(self, name: str, device: Any = None) -> Any:
        """Returns a part of the state, in new memory; on a CUDA `device` straight there."""
        arrays = TorchArrays(device=wanted_cuda(device))
        return read_from(self.reader, self.path, arrays, name)[name]

    def groups(self, names: list[list[str]]) -> list[dict[str, Any]]:
        """Returns the optimizer's groups. `names`: what the parameters of each group are called there."""
        found = read_from(self.reader, self.path, TorchArrays(), "optim.param_groups")["optim"]
        if "param_groups" not in found:
            return _optim.groups_of_fields(found, names)
        groups: list[dict[str, Any]] = found["param_groups"]
        return groups

    def trainer_state(self) -> dict[str, Any]:
        """Returns this rank's state of the trainer, or rank 0's where the world was smaller."""
        structure = self.reader.structure()
        names = (f"train/rank{_ranks.rank()}", "train/rank0", "train")
        name = next((name for name in names if name in structure), None)
        if name is None:
            if self.reader.format == "olmo-torch-legacy":
                return {}  # The trainer's keys stand beside "model" and "optim", and there are none.
            raise CheckpointNotFoundError(
                f"load {self.path}: there is no state of a trainer", path=self.path
            )
        found: dict[str, Any] = self.read(name) if structure[name] else {}
        return found


def _own_ranks(where: str) -> _core.Reader | None:
    """Opens what a node has, if this rank's own file is there and the world is the same."""
    try:
        reader = _core.Reader(where, False, _ranks.world_size())
    except Error:
        return None
    return reader if f"train/rank{_ranks.rank()}" in reader.structure() else None


def restore(
    source: Source,
    model: Module,
    optimizer: Optimizer | None,
    coordinator: Channel | None,
) -> None:
    """Fills a model and an optimizer in place. Collective.

    Entries of the checkpoint that the model has not are left. Floating-point tensors of another type are
    converted. Nothing changes unless everything that all ranks want is there and fits.
    """
    loads: list[_Load] = []

    def prepare() -> None:
        loads.append(_Load(source, model, optimizer))

    Steps(coordinator).each(f"load {source.path}", prepare)
    loads[0].run(coordinator)


class _Load:
    def __init__(self, source: Source, model: Module, optimizer: Optimizer | None) -> None:
        self.checkpoint = source
        self.reader = source.reader
        self.tensors: _Shapes = self.reader.tensors()
        self.objects = self.reader.object_names()
        self.held = HeldModel(model)
        self.optimizer = optimizer
        self.arrays = PieceArrays()
        self.filling = _engine.Filling()
        self.filled: list[Any] = []
        self.missing: list[str] = []
        self.mismatched: list[str] = []
        #: Stored names that are wanted though they do not fit.
        self.known: list[str] = []
        #: Stored name, without "model.", of each parameter of the model that has another one there.
        self.source = _renamed(self.held.model, self.tensors)
        self._model()
        self.new = _optim.NewState()
        self.groups: list[dict[str, Any]] = []
        if optimizer is not None:
            self._optimizer(optimizer)
        names = [name for name, _, _ in self.new.values]
        self.values = plain_values(self.reader, source.path, names, False)
        self.extra = {name: self._extra_state(name) for name in self.held.extra}
        request = self.filling.engine
        request.objects, request.ignored = names, self.known
        request.missing, request.mismatched = self.missing, self.mismatched

    def _model(self) -> None:
        for name, tensor in self.held.tensors.items():
            self._want(f"model.{self.source.get(name, name)}", tensor)

    def _extra_state(self, name: str) -> Any:
        """Returns what a module has stored beside its tensors."""
        stored = self.reader.structure().get("model", {})
        if name not in stored:
            self.missing.append(f"model.{name}")
            return None
        found = read_from(self.reader, self.checkpoint.path, TorchArrays(), f"model.{name}")
        return found["model"][name]

    def _want(self, stored: str, tensor: torch.Tensor | Piece) -> None:
        if stored not in self.tensors:
            self.missing.append(stored)
            return
        _dtype, shape = self.tensors[stored]
        if tuple(shape) != tuple(tensor.shape):
            self.mismatched.append(f"{stored} (stored {list(shape)}, wanted {list(tensor.shape)})")
            self.known.append(stored)
            return
        self.arrays.add_targets(self.filling, stored, tensor)
        self.filled.append(tensor)

    def _optimizer(self, optimizer: Optimizer) -> None:
        stored = _optim.Stored(self.tensors, self.objects)
        names = _optim.names_of_groups(self.held, optimizer)
        there = [[self.source.get(name, name) for name in own] for own in names]
        self.groups = _optim.restored_groups(optimizer, self.checkpoint.groups(there))
        # An optimizer saved without names: its numbers follow the order of the groups.
        flat = [name for own in names for name in own]
        numbered = (
            {name: str(i) for i, name in enumerate(flat)} if _only_numbers(stored.keys) else {}
        )
        number = 0
        for group, own in zip(optimizer.param_groups, self.groups, strict=True):
            own["params"] = list(range(number, number + len(group["params"])))
            for item in group["params"]:
                runs = self.held.parameters_of(item)
                self.new.add(number, item, runs, stored, self.source, self.tensors, numbered)
                number += 1
        for name, tensor in self.new.targets:
            self._want(name, tensor)

    def run(self, coordinator: Channel | None) -> None:
        options = _core.LoadOptions(strict=True, cast=True, timeout=TIMEOUT)
        try:
            self.reader.load(self.filling.engine, options, coordinator)
        finally:
            self.arrays.note_filled(self.filled)  # After an error some may have been written.
        for after in self.filling.after:
            after()
        for (_, container, key), value in zip(self.new.values, self.values, strict=True):
            container[key] = value
        for name, value in self.extra.items():
            self.held.extra[name].set_extra_state(value)
        if self.optimizer is not None:
            self.optimizer.load_state_dict({"state": self.new.state, "param_groups": self.groups})
            for parameter, key, value in self.new.alone:
                self.optimizer.state[parameter][key] = value


def _only_numbers(names: Mapping[str, Any]) -> bool:
    return bool(names) and all(name.isdigit() for name in names)


def _renamed(model: Module, tensors: _Shapes) -> dict[str, str]:
    """Returns the stored names of the parameters that had other names in an older OLMo.

    The model itself knows them: `_make_state_dict_compatible` takes a state dict and returns it with
    today's names, and which name each old one became. It is given tensors without memory.
    """
    compatible = getattr(model, "_make_state_dict_compatible", None)
    if compatible is None:
        return {}
    stored = {
        name[len("model.") :]: torch.empty(shape, device="meta")
        for name, (_dtype, shape) in tensors.items()
        if name.startswith("model.")
    }
    _state, became = compatible(stored)
    return {new: old for old, news in became.items() for new in news}
