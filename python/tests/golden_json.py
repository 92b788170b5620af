"""Values against the typed JSON of tests/golden/olmo/README.md and tests/golden/hfai/README.md."""

from __future__ import annotations

import hashlib
import pathlib
import struct
from typing import Any

import numpy as np
import torch


def contiguous_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def difference(value: Any, want: dict[str, Any], where: str) -> str:
    """Returns what differs first, or "" when nothing does."""
    kind = want["type"]
    if kind == "tensor":
        return _tensor_difference(value, want, where)
    if kind == "numpy.ndarray":
        if not isinstance(value, np.ndarray) or value.dtype.str != want["dtype"]:
            return f"{where}: want an array of {want['dtype']}, not {value!r:.80}"
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        same = list(value.shape) == want["shape"] and digest == want["sha256"]
        return "" if same else f"{where}: another array"
    found = type(value).__name__
    name = {"pathlib.PosixPath": "PosixPath", "collections.OrderedDict": "OrderedDict"}
    if found != name.get(kind, kind):
        return f"{where}: want {kind}, not {found}"
    if isinstance(value, dict):
        return _dict_difference(value, want["items"], where)
    if "int64_sha256" in want:
        digest = hashlib.sha256(struct.pack(f"<{len(value)}q", *value)).hexdigest()
        same = len(value) == want["len"] and digest == want["int64_sha256"]
        return "" if same else f"{where}: another tuple"
    if isinstance(value, (list, tuple)):
        if len(value) != len(want["items"]):
            return f"{where}: {len(value)} items, want {len(want['items'])}"
        pairs = zip(value, want["items"], strict=True)
        found_differences = (difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(pairs))
        return next(filter(None, found_differences), "")
    text = str(value) if isinstance(value, pathlib.PurePath) else value
    return "" if text == want["value"] else f"{where}: {text!r} is not {want['value']!r}"


def _tensor_difference(value: Any, want: dict[str, Any], where: str) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{where}: want a tensor, not {value!r:.80}"
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != want["dtype"] or list(value.shape) != want["shape"]:
        return f"{where}: {dtype} {list(value.shape)} is not {want['dtype']} {want['shape']}"
    digest = hashlib.sha256(contiguous_bytes(value)).hexdigest()
    return "" if digest == want["sha256"] else f"{where}: other elements"


def _dict_difference(value: dict[Any, Any], items: list[Any], where: str) -> str:
    keys = [key["value"] for key, _ in items]
    if sorted(map(str, keys)) != sorted(map(str, value)):
        return f"{where}: keys {list(value)}, want {keys}"
    differences = (
        difference(value[key["value"]], want, f"{where}.{key['value']}") for key, want in items
    )
    return next(filter(None, differences), "")
