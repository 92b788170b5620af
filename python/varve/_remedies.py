"""Messages about mismatches: what is stored, what is wanted, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from varve._values import ObjectLeaf, TensorLeaf, Wrapped

#: Between the module and the class, in the names of stored classes.
_COLON = re.compile(r"(?<=\w):(?=[A-Za-z_])")

_FOR_WRAPPED = (
    "a tensor that is made of others fills one of its class, and cast=True makes no plain tensor of it: load into "
    "one of its class; or take it with read() and make it plain, as dequantize() and to_dense() do"
)
_FOR_PLAIN = (
    "a plain tensor fills a plain one, and cast=True makes none of a class of it: load before the program makes its "
    "tensors ones of that class, as torchao's quantize_ does; or take it with read() and make one of it"
)
_FOR_OTHERS = (
    "a tensor that is made of others fills one of its class; cast=True takes another class with the same inner "
    "tensors and attributes"
)


def for_plain(stored: Any) -> dict[str, None]:
    """Returns what to do where a plain tensor is wanted."""
    return {_FOR_WRAPPED: None} if type(stored) is Wrapped else {}


def for_wrapped(wanted: str, stored: Any, cast: bool) -> dict[str, None]:
    """Returns what to do where a tensor of the class `wanted` is wanted, in a load that casts or does not."""
    if isinstance(stored, TensorLeaf):
        return {_FOR_PLAIN: None}
    other = type(stored) is Wrapped and stored.kind != wanted.replace(":", ".")
    return {_FOR_OTHERS: None} if other and not cast else {}


def shown_kind(value: Any) -> str:
    """Returns what something stored or wanted is, for a message."""
    if isinstance(value, TensorLeaf):
        return "a tensor"
    if isinstance(value, ObjectLeaf):
        return "a plain value"
    if type(value) is Wrapped:
        return f"a {value.kind}"
    if isinstance(value, Mapping):
        return "a dict"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


def shown_array(value: Any, stored: Any) -> str:
    """Returns what an array is that no load fills, where a tensor is stored for it; else nothing."""
    if isinstance(value, np.ndarray) and isinstance(stored, TensorLeaf):
        return f"a {type(value).__name__} of {value.dtype}, which cannot be filled in place"
    return ""


def unlike_shown(unlike: str, wanted: str) -> str:
    """Returns how a stored tensor differs from a wanted one of a class, for a message.

    A difference of two of one class says itself what is wanted.
    """
    unlike += "" if ", wanted " in unlike else f", wanted a {wanted}"
    return _COLON.sub(".", unlike)
