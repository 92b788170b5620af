"""Loads into tensors of another size (fit="overlap"), and destinations that are copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fit_jobs as jobs
import numpy as np
import pytest
import torch
from ranks import errors_of_ranks, run_ranks

import varve
import varve.torch


@pytest.fixture
def old(tmp_path: Path) -> str:
    varve.torch.save({"w": jobs.values(jobs.OLD)}, tmp_path / "old")
    return str(tmp_path / "old")


@pytest.mark.parametrize("shape", [(12, 6), (5, 6), (8, 9), (12, 4), (3, 9), (8, 0)], ids=str)
def test_overlap_fills_what_both_have_and_leaves_the_rest(old: str, shape: tuple[int, int]) -> None:
    w = torch.full(shape, -1.0)
    report = varve.torch.load({"w": w}, old, fit="overlap")
    assert torch.equal(w, jobs.expected(shape))
    assert report.resized == [varve.ResizedTensor(name="w", stored=jobs.OLD, wanted=shape)]
    assert report.loaded == 1 and report.mismatched == []

    array = np.full(shape, -1.0, np.float32)
    varve.load({"w": array}, old, fit="overlap")
    assert np.array_equal(array, jobs.expected(shape).numpy())


def test_overlap_of_the_stored_shape_is_an_ordinary_load(old: str) -> None:
    w = torch.zeros(jobs.OLD)
    assert varve.torch.load({"w": w}, old, fit="overlap").resized == []
    assert torch.equal(w, jobs.values(jobs.OLD))


def test_another_size_is_refused_by_default_and_another_number_of_dimensions_always(
    old: str,
) -> None:
    with pytest.raises(varve.InvalidArgumentError, match='fit="overlap" fills'):
        varve.torch.load({"w": torch.zeros(12, 6)}, old)
    flat = torch.full((48,), -1.0)
    with pytest.raises(varve.InvalidArgumentError, match=r"wanted float32\[48\]"):
        varve.torch.load({"w": flat}, old, fit="overlap")
    assert bool((flat == -1).all())
    with pytest.raises(varve.InvalidArgumentError, match=r'fit=.rows.: want "exact" or "overlap"'):
        varve.torch.load({"w": torch.zeros(12, 6)}, old, fit="rows")  # type: ignore[arg-type]


def test_memory_that_torch_copies_keeps_what_lies_outside(tmp_path: Path) -> None:
    stored = torch.tensor([1 + 1j, 2 + 2j])
    varve.torch.save({"w": stored}, tmp_path / "c")
    base = torch.full((3,), 5 + 5j)
    w = base.conj()  # Filled by way of a copy.
    varve.torch.load({"w": w}, tmp_path / "c", fit="overlap")
    assert w.tolist() == [1 + 1j, 2 + 2j, 5 - 5j]


def trained(rows: int) -> tuple[Any, Any]:
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(rows, 4)})
    optimizer = torch.optim.AdamW(model.parameters())
    model["embed"](torch.arange(rows)).pow(2).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "stepped"])
def test_moments_of_a_grown_embedding_load_the_same_way(stepped: bool, tmp_path: Path) -> None:
    model, optimizer = trained(10)
    varve.torch.save({"model": model, "optim": optimizer}, tmp_path / "c")
    saved = optimizer.state[model["embed"].weight]["exp_avg"]

    grown, fresh = trained(13)
    held = fresh.state[grown["embed"].weight]["exp_avg"].clone()
    if not stepped:
        fresh = torch.optim.AdamW(grown.parameters())
        held.zero_()
    report = varve.torch.load({"model": grown, "optim": fresh}, tmp_path / "c", fit="overlap")
    moments = fresh.state[grown["embed"].weight]["exp_avg"]
    assert torch.equal(moments[:10], saved) and torch.equal(moments[10:], held[10:])
    assert [one.name for one in report.resized] == [
        "model.embed.weight",
        "optim.state.0.exp_avg",
        "optim.state.0.exp_avg_sq",
    ]
    fresh.step()


def test_overlap_on_ranks_of_any_mesh_is_what_one_process_gets(old: str) -> None:
    run_ranks(2, jobs.load_grown, old)


def test_sharded_models_grow_with_their_optimizers(tmp_path: Path) -> None:
    run_ranks(2, jobs.save_embedding, str(tmp_path / "c"))
    run_ranks(2, jobs.load_grown_embedding, str(tmp_path / "c"))


def test_a_destination_that_torch_has_redistributed_is_refused_on_all_ranks(old: str) -> None:
    errors = errors_of_ranks(2, jobs.load_into_rows_of_a_dtensor, old)
    assert len(errors) == 2
    for error in errors.values():
        assert error.startswith("InvalidArgumentError")
        assert '"w"' in error and "is a copy" in error and 'fit="overlap"' in error


def test_views_that_share_the_memory_of_a_dtensor_are_destinations(old: str) -> None:
    run_ranks(2, jobs.load_into_views_of_dtensors, old)
