"""Bit-for-bit comparison of states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested dicts and lists, each with its dotted path."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from leaves(value, f"{path}.{index}")
    else:
        yield path, state


def same_bits(left: Any, right: Any) -> bool:
    """Return whether two values have one type and, bit for bit, one content (0.0 is not -0.0)."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return torch.equal(
            left.contiguous().reshape(-1).view(torch.uint8),
            right.contiguous().reshape(-1).view(torch.uint8),
        )
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return type(left) is type(right) and left == right


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing two states: how many values, which paths differ, and by how much."""

    count: int
    elements: int
    differing: list[str]
    largest: float

    @property
    def equal(self) -> bool:
        """Whether both states have the same paths, and the same bits at each."""
        return not self.differing and self.count > 0

    def __str__(self) -> str:
        """Say it in a few words."""
        if self.equal:
            return f"{self.count} values, {self.elements:,} numbers, not one bit differs"
        named = ", ".join(self.differing[:4])
        return f"{len(self.differing)} of {self.count} differ, at most by {self.largest}: {named}"


def compare(left: Any, right: Any) -> Comparison:
    """Compare two states of nested dicts, lists, tensors and plain values."""
    lefts, rights = dict(leaves(left)), dict(leaves(right))
    differing = list(lefts.keys() ^ rights.keys())
    largest = 0.0
    elements = 0
    for path in lefts.keys() & rights.keys():
        one, other = lefts[path], rights[path]
        elements += one.numel() if isinstance(one, Tensor) else 1
        if not same_bits(one, other):
            differing.append(path)
            largest = max(largest, _distance(one, other))
    return Comparison(len(lefts.keys() | rights.keys()), elements, sorted(differing), largest)


def _distance(one: Any, other: Any) -> float:
    try:
        return torch.as_tensor(one).double().sub(torch.as_tensor(other).double()).abs().max().item()
    except (RuntimeError, TypeError, ValueError):
        return float("inf")
