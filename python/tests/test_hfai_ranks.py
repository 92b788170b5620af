"""varve.hfai on several ranks: DistributedDataParallel on gloo, read by the original's rules."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import hfai_jobs as jobs
import hfai_original
import pytest
import torch
from hfai_original import assert_same
from ranks import errors_of_ranks, fork_context, run_ranks

import varve
import varve.hfai
from varve.hfai import _split


def truth_of(results: list[bytes]) -> Any:
    """Rank 0's state, from before the save."""
    return torch.load(io.BytesIO(results[0]))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ddp_is_saved_and_loaded_by_both_readers(size: int, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    truth = truth_of(run_ranks(size, jobs.save_one, str(path)))
    assert sorted(os.listdir(path)) == [f"PART_{rank:03d}.pt" for rank in range(size)]
    assert varve.verify(path) == []
    original = hfai_original.read(path)
    for state in (varve.hfai.load(path), original):
        assert_same({key: state[key] for key in truth}, truth)
    mine = varve.hfai.load(path, nthreads=0)
    assert_same(mine, {key: original[key] for key in mine})


def test_lists_of_models_and_optimizers(tmp_path: Path) -> None:
    models, optimizers = truth_of(run_ranks(2, jobs.save_lists, str(tmp_path / "x")))
    for state in (varve.hfai.load(tmp_path / "x"), hfai_original.read(tmp_path / "x")):
        for found, wanted in zip(state["model"], models, strict=True):
            assert_same(found, wanted)
        for found, wanted in zip(state["optimizer"], optimizers, strict=True):
            assert_same(found, wanted)
    # All tensors of parameter 0 of the second optimizer are large: its small entry is empty.
    parts = [torch.load(tmp_path / "x" / f"PART_{rank:03d}.pt") for rank in range(2)]
    assert [part["optimizer"][1][0]["state"] for part in parts] == [{0: {}}, {}]


@pytest.mark.parametrize("size", [2, 4])
def test_parts_hold_what_the_rules_give_them(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    truth = truth_of(run_ranks(size, jobs.save_one, str(path)))
    prefix = "module."
    buffers = {prefix + name for name, _ in jobs.Net().named_buffers()} - {prefix + "scratch"}
    params = {name: value for name, value in truth["model"].items() if name not in buffers}
    large = {name for name in params if _split.is_large(params[name], 4096)}
    assert large == {prefix + "embed.weight", prefix + "strided", prefix + "low"}
    small = {name: value for name, value in params.items() if name not in large}
    for rank in range(size):
        part = torch.load(path / f"PART_{rank:03d}.pt", weights_only=True)
        assert part["__nshards__"] == size and part["__version__"] == "2.0.0"
        (found, pieces) = part["model"][0]
        wanted = set(_split.share(small, rank, size))
        assert set(found) == (wanted | buffers if rank == 0 else wanted)
        assert set(pieces) == large
        for name, (shape, piece) in pieces.items():
            begin, end = _split.piece_range(params[name].numel(), rank, size)
            assert shape == params[name].shape
            assert torch.equal(piece, params[name].reshape(-1)[begin:end])
        assert ("epoch" in part) == (rank == 0)
        assert len(part["optimizer"][0][0]["param_groups"]) == 1
    sums = [_split.bytes_of(_split.share(small, rank, size)) for rank in range(size)]
    assert max(sums) - min(sums) <= max(_split.bytes_of(value) for value in small.values())


def test_a_smaller_world_leaves_no_stale_part(tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    run_ranks(4, jobs.save_one, str(path))
    truth = truth_of(run_ranks(2, jobs.save_one, str(path), 1))
    assert sorted(os.listdir(path)) == ["PART_000.pt", "PART_001.pt"]
    assert_same(varve.hfai.load(path), truth)
    assert os.listdir(tmp_path) == ["latest.pt"]


def test_a_failure_on_one_rank_is_raised_on_all_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    truth = truth_of(run_ranks(2, jobs.save_one, str(path)))
    errors = errors_of_ranks(2, jobs.save_badly, str(path))
    assert len(errors) == 2
    assert all("bad" in error for error in errors.values())
    assert "rank 0" in errors[1]
    assert_same(varve.hfai.load(path), truth)
    assert os.listdir(tmp_path) == ["latest.pt"]


def test_a_signal_on_one_rank_makes_all_save(tmp_path: Path) -> None:
    for start, saved, resumed, same, schedule in run_ranks(
        2, jobs.try_saves, str(tmp_path / "latest.pt")
    ):
        assert start == (0, 0, None)
        assert saved == [False, True]
        assert resumed == (1, 11, {"rng": 5})
        assert same and schedule


def test_wrong_others_are_refused_on_every_rank(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.save_uncleanly, str(tmp_path / "x"), {"model": 1})
    assert len(errors) == 2 and all("'model'" in error for error in errors.values())


@pytest.mark.slow
def test_parts_load_onto_sharded_models(tmp_path: Path) -> None:
    path = str(tmp_path / "latest.pt")
    run_ranks(3, jobs.save_for_shards, path)
    assert run_ranks(2, jobs.load_onto_shards, path) == [[True, True, True]] * 2


@pytest.mark.slow
def test_a_killed_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    context = fork_context()
    path = tmp_path / "latest.pt"
    for attempt in range(4):
        started = context.Event()
        process = context.Process(
            target=jobs.save_for_ever, args=(str(path), str(tmp_path / f"store{attempt}"), started)
        )
        process.start()
        assert started.wait(120)
        time.sleep(0.05 * attempt)
        process.kill()
        process.join()
        state = varve.hfai.load(path)
        assert torch.equal(state["model"]["weight"], torch.full((512, 512), float(state["n"])))
        assert varve.verify(path) == []
