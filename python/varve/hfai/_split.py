"""The rules by which hfai.checkpoint 2.0.0 divides a state among the ranks. Pure.

Every rank holds the whole state and takes its share of it without a message: all ranks come to the same
division, because it depends on names, shapes and positions alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import torch

#: A tensor of more bytes than this is cut into one piece for each rank.
LARGE_SIZE = 256 << 20

_NUMBER_BYTES = 8


def bytes_of(value: Any) -> int:
    """Returns the bytes that an entry counts for: of tensors their elements, of containers the sum."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(bytes_of(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(bytes_of(item) for item in value)
    return _NUMBER_BYTES if isinstance(value, (int, float)) else 0


def is_large(value: Any, large_size: int | None = None) -> bool:
    """Returns True for a strided tensor of strictly more bytes than the threshold."""
    limit = LARGE_SIZE if large_size is None else large_size
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and bytes_of(value) > limit
    )


def owners(entries: Mapping[Any, Any], world: int) -> dict[Any, int]:
    """Returns the rank of each entry, in the order in which entries are given away.

    The largest entry goes first, each to the rank with the smallest sum so far, to the lower rank where
    sums are equal. Entries of one size keep the order that they have in the dict.
    """
    sums = [(0, rank) for rank in range(world)]
    given: dict[Any, int] = {}
    sized = sorted(((bytes_of(value), key) for key, value in entries.items()), key=lambda x: -x[0])
    for size, key in sized:
        total, rank = sums[0]
        heapq.heapreplace(sums, (total + size, rank))
        given[key] = rank
    return given


def share(entries: Mapping[Any, Any], rank: int, world: int) -> dict[Any, Any]:
    """Returns the entries of one rank."""
    return {key: entries[key] for key, owner in owners(entries, world).items() if owner == rank}


def piece_range(count: int, rank: int, world: int) -> tuple[int, int]:
    """Returns the elements [begin, end) that a rank has of a large tensor of `count` elements.

    Each rank has ceil(count / world), the last ones fewer or none.
    """
    each = -(-count // world)
    begin = min(rank * each, count)
    return begin, min(begin + each, count)


def piece(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Returns a rank's flat piece of a large tensor, in logical order; a view where that can be one."""
    begin, end = piece_range(tensor.numel(), rank, world)
    if tensor.is_contiguous():
        return tensor.view(-1)[begin:end]
    # Only the rows that the piece touches are made contiguous.
    row = max(tensor.numel() // max(tensor.shape[0], 1), 1)
    first, last = begin // row, -(-end // row)
    return tensor[first:last].reshape(-1)[begin - first * row : end - first * row]
