"""The part of the whole that a rank's shard is: DTensor placements as boxes.

The rules are those of torch.distributed.tensor (placement_types.py, torch 2.13): mesh dimensions
are applied in order; Shard(d) cuts the rest of dimension d as torch.chunk does, so later
coordinates may get less or nothing; _StridedShard(d, split_factor=f) first cuts it into f pieces
and shards each, so that a rank's part may be several stretches. Applying them to lists of stretches
instead of to one stretch covers both. Where the f pieces are those that later mesh dimensions make,
they are cut first: so FSDP2 makes the shards of tensor parallel ones (_fsdp_param.py), and the order
matters where sizes do not divide. Pure: no torch objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

#: Half-open stretches of one dimension, in the order of the local tensor.
Stretches = list[tuple[int, int]]

#: (offsets in the whole, offsets in the local tensor, sizes).
LocalBox = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _take(stretches: Stretches, begin: int, end: int) -> Stretches:
    """Returns positions [begin, end) of the concatenated stretches."""
    taken: Stretches = []
    at = 0
    for low, high in stretches:
        first = max(begin, at)
        last = min(end, at + high - low)
        if first < last:
            taken.append((low + first - at, low + last - at))
        at += high - low
    return taken


def _total(stretches: Stretches) -> int:
    return sum(high - low for low, high in stretches)


class Cut(NamedTuple):
    """A mesh dimension that shards a dimension of a tensor; `pieces` is 1 or a _StridedShard's split_factor."""

    parts: int
    part: int
    pieces: int = 1


def stretches(size: int, cuts: Sequence[Cut]) -> Stretches:
    """Returns the part of a dimension that these cuts, in the order of the mesh, leave this rank."""
    held: Stretches = [(0, size)]
    for cut in _ordered(cuts):
        held = _strided(held, cut) if cut.pieces > 1 else _shard(held, cut)
    return held


def _ordered(cuts: Sequence[Cut]) -> list[Cut]:
    """Returns cuts in the order in which they are made, each whose pieces later ones make as a plain one."""
    ordered: list[Cut] = []
    for cut in reversed(cuts):
        at, made = 0, 1
        while made < cut.pieces and at < len(ordered):
            made *= ordered[at].parts
            at += 1
        if made == cut.pieces:
            ordered.insert(at, cut._replace(pieces=1))
        else:
            return list(cuts)
    return ordered


def _shard(held: Stretches, cut: Cut) -> Stretches:
    """Returns the `part`-th of `parts` torch.chunk pieces; empty where there are fewer pieces."""
    total = _total(held)
    step = -(-total // cut.parts)
    return _take(held, min(cut.part * step, total), min((cut.part + 1) * step, total))


def _strided(held: Stretches, cut: Cut) -> Stretches:
    """Returns the `part`-th part of each of `pieces` torch.chunk pieces, joined."""
    pieces = (_shard(held, Cut(cut.pieces, piece)) for piece in range(cut.pieces))
    return [stretch for piece in pieces for stretch in _shard(piece, cut)]


def _merged(stretches: Stretches) -> Stretches:
    merged: Stretches = []
    for low, high in stretches:
        if merged and merged[-1][1] == low:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged


def boxes(dims: Sequence[Stretches]) -> list[LocalBox]:
    """Returns the boxes of a local tensor whose dimensions hold these stretches of the whole."""
    per_dim: list[list[tuple[int, int, int]]] = []
    for stretches in dims:
        at = 0
        entries = []
        for low, high in _merged(stretches):
            entries.append((low, at, high - low))
            at += high - low
        per_dim.append(entries)
    return [
        (
            tuple(entry[0] for entry in combination),
            tuple(entry[1] for entry in combination),
            tuple(entry[2] for entry in combination),
        )
        for combination in itertools.product(*per_dim)
    ]


def follow(
    whole: tuple[int, ...],
    dims: list[Stretches],
    local: tuple[int, ...],
    inner: tuple[int, ...],
    rule: str | None,
) -> tuple[tuple[int, ...], list[Stretches]] | None:
    """Returns the whole shape of an inner tensor and this rank's stretches of each dimension of it.

    None where it does not follow the shards: it is the same on all ranks, or nothing tells. It follows
    by dimension where the two have the same ones: each sharded dimension is as long as the local tensor's, or a
    whole number of times longer or shorter (packed elements, a scale for each block). A `rule` says otherwise, see
    `_following.rule`.
    """
    sharded = {d for d, stretch in enumerate(dims) if stretch != [(0, whole[d])]}
    if rule == "flat":
        return _follow_flat(whole, dims, local, inner) if sharded == {0} else None
    if inner == local and rule is None:
        return whole, dims
    one_number = all(size == 1 for size in inner)
    if rule == "whole" or one_number or len(inner) == 0:
        return None
    if rule is not None:
        followed = next((each for each in rule.split() if len(each) == len(inner)), "")
    elif len(inner) < len(whole):
        by_rows = len(inner) == 1 and sharded == {0} and inner[0] == local[0]
        followed = "0" if by_rows else ""
    else:
        followed = "".join(map(str, range(len(whole))))
    if not any(str(d) in followed for d in sharded):
        return None
    shape, stretches = list(inner), [[(0, size)] for size in inner]
    for d in sharded:
        at = followed.find(str(d))
        if at < 0:
            continue
        scaled = _scaled(dims[d], whole[d], local[d], inner[at])
        if scaled is None:
            return None
        shape[at], stretches[at] = scaled
    return tuple(shape), stretches


def _scaled(
    stretches: Stretches, whole: int, local: int, inner: int
) -> tuple[int, Stretches] | None:
    """Returns size and stretches of a dimension whose elements are blocks or parts of another's."""
    if local == 0 or inner == 0:
        return None
    if inner % local == 0:
        times = inner // local
        return whole * times, [(low * times, high * times) for low, high in stretches]
    block = local // inner
    if (
        local % inner
        or whole % block
        or any(low % block or high % block for low, high in stretches)
    ):
        return None
    return whole // block, [(low // block, high // block) for low, high in stretches]


def _follow_flat(
    whole: tuple[int, ...],
    dims: list[Stretches],
    local: tuple[int, ...],
    inner: tuple[int, ...],
) -> tuple[tuple[int, ...], list[Stretches]] | None:
    """Returns the same for blocks of the elements in row-major order, of rows that this rank holds."""
    row = 1
    for size in whole[1:]:
        row *= size
    flat = [(low * row, high * row) for low, high in dims[0]]
    scaled = _scaled(flat, whole[0] * row, local[0] * row, inner[0])
    return None if scaled is None else ((scaled[0],), [scaled[1]])
