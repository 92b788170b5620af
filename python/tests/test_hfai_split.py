"""How varve.hfai divides a state among the ranks."""

from __future__ import annotations

import pytest
import torch

from varve.hfai import _split


def test_entries_of_equal_size_keep_their_order() -> None:
    entries = {name: torch.zeros(4) for name in "abcdef"}
    given = _split.owners(entries, 4)
    assert list(given.items()) == list(zip("abcdef", (0, 1, 2, 3, 0, 1), strict=True))
    entries = {"s": torch.zeros(1), "m": torch.zeros(3), "l": torch.zeros(8), "n": 5, "x": "text"}
    assert _split.owners(entries, 2) == {"l": 0, "m": 1, "n": 1, "s": 1, "x": 1}


def test_sizes_are_those_of_the_original() -> None:
    assert _split.bytes_of(torch.zeros(3, dtype=torch.bfloat16)) == 6
    assert _split.bytes_of({"a": [1, 2.0, True], "b": (torch.zeros(2), "text", None)}) == 32


def test_large_is_strictly_more_than_the_threshold() -> None:
    assert _split.LARGE_SIZE == 256 << 20
    assert not _split.is_large(torch.empty(64 << 20, device="meta"))
    assert _split.is_large(torch.empty((64 << 20) + 1, device="meta"))
    assert not _split.is_large(torch.zeros(5000).to_sparse(), 4096)
    assert not _split.is_large("x" * 9999, 10)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("count", [1, 5, 16, 33 * 41])
def test_pieces_are_those_of_torch_chunk(count: int, world: int) -> None:
    tensor = torch.arange(count, dtype=torch.int32)
    chunks = tensor.chunk(world)
    for rank in range(world):
        wanted = chunks[rank] if rank < len(chunks) else tensor[:0]
        assert torch.equal(_split.piece(tensor, rank, world), wanted)


def test_pieces_of_a_strided_tensor_are_in_logical_order() -> None:
    tensor = torch.arange(210).reshape(5, 6, 7).permute(2, 0, 1)
    pieces = [_split.piece(tensor, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat(pieces), tensor.reshape(-1))
