"""`varve.hfai.load`."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module

from varve import _core, _engine, _load, _tree
from varve._engine import Filling, is_remote
from varve._values import NeedsClassesError
from varve.errors import CheckpointNotFoundError, InvalidArgumentError, UnsupportedError
from varve.hfai import _names
from varve.hfai._errors import WrongTypeError, as_hfai_raises
from varve.hfai._part import as_list
from varve.torch._devices import on_device, wanted_cuda
from varve.torch._tensors import TorchArrays

#: Where tensors go: as `map_location` of torch.load.
MapLocation = (
    torch.device | str | Mapping[str, str] | Callable[[torch.UntypedStorage, str], Any] | None
)
Names = Sequence[str] | Sequence[Sequence[str]]


def load(
    fname: str | os.PathLike[str],
    nthreads: int = 8,
    *,
    model: Module | list[Module] | None = None,
    names: Names | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Loads a checkpoint that `save`, or hfai.checkpoint 2.0.0, has written. Not collective.

    Returns a dict with "model" (a state dict, or a list where several were saved), "optimizer" (the
    same; an empty list where none was saved) and the entries of `others`. Every tensor is whole, on
    the CPU unless `map_location` says otherwise, whatever the number of ranks that saved. Nothing in
    the files is run, and stored checksums are compared.

    Args:
        fname: The checkpoint's directory, or its name in an object store ("s3://bucket/latest.pt").
        nthreads: Threads that read, 0 for none beside the caller's. It changes no result.
        model: The modules to load into. The "model" entries then have their names, of which one
            leading `module.` is ignored, and the "optimizer" entries have names in the place of
            parameter ids, as `torch.distributed.checkpoint.state_dict` gives and takes them: so
            FSDP and other layouts of ranks load them. The optimizer's groups are taken to have the
            parameters in the model's order, all of them or those that require a gradient.
        names: The parameters' names in the order of the optimizer's groups, where that is another
            one: a list, or a list of them for several optimizers.
        kwargs: The options of torch.load: `map_location`; `mmap` (True maps whole tensors into memory,
            privately and without comparing checksums; tensors in pieces are read, and all that
            `map_location` wants on a CUDA device; refused for remote names); `weights_only`
            (False lets torch.load run the pickles of entries that need classes; only for trusted
            files). `pickle_module` is refused.

    Raises:
        ValueError: `nthreads` is negative (an InvalidArgumentError).
        NoDirectoryError: There is no checkpoint (a FileNotFoundError and an AssertionError).
        PartsError: Parts are missing (an AssertionError and a FileNotFoundError).
        VersionError: It is of another version (an AssertionError).
        BrokenCheckpointError: Parts are damaged, of different saves, or contradict each other (an
            AssertionError and a RuntimeError); the message names tensor and part.
        UnsupportedError: An entry needs a class, and `weights_only` is not False.
    """
    _check_threads(nthreads)
    options = _Options(kwargs)
    where = _engine.path_text(fname)
    options.check(where)
    models = as_list("model", model, Module)
    with as_hfai_raises():
        reader = _core.Reader(where, False)
        if reader.format != "hfai":
            raise CheckpointNotFoundError(
                f"{where} is no checkpoint of hfai: it has no PART_000.pt", path=where
            )
    arrays = options.arrays(reader)
    values = _Values(reader, where, options.weights_only)
    with as_hfai_raises(stored=False):
        threads = _core.LoadOptions(strict=False, io_threads=max(nthreads, 1))
        structure, found = _load.read_entries(reader, where, arrays, None, values, threads)
    found = {
        fqn: _placed(value, options.map_location) if isinstance(value, torch.Tensor) else value
        for fqn, value in found.items()
    }
    state = _tree.build(structure, lambda fqn, _leaf: found[fqn])
    return _shaped(state, models, names)


def _check_threads(nthreads: Any) -> None:
    if not isinstance(nthreads, int) or isinstance(nthreads, bool):
        raise WrongTypeError(f"nthreads={nthreads!r}: want a number of threads")
    if nthreads < 0:
        raise InvalidArgumentError(f"nthreads={nthreads}: want 0 or more")


class _Options:
    """The arguments of torch.load. Raises InvalidArgumentError and TypeError."""

    def __init__(self, given: dict[str, Any]) -> None:
        given = dict(given)
        self.map_location: MapLocation = given.pop("map_location", None)
        self.mmap = bool(given.pop("mmap", None))
        self.weights_only = given.pop("weights_only", None)
        if given.pop("pickle_module", None) is not None:
            raise InvalidArgumentError(
                "pickle_module is refused: no pickle is run, so none is needed"
            )
        if given:
            raise WrongTypeError(
                f"load takes no argument {next(iter(given))!r}: of torch.load's it takes map_location, mmap "
                "and weights_only"
            )

    def check(self, where: str) -> None:
        """Raises InvalidArgumentError where the checkpoint of this name cannot be loaded so."""
        if self.mmap and is_remote(where):
            raise InvalidArgumentError(
                f"mmap=True: {where} is remote, and files of a disk are mapped"
            )

    def arrays(self, reader: _core.Reader) -> TorchArrays:
        """Returns what makes the tensors: on the CPU, or straight on a CUDA device that is wanted."""
        where = self.map_location
        cuda = wanted_cuda(where.get("cpu") if isinstance(where, Mapping) else where)
        if cuda is not None:
            return TorchArrays(device=cuda)
        return _Mapped(reader) if self.mmap else TorchArrays(device="cpu")


class _Mapped(TorchArrays):
    """Makes tensors that are parts of the files, mapped privately: writing to them changes no file."""

    def __init__(self, reader: _core.Reader) -> None:
        super().__init__(device="cpu")
        self._reader = reader
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._mapped: dict[int, torch.Tensor] = {}

    def create(
        self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str, like: Any = None
    ) -> Any:
        """Returns a mapped tensor, or an ordinary one where the elements are not one run of a file."""
        kind = self.dtype_at(dtype)
        place = self._reader.run_of(fqn)
        if kind is None or place is None or math.prod(shape) == 0 or place[1] % kind.itemsize:
            return super().create(fqn, dtype, shape, origin, like)
        file, begin = place
        flat = torch.empty(0, dtype=kind).set_(
            self._storage(file), begin // kind.itemsize, (math.prod(shape),), (1,)
        )
        mapped = flat.view(shape)
        self._mapped[id(mapped)] = mapped
        return mapped

    def _storage(self, file: str) -> torch.UntypedStorage:
        if file not in self._storages:
            path = os.path.join(self._reader.directory, file)
            bytes_ = os.path.getsize(path)
            mapped: Any = torch.UntypedStorage.from_file(path, False, bytes_)
            self._storages[file] = mapped
        return self._storages[file]

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds the memory to fill; a mapped tensor has none."""
        if id(tensor) not in self._mapped:
            super().add_targets(into, fqn, tensor)


class _Values:
    """Makes plain values. With `weights_only` False, those that need classes come from torch.load."""

    def __init__(self, reader: _core.Reader, where: str, weights_only: Any) -> None:
        self._reader = reader
        self._where = where
        self._weights_only = weights_only
        self._parts: list[Any] | None = None

    def __call__(self, names: list[str]) -> list[Any]:
        """Returns the values of these names."""
        try:
            return self._reader.objects(names, False)
        except NeedsClassesError:
            return [self._value(name) for name in names]

    def _value(self, name: str) -> Any:
        try:
            return self._reader.objects([name], False)[0]
        except NeedsClassesError as error:
            if self._weights_only is not False:
                raise UnsupportedError(
                    f'{self._where}: "{name}" needs {", ".join(error.classes)}, and Varve makes no objects '
                    "of other software; weights_only=False lets torch.load run the pickle, which can run "
                    "code: only for files you trust"
                ) from None
        return self._unpickled(name)

    def _unpickled(self, name: str) -> Any:
        """Returns an entry as torch.load makes it, of the first part that has it."""
        if self._parts is None:
            self._parts = [self._loaded(rank) for rank in range(self._reader.world_size)]
        for part in self._parts:
            merged = {
                **part,
                "model": [small for small, _ in part["model"]],
                "optimizer": [small for small, _ in part["optimizer"]],
            }
            for found, value in _entries(merged, None):
                if found == name:
                    return value
        raise UnsupportedError(f'{self._where}: torch.load finds no "{name}" in the parts')

    def _loaded(self, rank: int) -> Any:
        """Returns a part as torch.load makes it."""
        path = f"{self._reader.directory}/PART_{rank:03d}.pt"
        if is_remote(path):
            content = io.BytesIO(_core.storage.read_bytes(path))
            return torch.load(content, map_location="cpu", weights_only=False)
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True)


def _entries(value: Any, path: str | None) -> Iterator[tuple[str, Any]]:
    """All entries of nested dicts and lists, with their names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entries(item, _tree.join(path, str(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _entries(item, _tree.join(path, str(i)))
    if path is not None:
        yield path, value


def _placed(tensor: torch.Tensor, where: MapLocation) -> torch.Tensor:
    """Returns a tensor where map_location wants it; most are there."""
    if where is None:
        return tensor
    if isinstance(where, Mapping):
        target: Any = where.get("cpu", "cpu")
        return tensor.to(target)
    if callable(where):
        storage = where(tensor.untyped_storage(), "cpu")
        return tensor if storage is None else on_device(tensor, storage.device)
    return tensor.to(where)


def _shaped(state: dict[Any, Any], models: list[Module], names: Names | None) -> dict[str, Any]:
    """Returns the state as hfai's load returns it."""
    stored: list[dict[str, Any]] = state.pop("model")
    optimizers: list[dict[str, Any]] = [_sorted(item) for item in state.pop("optimizer")]
    if models:
        if len(models) != len(stored):
            raise InvalidArgumentError(
                f"model= has {len(models)} modules, the checkpoint {len(stored)}"
            )
        stored = [
            _names.named_model(item, module) for item, module in zip(stored, models, strict=True)
        ]
    named = _parameter_names(optimizers, models, names)
    if named is not None:
        optimizers = [
            _names.by_name(item, own) for item, own in zip(optimizers, named, strict=True)
        ]
    return {
        "model": stored[0] if len(stored) == 1 else stored,
        "optimizer": optimizers[0] if len(optimizers) == 1 else optimizers,
        **state,
    }


def _sorted(optimizer: dict[str, Any]) -> dict[str, Any]:
    """Returns an optimizer's state dict with its parameters in the order of their ids."""
    state = optimizer["state"]
    if all(isinstance(number, int) for number in state):
        optimizer["state"] = {number: state[number] for number in sorted(state)}
    return optimizer


def _parameter_names(
    optimizers: list[dict[str, Any]], models: list[Module], names: Names | None
) -> list[Sequence[str]] | None:
    """Returns the names of each optimizer's parameters; None unless the caller asked for names."""
    if names is not None:
        given: list[Any] = list(names)
        if given and all(isinstance(name, str) for name in given):
            given = [given]
        if len(given) != len(optimizers):
            raise InvalidArgumentError(
                f"names= is of {len(given)} optimizers, the checkpoint has {len(optimizers)}"
            )
        return given
    if not models:
        return None
    if len(optimizers) == len(models):
        return [
            _names.parameter_names(item, [module])
            for item, module in zip(optimizers, models, strict=True)
        ]
    if len(optimizers) <= 1:
        return [_names.parameter_names(item, models) for item in optimizers]
    raise InvalidArgumentError(
        f"the checkpoint has {len(optimizers)} optimizers and {len(models)} models: pass names=, one list "
        "for each optimizer"
    )
