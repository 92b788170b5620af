"""NumPy arrays, and objects with DLPack or the buffer protocol, as tensors."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from varve import _core, _tree
from varve._engine import DTYPE_NUMBERS, Filling, Gathered
from varve._objects import Planned, Source, Upgrade
from varve.errors import InvalidArgumentError, UnsupportedError

#: DLPack type codes (dlpack.h, DLDataTypeCode) to the names of dtypes by bits.
_DLPACK: dict[tuple[int, int], str] = {
    (6, 8): "bool",
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}

#: Names NumPy knows without help; the others need the ml_dtypes package.
_NUMPY_NAMES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)


def dtype_number(dtype: np.dtype[Any]) -> int | None:
    """Returns the engine's number for a NumPy dtype (ml_dtypes' included), or None."""
    if (
        not dtype.isnative
        or dtype.names is not None
        or (dtype.kind in "OSUMmV" and dtype.name not in DTYPE_NUMBERS)
    ):
        return None
    return DTYPE_NUMBERS.get(dtype.name)


def _dtype_at(number: int) -> np.dtype[Any] | None:
    """Returns the NumPy dtype for an engine number (ml_dtypes' included), or None."""
    name = _core.DTYPE_NAMES[number]
    if name in _NUMPY_NAMES:
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-not-found]
    except ImportError:
        ml_dtypes = None
    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else np.dtype(kind)


def numpy_dtype(number: int, fqn: str) -> np.dtype[Any]:
    """Returns the NumPy dtype for an engine number. Raises UnsupportedError where there is none."""
    dtype = _dtype_at(number)
    if dtype is None:
        raise UnsupportedError(
            f'tensor "{fqn}": NumPy has no {_core.DTYPE_NAMES[number]}; install ml_dtypes, leave it out '
            "with `keys`, or use varve.torch"
        )
    return dtype


class NumpyArrays:
    """The Arrays of `varve.save`, `varve.load` and `varve.read`."""

    plain: frozenset[type] = frozenset()
    wrapping: _tree.Wrapping | None = None

    def is_tensor(self, value: Any) -> bool:
        """Arrays of a stored dtype, DLPack producers, memoryviews and array.arrays."""
        if isinstance(value, np.ndarray):
            # Other subclasses hold more than their memory (masks) or would come back as less.
            if type(value) not in (np.ndarray, np.memmap):
                return False
            return dtype_number(value.dtype) is not None
        if isinstance(value, (np.generic, dict)):
            return False  # A dict of attributes may raise anything when asked for one.
        return isinstance(value, (memoryview, array.array)) or (
            hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")
        )

    def origin(self, tensor: Any) -> str:
        """Everything comes back as a NumPy array."""
        return "numpy"

    def taker(self, into: Gathered) -> _tree.Take:
        """Returns a function that takes nothing: arrays are of many types."""
        return _tree.take_nothing

    def matcher(self, into: Filling) -> _tree.Pair:
        """Returns a function that takes nothing."""
        return _tree.take_nothing

    def add_sources(self, into: Gathered, fqn: str, tensor: Any) -> None:
        """Adds one shard: the whole array."""
        _add(into, fqn, tensor, writable=False)

    def add_targets(self, into: Filling, fqn: str, tensor: Any) -> None:
        """Adds one shard: the whole array, which must be writable."""
        _add(into, fqn, tensor, writable=True)

    def memory(self, tensor: Any, fqn: str = "") -> Any:
        """Returns a key that is equal for arrays of one memory; None where that is unknown."""
        if not isinstance(tensor, np.ndarray) or tensor.size == 0:
            return None
        return tensor.__array_interface__["data"][0], tensor.dtype, tensor.shape, tensor.strides

    def create(
        self, fqn: str, dtype: int, shape: tuple[int, ...], origin: str, like: Any = None
    ) -> Any:
        """Returns an uninitialised array."""
        return np.empty(shape, numpy_dtype(dtype, fqn))

    def hollow(self, tensor: Any) -> bool:
        """False: arrays have memory."""
        return False

    def fresh(self, tensor: Any, dtype: int | None) -> Any:
        """Never called: no array is hollow."""
        raise NotImplementedError

    def dtype_of(self, tensor: Any) -> int | None:
        """Returns the engine's number of an array's dtype."""
        return dtype_number(tensor.dtype)

    def dtype_at(self, number: int) -> Any:
        """Returns the NumPy dtype with this number in the engine; None where there is none."""
        return _dtype_at(number)

    def buffers(self, value: Any) -> Iterable[str]:
        """Returns nothing: only modules of torch have buffers."""
        return ()

    def is_module(self, value: Any) -> bool:
        """Returns True for torch's modules."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.nn.Module)

    def is_shard(self, tensor: Any) -> bool:
        """False: arrays are whole."""
        return False

    def plan_module(
        self, module: Any, state: Any, stored: Any, path: str | None, source: Source
    ) -> Upgrade:
        """Returns no changes of keys."""
        return Upgrade()

    def plan_optimizer(
        self,
        value: Any,
        state: Any,
        stored: Any,
        path: str | None,
        source: Source,
        chosen: Callable[[], bool],
    ) -> Planned | None:
        """Returns None: no optimizer is known."""
        return None

    def give_back(self, value: Any, state: Any) -> None:
        """Calls `load_state_dict`."""
        value.load_state_dict(state)

    def note_filled(self, tensors: Iterable[Any]) -> None:
        """Nothing: arrays keep no record of changes."""


def _add(into: Gathered | Filling, fqn: str, tensor: Any, writable: bool) -> None:
    """Adds a whole array."""
    into.keep.append(tensor)
    if isinstance(tensor, (memoryview, array.array)):
        tensor = np.asarray(tensor)
        into.keep.append(tensor)
    if isinstance(tensor, np.ndarray):
        _add_numpy(into, fqn, tensor, writable)
        return
    if _is_lazy(tensor):
        tensor = _plain_values(into, tensor, writable)
        into.keep.append(tensor)
    describe = _core.describe_writable_array if writable else _core.describe_array
    try:
        code, bits, shape, strides, address = describe(tensor)
    except TypeError as error:
        what = "in CPU memory and writable" if writable else "in CPU memory"
        raise InvalidArgumentError(
            f'"{fqn}": the memory of a {type(tensor).__name__} is not {what}; use a copy that is'
        ) from error
    name = _DLPACK.get((code, bits))
    if name is None:
        raise InvalidArgumentError(f'"{fqn}": DLPack type {code} of {bits} bits is not stored')
    into.engine.add(fqn, DTYPE_NUMBERS[name], shape, address, strides)


def _is_lazy(tensor: Any) -> bool:
    """Returns True for a tensor of torch whose memory is not its values: they are conjugated or negated.

    torch's fast exchange of DLPack gives such memory as it is; `__dlpack__` refuses.
    """
    return any(
        callable(ask := getattr(tensor, name, None)) and ask() is True
        for name in ("is_conj", "is_neg")
    )


def _plain_values(into: Gathered | Filling, tensor: Any, writable: bool) -> Any:
    """Returns a copy whose memory is the values; one to be filled is copied back afterwards."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if writable:
        assert isinstance(into, Filling)
        into.after.append(lambda: tensor.detach().copy_(plain))
    return plain


def _add_numpy(
    into: Gathered | Filling, fqn: str, value: np.ndarray[Any, Any], writable: bool
) -> None:
    number = dtype_number(value.dtype)
    if number is None:
        raise InvalidArgumentError(f'"{fqn}": memory of {value.dtype} elements is not stored')
    if writable and not value.flags.writeable:
        raise InvalidArgumentError(f'"{fqn}": the array is read-only and cannot be loaded into')
    itemsize = value.dtype.itemsize
    if any(step % itemsize for step in value.strides):
        raise InvalidArgumentError(
            f'"{fqn}": the array\'s strides are not multiples of its item size; copy it first'
        )
    strides = None if value.flags.c_contiguous else tuple(s // itemsize for s in value.strides)
    into.engine.add(fqn, number, value.shape, value.__array_interface__["data"][0], strides)
