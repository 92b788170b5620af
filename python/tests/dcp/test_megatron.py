"""Indexes of Megatron-Core before 0.14: tensors of the distributed optimizer, in flattened blocks.

A tensor of [X, Y] that is cut into blocks of [x, y] is in the index as one of [X / x, Y / y, x * y], of which each
rank has written a range of the last dimension; `mcore_data` has the whole shape (strategies/torch.py there).
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import varve
import varve.torch


def save_in_blocks(
    path: Path, tensors: dict[str, tuple[torch.Tensor, tuple[int, ...], list[int]]], **more: Any
) -> None:
    """Saves tensors as Megatron does: each with its grid of blocks, and where ranks cut each block."""
    path.mkdir()
    state, storage, data, shapes = {}, {}, io.BytesIO(), {}
    for fqn, (tensor, grid, cuts) in tensors.items():
        block = [size // parts for size, parts in zip(tensor.shape, grid, strict=True)]
        chunks = []
        for at in itertools.product(*map(range, grid)):
            part = tensor
            for dim, (i, size) in enumerate(zip(at, block, strict=True)):
                part = part.narrow(dim, i * size, size)
            ends = [0, *cuts, math.prod(block)]
            for begin, end in itertools.pairwise(ends):
                piece = part.reshape(-1)[begin:end].clone().view(*[1] * len(grid), -1)
                offsets = torch.Size([*at, begin])
                chunks.append(ChunkStorageMetadata(offsets, piece.shape))
                start = data.tell()
                torch.save(piece, data)
                place = _StorageInfo("__0_0.distcp", start, data.tell() - start)
                storage[MetadataIndex(fqn, offsets)] = place
        size = torch.Size([*grid, math.prod(block)])
        state[fqn] = TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), size, chunks)
        shapes[fqn] = {"nd_reformulated_orig_global_shape": tuple(tensor.shape)}
    metadata = Metadata(state, None, storage)
    metadata.mcore_data = {**shapes, **more}  # type: ignore[attr-defined]
    (path / "__0_0.distcp").write_bytes(data.getvalue())
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


TENSORS = {
    "optim.columns": (torch.arange(48.0).reshape(6, 8), (1, 2), [13]),
    "optim.rows": (torch.arange(60).reshape(6, 10), (3, 1), [1, 2, 19]),
    "optim.both": (torch.rand(4, 6).bfloat16(), (2, 3), []),
    "optim.flat": (torch.arange(10.0), (2,), [3]),
    "optim.layers": (torch.arange(120.0).reshape(2, 5, 12), (2, 1, 3), [7, 8]),
}


def test_tensors_in_flattened_blocks_have_their_own_shape_and_order(tmp_path: Path) -> None:
    """They came back in the shape of the grid, with the elements of a block side by side."""
    save_in_blocks(tmp_path / "iter_0000010", TENSORS, other={"x": 1})
    found = varve.torch.read(tmp_path / "iter_0000010", flat=True)
    for name, (tensor, _, _) in TENSORS.items():
        assert torch.equal(found[name], tensor), name
    wanted = {name: torch.zeros_like(tensor) for name, (tensor, _, _) in TENSORS.items()}
    varve.torch.load(wanted, tmp_path / "iter_0000010")
    assert all(torch.equal(wanted[name], tensor) for name, (tensor, _, _) in TENSORS.items())
    part = varve.torch.open(tmp_path / "iter_0000010")["optim.columns"][2:4, 3:6]
    assert torch.equal(part, TENSORS["optim.columns"][0][2:4, 3:6])
    assert varve.verify(tmp_path / "iter_0000010") == []
    varve.convert(tmp_path / "iter_0000010", tmp_path / "out", "safetensors")
    assert torch.equal(
        varve.torch.read(tmp_path / "out", flat=True)["optim.rows"], TENSORS["optim.rows"][0]
    )


def test_damage_in_a_flattened_block_is_named(tmp_path: Path) -> None:
    save_in_blocks(tmp_path / "a", TENSORS)
    file = tmp_path / "a" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.find(TENSORS["optim.columns"][0][0, 1:4].numpy().tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    [damage] = varve.verify(tmp_path / "a")
    assert damage.begin <= at < damage.end
    with pytest.raises(varve.CorruptCheckpointError, match=r"optim\.columns"):
        varve.torch.read(tmp_path / "a")


def test_blocks_that_are_no_grid_are_refused_by_name(tmp_path: Path) -> None:
    shape = {"nd_reformulated_orig_global_shape": (6, 9)}
    save_in_blocks(tmp_path / "a", TENSORS, **{"optim.columns": shape})
    with pytest.raises(varve.UnsupportedError) as caught:
        varve.torch.read(tmp_path / "a")
    assert 'tensor "optim.columns"' in str(caught.value)
    assert "[1, 2, 24]" in str(caught.value) and "[6, 9]" in str(caught.value)
