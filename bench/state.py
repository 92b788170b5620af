"""The states that are saved and loaded, and sizes in words."""

from __future__ import annotations

import re

import torch

State = dict[str, torch.Tensor]

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(text: str) -> int:
    """Returns the bytes that "2GiB", "256MiB" or "4096" stands for."""
    match = re.fullmatch(r"(\d+)\s*(KiB|MiB|GiB|)", text)
    if match is None:
        raise ValueError(f"size {text!r}: expected a number with KiB, MiB, GiB or nothing")
    return int(match[1]) * _UNITS[match[2]]


def make_state(total_bytes: int, count: int) -> State:
    """Returns `count` fp32 tensors of equal size, `total_bytes` together.

    The values are random, so that nothing below can compress them or store them as zeros, and
    writing them has touched every page: the memory is warm.
    """
    generator = torch.Generator().manual_seed(0)
    elements = total_bytes // count // 4
    return {f"layers.{i}.weight": torch.rand(elements, generator=generator) for i in range(count)}


def make_destination(state: State) -> State:
    """Returns tensors like those of `state`, zeroed and warm."""
    return {name: torch.full_like(tensor, 0) for name, tensor in state.items()}


def zero(state: State) -> None:
    """Sets every tensor to zero in place, so that what a load leaves out is seen."""
    for tensor in state.values():
        tensor.zero_()


def negate(state: State) -> None:
    """Changes the sign of every value in place: what a training step would do to a copy under way.

    Done twice it restores every bit, so that what was saved can be told from what came after.
    """
    for tensor in state.values():
        tensor.neg_()


def require_equal(loaded: State, saved: State) -> None:
    """Raises if any tensor differs. A fast load of the wrong bytes is not a result."""
    for name, tensor in saved.items():
        if not torch.equal(loaded[name], tensor):
            raise AssertionError(f"{name}: loaded values differ from the saved ones")


def bytes_of(state: State) -> int:
    """Returns the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())
