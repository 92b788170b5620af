"""Python values as the typed JSON of tests/golden/dcp/README.md."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import hashlib
import json
import pathlib
from typing import Any

import numpy as np
import torch


def _float(value: float) -> str:
    if value != value:
        return "nan"
    return value.hex() if abs(value) != float("inf") else ("inf" if value > 0 else "-inf")


def _name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def encode(value: Any) -> dict[str, Any]:
    """The typed JSON of a value."""
    kind = type(value)
    if value is None:
        return {"type": "NoneType"}
    if kind in (bool, str):
        return {"type": kind.__name__, "value": value}
    if kind is int:
        return {"type": "int", "value": str(value)}
    if kind is float:
        return {"type": "float", "value": _float(value)}
    if kind is complex:
        return {"type": "complex", "value": [_float(value.real), _float(value.imag)]}
    if kind in (bytes, bytearray):
        return {"type": kind.__name__, "hex": value.hex()}
    if kind in (list, tuple, torch.Size, collections.deque):
        name = {torch.Size: "torch.Size", collections.deque: "collections.deque"}.get(kind)
        return {"type": name or kind.__name__, "items": [encode(item) for item in value]}
    if kind in (set, frozenset):
        items = sorted((encode(item) for item in value), key=lambda item: json.dumps(item))
        return {"type": kind.__name__, "items": items}
    if isinstance(value, dict):
        items = [[encode(k), encode(v)] for k, v in value.items()]
        return {"type": _name(kind), "items": items}
    if kind is argparse.Namespace:
        return {
            "type": "argparse.Namespace",
            "items": encode(dict(sorted(vars(value).items())))["items"],
        }
    if kind in (torch.dtype, torch.device, range, slice, decimal.Decimal):
        name = {torch.dtype: "torch.dtype", torch.device: "torch.device"}.get(kind)
        return {"type": name or _name(kind), "value": str(value)}
    if isinstance(value, pathlib.PurePath):
        return {"type": f"pathlib.{kind.__name__}", "value": str(value)}
    if kind in (datetime.datetime, datetime.date):
        return {"type": f"datetime.{kind.__name__}", "value": value.isoformat()}
    return _array(value)


def _array(value: Any) -> dict[str, Any]:
    if isinstance(value, np.generic):
        dtype = value.dtype.str
        return {
            "type": f"numpy.{type(value).__name__}",
            "dtype": dtype,
            "hex": value.tobytes().hex(),
        }
    if isinstance(value, np.ndarray):
        head = {"type": "numpy.ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
        if value.dtype.hasobject:
            return {**head, "items": [encode(item) for item in value.ravel()]}
        return {
            **head,
            "sha256": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
        }
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return {
            "type": "torch.Tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "nbytes": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
    return {"type": _name(type(value)), "value": repr(value)}
