"""Tensors that a state holds under several names: stored once, found under each name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import replica_jobs as jobs
import torch
import torch.distributed.checkpoint as dcp
from ranks import run_ranks

import varve
import varve.torch

ROWS, COLUMNS = 500, 200
BYTES = ROWS * COLUMNS * 4


class Tied(torch.nn.Module):
    """An embedding and a head that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(ROWS, COLUMNS)
        self.head = torch.nn.Linear(COLUMNS, ROWS)
        self.head.weight = self.embed.weight


def size_of(path: str | Path) -> int:
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


def weights(path: str | Path) -> dict[str, torch.Tensor]:
    return dict(varve.torch.read(path, flat=True))


@pytest.mark.parametrize("format", ["varve", "dcp"])
@pytest.mark.parametrize("how", ["save", "thread", "process"])
def test_tied_weights_are_stored_once_and_load_into_both(
    how: str, format: str, tmp_path: Path, agent: str
) -> None:
    model = Tied()
    path = tmp_path / "step"
    if how == "save":
        varve.torch.save({"model": model}, path, format=format)
    else:
        varve.torch.async_save({"model": model}, path, format=format, executor=how).result()
    assert BYTES < size_of(path) < BYTES + 40_000
    assert varve.verify(path) == []
    stored = weights(path)
    assert set(stored) == {"model.embed.weight", "model.head.weight", "model.head.bias"}
    for name in ("model.embed.weight", "model.head.weight"):
        torch.testing.assert_close(stored[name], model.embed.weight.data, rtol=0, atol=0)
    other = Tied()
    varve.torch.load({"model": other}, path)
    torch.testing.assert_close(other.head.weight, model.embed.weight, rtol=0, atol=0)
    untied = Tied()
    untied.head.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
    varve.torch.load({"model": untied}, path)
    for weight in (untied.head.weight, untied.embed.weight):
        torch.testing.assert_close(weight, model.embed.weight, rtol=0, atol=0)


def test_torchs_own_reader_finds_both_names(tmp_path: Path) -> None:
    model = Tied()
    varve.torch.save({"model": model.state_dict()}, tmp_path / "step", format="dcp")
    state = {"model": {name: torch.zeros_like(t) for name, t in model.state_dict().items()}}
    dcp.load(state, checkpoint_id=tmp_path / "step")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state["model"][name], tensor, rtol=0, atol=0)


def test_safetensors_opens_a_file_with_aliases(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = Tied()
    varve.torch.save(model.state_dict(), tmp_path / "step")
    (name,) = [n for n in os.listdir(tmp_path / "step") if n.endswith(".safetensors")]
    stored = safetensors.load_file(tmp_path / "step" / name)
    assert "embed.weight" in stored and "head.weight" not in stored
    torch.testing.assert_close(stored["embed.weight"], model.embed.weight.data, rtol=0, atol=0)


@pytest.mark.slow
def test_tied_shards_of_ranks_are_stored_once(tmp_path: Path) -> None:
    for kind in ("shards", "replicas"):
        path = tmp_path / kind
        run_ranks(2, jobs.save_tied, str(path), kind, ROWS, COLUMNS)
        assert size_of(path) < BYTES + 60_000
        stored = weights(path)
        whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)
        for name in ("embed", "head"):
            torch.testing.assert_close(stored[name], whole, rtol=0, atol=0)


def test_what_one_rank_does_not_tie_is_stored_twice(tmp_path: Path) -> None:
    path = tmp_path / "step"
    run_ranks(2, jobs.save_tied, str(path), "one rank", ROWS, COLUMNS)
    assert size_of(path) > 2 * BYTES
    stored = weights(path)
    torch.testing.assert_close(stored["embed"], stored["head"], rtol=0, atol=0)


def test_numpy_arrays_and_copies_of_views_are_tied_too(tmp_path: Path) -> None:
    array = torch.arange(ROWS * COLUMNS, dtype=torch.float32).numpy()
    varve.save({"a": array, "b": array, "c": array[::-1]}, tmp_path / "numpy")
    assert size_of(tmp_path / "numpy") < 2 * BYTES + 40_000
    read: Any = varve.read(tmp_path / "numpy")
    assert (read["b"] == array).all() and (read["c"] == array[::-1]).all()
    conjugate = torch.randn(ROWS, COLUMNS, dtype=torch.complex64).conj()
    varve.torch.save({"a": conjugate, "b": conjugate}, tmp_path / "conj")
    assert size_of(tmp_path / "conj") < 2 * BYTES + 40_000
    torch.testing.assert_close(weights(tmp_path / "conj")["b"], conjugate.resolve_conj())


def test_catalogue_functions_take_both_names(tmp_path: Path) -> None:
    model = Tied()
    one, two = tmp_path / "one", tmp_path / "two"
    varve.torch.save(model.state_dict(), one)
    untied = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    varve.torch.save(untied, two)
    assert size_of(two) > size_of(one) + BYTES // 2
    difference = varve.diff(one, two)
    assert not difference, difference
    os.remove(one / "manifest.bin")
    os.remove(one / "varve.json")
    varve.repair(one)
    assert varve.verify(one) == []
    torch.testing.assert_close(weights(one)["head.weight"], untied["head.weight"], rtol=0, atol=0)
    for to in ("dcp", "safetensors", "torch", "hf", "varve"):
        out = tmp_path / f"to-{to}"
        varve.convert(one, out, to=to)
        torch.testing.assert_close(weights(out)["head.weight"], untied["head.weight"])


def test_a_checkpoint_that_has_one_of_the_names_fills_both(tmp_path: Path) -> None:
    model = Tied()
    one_name = {k: v for k, v in model.state_dict().items() if k != "head.weight"}
    varve.torch.save(one_name, tmp_path / "step")
    varve.convert(tmp_path / "step", tmp_path / "model.safetensors", to="safetensors")
    for path in (tmp_path / "step", tmp_path / "model.safetensors"):
        other = Tied()
        report = varve.torch.load(other.state_dict(), path)
        assert report.missing == []
        torch.testing.assert_close(other.head.weight, model.embed.weight, rtol=0, atol=0)
        untied = Tied()
        untied.head.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
        with pytest.raises(varve.InvalidArgumentError, match=r"missing.*head\.weight"):
            varve.torch.load(untied.state_dict(), path)
