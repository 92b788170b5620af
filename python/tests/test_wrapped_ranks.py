"""Tensors that are made of others, sharded: the same world, another world, a fresh object."""

from __future__ import annotations

from pathlib import Path

import pytest
import wrapped_jobs as jobs
from ranks import errors_of_ranks, run_ranks

import varve.torch

pytest.importorskip("torchao", reason="torchao is not installed")

OPTIMIZERS = ["AdamW8bit", "AdamW4bit", "AdamWFp8"]


@pytest.mark.parametrize("size", [2, 1, 4])
def test_wrapped_tensors_follow_the_shards_into_any_world(size: int, tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    run_ranks(2, jobs.save_two, path)
    assert all(run_ranks(size, jobs.load_two, path))
    stored = varve.torch.open(path)
    assert stored.tensors["rows.a.b"].shape == (8, 3)
    assert len(stored.tensors["rows.a.b"].chunks) == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_of_torchao_goes_on_under_fsdp2(optimizer: str, tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    run_ranks(2, jobs.save_optimizer, path, optimizer)
    assert all(run_ranks(2, jobs.go_on, path, optimizer))


# Gloo gathers no 8-bit floats.
@pytest.mark.parametrize(
    ("optimizer", "size"), [("AdamW8bit", 1), ("AdamW8bit", 4), ("AdamW4bit", 1), ("AdamWFp8", 1)]
)
def test_its_states_load_into_another_world(optimizer: str, size: int, tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    run_ranks(2, jobs.save_optimizer, path, optimizer)
    assert run_ranks(size, jobs.read_into_other_world, path, optimizer) == [""] * size


def test_parts_that_are_small_in_one_world_alone_load_into_the_other(tmp_path: Path) -> None:
    """torchao leaves parts below 4096 elements plain: what is stored counts, not what this world would make."""
    folder = str(tmp_path)
    run_ranks(2, jobs.save_small, folder)
    run_ranks(4, jobs.save_small, folder)
    assert run_ranks(4, jobs.change_worlds, folder, 2) == [["OptimState8bit"] * 2] * 4
    assert run_ranks(2, jobs.change_worlds, folder, 4) == [["Tensor"] * 2] * 2
    for errors in run_ranks(2, jobs.refuse_states, folder, 2):
        assert "stored a torchao.optim.subclass_8bit.OptimState8bit, wanted a plain" in errors[0]
        assert "Let the optimizer take a step before the load" in errors[1]
        assert "get_state_dict" in errors[1]
    cut = errors_of_ranks(3, jobs.change_worlds, folder, 2)
    assert all("is no whole number of these" in text for text in cut.values()), cut


def test_a_read_makes_nothing_of_inner_tensors_that_differ_between_ranks(tmp_path: Path) -> None:
    """The codes of all ranks beside the scale of one would be another tensor."""
    path = str(tmp_path / "c")
    run_ranks(2, jobs.save_scaled, path)
    with pytest.warns(UserWarning, match='"w": ranks hold different values of b'):
        inner = varve.torch.read(path)["w"]
    assert inner["a"][:, 0].tolist() == [0, 0, 1, 1] and inner["b"].tolist() == [10]


def test_a_rank_with_an_empty_shard_saves_and_loads(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    run_ranks(3, jobs.save_few_rows, path)
    assert all(run_ranks(3, jobs.load_few_rows, path))
    assert all(run_ranks(2, jobs.load_few_rows, path))
