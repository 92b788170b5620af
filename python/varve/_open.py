"""Inspection of a checkpoint: names, shapes, layout, plain values, and slices of tensors."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from varve import _arguments, _core
from varve._engine import Arrays, Filling, path_text
from varve._files import StoredFiles
from varve._plain_values import plain_values
from varve.errors import InvalidArgumentError


@dataclass(frozen=True)
class _Source:
    """State that all parts of one open checkpoint share."""

    path: str
    reader: _core.Reader
    arrays: Arrays
    origin: str
    allow_pickle: bool


class StoredTensor:
    """A tensor of an open checkpoint. Its elements are read when it is indexed, not before.

    Indexing takes what NumPy's basic indexing takes, with step 1 only: ints, slices with start and
    stop, `...`, and tuples of these. It reads the blocks that hold the chosen elements, compares them
    with their checksums, and returns a new array (`varve.open`) or CPU tensor (`varve.torch.open`).
    Threads: any.

    Example:
        >>> import os, tempfile, numpy as np, varve
        >>> path = os.path.join(tempfile.mkdtemp(), "step-1")
        >>> _ = varve.save({"w": np.arange(12.0).reshape(3, 4)}, path)
        >>> varve.open(path)["w"][1:, 0]
        array([4., 8.])

    Raises, when it is indexed:
        IndexError: An index beyond the tensor, or more of them than it has dimensions.
        InvalidArgumentError: A step other than 1, or an index of another type.
        CorruptCheckpointError: Stored bytes are damaged.
        UnsupportedError: NumPy has no such dtype; see `dtype`.
    """

    def __init__(self, source: _Source, name: str) -> None:
        self._source = source
        self._number, self._shape = source.reader.tensors([name])[name]
        self._name = name

    @property
    def name(self) -> str:
        """The full name in the checkpoint."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._shape

    @property
    def dtype(self) -> Any:
        """The dtype of NumPy or torch; its name as a str where that library has none."""
        return self._source.arrays.dtype_at(self._number) or _core.DTYPE_NAMES[self._number]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * _core.DTYPE_SIZES[self._number]

    @property
    def chunks(self) -> list[_core.StoredChunk]:
        """The pieces in which it is stored, by their offsets."""
        return self._source.reader.chunks(self._name)

    def __getitem__(self, index: Any) -> Any:
        source = self._source
        box = _Box(f'{source.path}: "{self._name}"', self._shape, index)
        made = source.arrays.create(self._name, self._number, box.sizes, source.origin)
        if math.prod(box.sizes):
            filling = Filling()
            source.arrays.add_targets(filling, self._name, made)
            filling.engine.place(self._shape, box.offsets)
            source.reader.read_into(filling.engine)
            for run in filling.after:
                run()
        made = made.reshape(box.shape)
        return made[()] if box.is_scalar else made

    def __repr__(self) -> str:
        dtype = _core.DTYPE_NAMES[self._number]
        return f"<stored tensor {self._name!r}: {dtype}{list(self._shape)}>"


class _Box:
    """The part of a tensor that an index chooses.

    Attributes:
        offsets: First index, one for each dimension of the tensor.
        sizes: Elements, one for each dimension of the tensor.
        shape: Of the result: dimensions that an int chose from are left out.
        is_scalar: The index names one element.
    """

    def __init__(self, what: str, whole: tuple[int, ...], index: Any) -> None:
        items = index if isinstance(index, tuple) else (index,)
        self.is_scalar = not any(item is ... for item in items)
        given = [item for item in items if item is not ...]
        if len(given) > len(whole):
            raise IndexError(
                f"{what}: {len(given)} indices for a tensor of {len(whole)} dimensions"
            )
        if len(items) - len(given) > 1:
            raise IndexError(f"{what}: an index has at most one ellipsis ('...')")
        rest = [slice(None)] * (len(whole) - len(given))
        at = next((i for i, item in enumerate(items) if item is ...), len(given))
        self.offsets: list[int] = []
        self.sizes: tuple[int, ...] = ()
        self.shape: tuple[int, ...] = ()
        for dim, item in enumerate((*given[:at], *rest, *given[at:])):
            begin, size, stays = _range_of(f"{what}, dimension {dim}", item, whole[dim])
            self.offsets.append(begin)
            self.sizes += (size,)
            if stays:
                self.shape += (size,)
        self.is_scalar = self.is_scalar and not self.shape


def _range_of(what: str, item: Any, size: int) -> tuple[int, int, bool]:
    """First index, number of elements, and whether the dimension stays."""
    if isinstance(item, slice):
        try:
            begin, end, step = item.indices(size)
        except (TypeError, ValueError):
            step = 0
        if step != 1:
            raise InvalidArgumentError(
                f"{what}: {item} has not step 1; read the range and take the step from the result"
            )
        return begin, max(end - begin, 0), True
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: {_arguments.shown(item)} is no index here: want ints, slices with step 1 and "
            "'...'; read the range and index the result"
        ) from None
    if not -size <= number < size:
        raise IndexError(f"{what}: index {number} is out of bounds for size {size}")
    return number % size, 1, False


class _Entries(Mapping[str, Any]):
    """Entries of an open checkpoint by name; a subclass says how one is looked up."""

    def __init__(self, source: _Source, names: dict[str, bool]) -> None:
        self._source = source
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._entry(name)

    def _entry(self, name: str) -> Any:
        if self._names[name]:
            return StoredTensor(self._source, name)
        source = self._source
        return plain_values(source.reader, source.path, [name], source.allow_pickle)[0]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<{len(self)} entries of {self._source.path}>"


class Checkpoint(_Entries):
    """An open checkpoint of any format, as `open` returns it: its index, and no tensor's elements.

    A mapping from full name to entry, in natural order ("layers.2" before "layers.10"). The entry of a
    tensor is a StoredTensor; the entry of a plain value is the value, which is read at each lookup.
    It keeps no file open. Reads of a checkpoint in Varve's own format that was replaced since it was
    opened raise PreconditionError.
    Threads: any.
    """

    def __init__(self, source: _Source) -> None:
        super().__init__(source, dict(source.reader.names()))

    @property
    def path(self) -> str:
        """The path that was opened, as the engine knows it."""
        return self._source.path

    @property
    def directory(self) -> str:
        """The directory that the names of data files begin in.

        Another one than `path` after an overwrite that was interrupted, and in an object store.
        """
        return self._source.reader.files_directory

    @property
    def format(self) -> str:
        """The format: "varve", "dcp", "safetensors" or "torch"."""
        return self._source.reader.format

    @property
    def save_id(self) -> str | None:
        """The 32 hex digits that all files of the save carry; None in formats without."""
        return self._source.reader.save_id

    @property
    def world_size(self) -> int:
        """Number of ranks that saved it."""
        return self._source.reader.world_size

    @property
    def step(self) -> int | None:
        """The training step in the checkpoint's name; None where the name has none."""
        return _core.step_from_name(os.path.basename(self._source.path))

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return self._source.reader.bytes

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The tensors alone, by name."""
        return _Entries(self._source, {name: True for name, kind in self._names.items() if kind})

    @cached_property
    def plain_values(self) -> Mapping[str, Any]:
        """The plain values alone, by name; each is read at its lookup."""
        return _Entries(
            self._source, {name: False for name, kind in self._names.items() if not kind}
        )

    @cached_property
    def files(self) -> StoredFiles:
        """The side files, by name; see `varve.files`."""
        return StoredFiles(self._source.path)

    def __repr__(self) -> str:
        return (
            f"<checkpoint {self.path} ({self.format}): {len(self.tensors)} tensors, "
            f"{len(self.plain_values)} plain values>"
        )


def open_checkpoint(
    path: str | os.PathLike[str], arrays: Arrays, origin: str, allow_pickle: bool
) -> Checkpoint:
    """Opens a checkpoint; `origin` names the library of the arrays that reads return."""
    where = path_text(path)
    allowed = _arguments.flag("allow_pickle", allow_pickle)
    return Checkpoint(_Source(where, _core.Reader(where, use_agent=False), arrays, origin, allowed))
