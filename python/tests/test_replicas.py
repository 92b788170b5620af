"""Replicas that differ: found by the save, stored as one rank has them, never as a mix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import replica_jobs as jobs
import torch
from ranks import errors_of_ranks, run_ranks

import varve
import varve.torch


@pytest.mark.parametrize("how", ["save", "thread", "process"])
@pytest.mark.parametrize("format", ["varve", "dcp"])
def test_the_lowest_ranks_replica_is_stored_and_rank_0_warns(
    how: str, format: str, tmp_path: Path, agent: str
) -> None:
    path = str(tmp_path / "step")
    first, *others = run_ranks(3, jobs.save_diverged, path, how, {"format": format})
    names, texts = first
    assert names == ["mean", "w"]
    assert len(texts) == 1 and "mean, w" in texts[0] and "PerRank" in texts[0]
    assert others == [([], []), ([], [])]
    stored = varve.torch.read(path)
    for name, tensor in jobs.diverged(0).items():
        torch.testing.assert_close(stored[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["save", "thread"])
def test_error_refuses_on_all_ranks_and_leaves_nothing(how: str, tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    options: dict[str, Any] = {"on_difference": "error"}
    errors = errors_of_ranks(2, jobs.save_diverged, path, how, options)
    assert all("PreconditionError" in e and "mean, w" in e for e in errors.values()), errors
    assert all("varve.torch.PerRank" in e for e in errors.values()), errors
    assert "step" not in os.listdir(tmp_path)


@pytest.mark.slow
def test_a_shard_that_differs_is_found_and_the_others_are_spread(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    reports = run_ranks(4, jobs.save_diverged_hsdp, path)
    assert [names for names, _ in reports] == [["w"], [], [], []]
    stored = varve.torch.read(path)["w"]
    assert stored[: jobs.ELEMENTS // 2].unique().tolist() == [0.0]
    assert stored[jobs.ELEMENTS // 2 :].unique().tolist() == [1.0]


def test_what_samples_miss_is_stored_as_one_rank_has_it(tmp_path: Path) -> None:
    assert run_ranks(2, jobs.save_sparse, str(tmp_path / "x")) in ([[0, 1]] * 2, [[0, 2]] * 2)


def test_a_full_check_finds_what_samples_miss(tmp_path: Path) -> None:
    for options, expected in (({}, []), ({"check_replicas": "full"}, ["w"])):
        path = str(tmp_path / f"step-{len(options)}")
        assert run_ranks(2, jobs.save_flipped_bit, path, options)[0][0] == expected


def test_batch_norm_buffers_under_ddp_are_reported(tmp_path: Path) -> None:
    names, texts = run_ranks(2, jobs.save_batch_norm, str(tmp_path / "step"))[0]
    assert names == ["model.running_mean", "model.running_var"]
    assert len(texts) == 1


def test_unknown_choices_are_named(tmp_path: Path) -> None:
    for name, wanted in (("on_difference", '"error"'), ("check_replicas", '"full"')):
        with pytest.raises(varve.InvalidArgumentError, match=f"{name}=.*{wanted}"):
            varve.torch.save({"w": torch.ones(2)}, tmp_path / "x", **{name: "perhaps"})
