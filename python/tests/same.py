"""Equality as the tests mean it."""

from __future__ import annotations

import collections
import datetime as dt
import struct
from typing import Any

import numpy as np
import torch


def same(a: Any, b: Any) -> bool:
    """Equal in type, value, order and bits, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and not isinstance(a, np.generic):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex) and not isinstance(a, np.generic):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
            return False
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, (np.ndarray, np.generic)):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (dt.datetime, dt.time)):
        return (a.replace(tzinfo=None), a.fold) == (b.replace(tzinfo=None), b.fold) and same(
            a.tzinfo, b.tzinfo
        )
    return bool(a == b)


def sorted_dicts(state: Any) -> Any:
    """A state without the order of its dicts' keys and without their classes, for formats that keep neither."""
    if isinstance(state, dict):
        return {key: sorted_dicts(state[key]) for key in sorted(state, key=str)}
    return state
