"""Sources and destinations whose memory is not what their shape says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(8).unfold(0, 4, 1),
        torch.zeros(20).as_strided((5, 4), (2, 1)),
        torch.zeros(4).expand(5, 4),
    ],
    ids=["unfold", "as_strided", "expand"],
)
def test_a_destination_that_overlaps_itself_is_refused(
    target: torch.Tensor, tmp_path: Path
) -> None:
    varve.torch.save({"w": torch.ones(tuple(target.shape)), "a": torch.ones(2)}, tmp_path / "c")
    other = torch.zeros(2)
    for strict in (True, False, "exact"):
        with pytest.raises(varve.InvalidArgumentError, match=r'"w".*share memory'):
            varve.torch.load({"w": target, "a": other}, tmp_path / "c", strict=strict)
    assert not target.any()
    assert not other.any()


def test_numpy_destinations_that_overlap_themselves_are_refused(tmp_path: Path) -> None:
    varve.save({"w": np.ones((5, 4))}, tmp_path / "c")
    buffer = np.zeros(8)
    window = np.lib.stride_tricks.sliding_window_view(buffer, 4, writeable=True)
    for array in (window, np.lib.stride_tricks.as_strided(buffer, (5, 4), (0, 8))):
        with pytest.raises(varve.InvalidArgumentError, match=r'"w".*share memory'):
            varve.load({"w": array}, tmp_path / "c")
    assert not buffer.any()


@pytest.mark.parametrize("format", ["varve", "dcp"])
def test_one_memory_under_two_names_takes_equal_values_only(format: str, tmp_path: Path) -> None:
    one = torch.arange(6.0).reshape(2, 3)
    varve.torch.save({"a": one, "b": one.clone()}, tmp_path / "equal", format=format)
    varve.torch.save({"a": one, "b": one + 1}, tmp_path / "different", format=format)
    tied = torch.zeros(2, 3)
    with pytest.raises(varve.InvalidArgumentError, match=r'"a" and.*"b".*different values'):
        varve.torch.load({"a": tied, "b": tied}, tmp_path / "different")
    assert not tied.any()
    varve.torch.load({"a": tied, "b": tied}, tmp_path / "equal")
    assert torch.equal(tied, one)
    # One of them alone is no conflict.
    varve.torch.load({"a": tied, "b": tied}, tmp_path / "different", keys="b")
    assert torch.equal(tied, one + 1)


def test_tied_weights_of_a_model_load_into_both_names(tmp_path: Path) -> None:
    def tied() -> torch.nn.Module:
        made = torch.nn.Sequential(
            torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        )
        made[1].weight = made[0].weight
        return made

    source, target = tied(), tied()
    varve.torch.save(source, tmp_path / "c")
    varve.torch.load(target, tmp_path / "c", strict="exact")
    assert torch.equal(target[0].weight, source[0].weight)  # type: ignore[index]
    assert target[1].weight is target[0].weight  # type: ignore[index]


def test_views_of_one_buffer_are_filled_where_they_lie(tmp_path: Path) -> None:
    """Columns of one tensor interleave in memory and share none; a view and its whole share some."""
    fused = torch.arange(24.0).reshape(4, 6)
    parts: dict[str, Any] = {"q": fused[:, :2], "k": fused[:, 2:4], "v": fused[:, 4:]}
    varve.torch.save({**parts, "all": fused, "odd": fused[:, 1::2]}, tmp_path / "c")
    target = torch.zeros(4, 6)
    views = {"q": target[:, :2], "k": target[:, 2:4], "v": target[:, 4:]}
    varve.torch.load(views, tmp_path / "c")
    assert torch.equal(target, fused)
    target.zero_()
    views |= {"all": target, "odd": target[:, 1::2]}
    varve.torch.load(views, tmp_path / "c", strict="exact")
    assert torch.equal(target, fused)
    target.zero_()
    with pytest.raises(
        varve.InvalidArgumentError, match=r'"all" and.*"q".*different|"q" and.*"all"'
    ):
        varve.torch.load({"all": target, "q": target[:, 2:4]}, tmp_path / "c")
    assert not target.any()


def freed(of: str, size: int) -> torch.Tensor:
    """A tensor of 16 floats, of whose storage there is less."""
    whole = torch.ones(16)
    kinds = {"plain": whole, "view": whole.reshape(4, 4).T, "parameter": torch.nn.Parameter(whole)}
    whole.untyped_storage().resize_(size)
    return kinds[of]


@pytest.mark.parametrize("size", [0, 4, 63])
@pytest.mark.parametrize("of", ["plain", "view", "parameter"])
def test_a_source_whose_storage_is_too_small_is_refused(size: int, of: str, tmp_path: Path) -> None:
    tensor = freed(of, size)
    with pytest.raises(varve.InvalidArgumentError, match=r'"w".*bytes of storage'):
        varve.torch.save({"w": tensor}, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    varve.torch.save({"w": torch.ones(tuple(tensor.shape))}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match=r'"w".*bytes of storage'):
        varve.torch.load({"w": tensor}, tmp_path / "c")
