"""Ranks whose tensors are on devices, with a stand-in for the driver."""

from __future__ import annotations

from pathlib import Path

import cuda_rank_jobs as jobs
import pytest
from cuda_stand_in import library
from ranks import run_ranks

import varve
import varve.torch


@pytest.mark.slow
def test_replicas_on_devices_are_compared_by_saves_of_each_kind(tmp_path: Path) -> None:
    first, second = run_ranks(2, jobs.replicas, library(), str(tmp_path))
    assert list(first) == list(jobs.SAVES)
    for kind, texts in first.items():
        assert len(texts) == 1, kind
        for name in ("differs.large", "differs.small", "differs.strided"):
            assert name in texts[0], kind
        for name in ("equal", "sharded", "replicated", "own0", "own1"):
            assert name not in texts[0], kind
        path = tmp_path / kind / "saved"
        assert varve.verify(path) == [], kind
        sharded = varve.torch.read(path, "sharded")["sharded"]
        assert sharded[:, 0].tolist() == [0.0] * 4 + [1.0] * 4, kind
    assert not any(second.values()), "rank 0 warns, for all"


def test_a_device_that_fails_while_replicas_are_compared_fails_the_save_by_name(
    tmp_path: Path,
) -> None:
    for errors in run_ranks(2, jobs.a_device_that_fails, library(), str(tmp_path)):
        (error,) = errors
        assert "CheckpointError" in error and "rank 1" in error
        assert "compare the replicas of tensors on devices" in error
        assert "from CUDA device 1" in error and "719" in error
    assert varve.verify(tmp_path / "saved") == []
