"""Tensors inside of a plain value, as in a tuple or a dataclass.

A checkpoint has one value for all of it. In a destination they are memory like any other tensor: a load fills
them, and the new tuple has the same tensors. With new ones in their place a model whose parameters came in a
tuple would go on with the values that it had.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from varve._core import DTYPE_NAMES
from varve._tree import join


def inside_of(value: Any, arrays: Any, hollow: Callable[[Any], bool], cast: bool) -> Inside | None:
    """Returns the tensors inside of a plain value; None where it has none."""
    if not _parts(value):
        return None  # As most values.
    inside = Inside(value, arrays, hollow, cast)
    return inside if inside._has(value) else None


class Inside:
    """The tensors inside of one plain value of a destination.

    Args:
        value: The plain value.
        arrays: An `Arrays`.
        hollow: Tells tensors that are to be replaced and not filled.
        cast: Stored tensors of another dtype are converted.
    """

    def __init__(self, value: Any, arrays: Any, hollow: Callable[[Any], bool], cast: bool) -> None:
        self._value = value
        self._arrays = arrays
        self._hollow = hollow
        self._cast = cast
        self.fits = True  #: Set to False, it leaves the value as it is.

    def difference(self, stored: Any) -> str:
        """Returns why a stored value cannot fill the tensors, with the place; "" where it can."""
        return self._difference(self._value, stored, None)

    def filled(self, stored: Any) -> Any:
        """Fills the tensors, and returns the stored value with them in it."""
        return self._filled(self._value, stored) if self.fits else self._value

    def _has(self, value: Any) -> bool:
        return next(self._tensors(value, ()), None) is not None

    def _tensors(self, value: Any, around: tuple[int, ...]) -> Iterator[Any]:
        if id(value) in around:
            return  # It contains itself.
        for part in _parts(value).values():
            if self._arrays.is_tensor(part):
                yield part
            else:
                yield from self._tensors(part, (*around, id(value)))

    def _difference(self, value: Any, stored: Any, path: str | None) -> str:
        if self._arrays.is_tensor(value):
            return self._unlike(value, stored, str(path))
        if not self._has(value):
            return ""
        if type(value) is not type(stored):
            at = "" if path is None else f" at {path}"
            return f"{_kind(stored)}{at}, wanted {_kind(value)} with tensors"
        parts = _parts(stored)
        for key, part in _parts(value).items():
            below = join(path, str(key))
            if key in parts and (unlike := self._difference(part, parts[key], below)):
                return unlike
            if key not in parts and (self._arrays.is_tensor(part) or self._has(part)):
                return f"nothing at {below}, wanted a tensor"
        return ""

    def _unlike(self, tensor: Any, stored: Any, path: str) -> str:
        arrays = self._arrays
        if self._hollow(tensor):
            return ""
        if not arrays.is_tensor(stored):
            return f"{_kind(stored)} at {path}, wanted a tensor"
        dtypes = arrays.dtype_of(stored), arrays.dtype_of(tensor)
        if stored.shape != tensor.shape or (dtypes[0] != dtypes[1] and not self._cast):
            has, wants = (
                f"{'?' if dtype is None else DTYPE_NAMES[dtype]}{list(one.shape)}"
                for dtype, one in zip(dtypes, (stored, tensor), strict=True)
            )
            return f"{has} at {path}, wanted {wants}"
        wrapping = arrays.wrapping
        apart = None if wrapping is None else wrapping.take_apart(path, tensor)
        if arrays.is_shard(tensor) or apart is not None:
            return f"a plain tensor at {path}, wanted {_kind(tensor)}"
        if getattr(tensor, "is_meta", False):
            return f"a tensor at {path}, wanted one on the meta device, which has no memory"
        if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
            return f"an array at {path}, wanted one that is read-only"
        return ""

    def _filled(self, value: Any, stored: Any) -> Any:
        if self._arrays.is_tensor(value):
            return stored if self._hollow(value) else _fill(value, stored)
        if not self._has(value):
            return stored
        new = dict(_parts(stored))
        for key, part in _parts(value).items():
            if key in new:
                new[key] = self._filled(part, new[key])
        if isinstance(stored, tuple):
            made = tuple.__new__(type(stored), new.values())
            if hasattr(made, "__dict__"):
                made.__dict__.update(stored.__dict__)
            return made
        for key, part in new.items():
            if isinstance(stored, (list, deque, dict)):
                stored[key] = part
            else:
                object.__setattr__(stored, key, part)  # The dataclass may be frozen.
        return stored


def _parts(value: Any) -> dict[Any, Any]:
    """Returns the parts of a plain value in which tensors may be, by index, key or field."""
    if isinstance(value, (tuple, list, deque)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {}


def _fill(tensor: Any, stored: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        tensor[...] = stored
    else:
        tensor.detach().copy_(stored)
    return tensor


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
