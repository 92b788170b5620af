"""Saves in the background, by torch's thread and by torch's process."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import dcp_jobs as jobs
import pytest
import torch
from ranks import run_ranks
from torch.distributed.tensor import Shard

import varve
import varve.torch
import varve.torch.dcp as dcp

staging = pytest.importorskip("torch.distributed.checkpoint.staging")


def test_ranks_save_in_threads_and_failures_come_through_the_future(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(2, jobs.async_saves, path, ((2,), (Shard(0),)))
    assert varve.verify(path) == []


def test_a_process_saves_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    (failure,) = run_ranks(1, jobs.async_process, path)
    assert "already exists" in failure
    assert torch.equal(varve.torch.read(path)["w"], torch.arange(1000.0))


def test_the_writer_is_a_stager_that_copies(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path / "step")
    assert isinstance(writer, staging.BlockingAsyncStager)
    tensor = torch.ones(4)
    for value in (1.0, 2.0):
        tensor.fill_(value)
        future = dcp.async_save({"w": tensor}, storage_writer=writer)
        tensor.zero_()
        future.result()
        assert torch.equal(varve.torch.read(tmp_path / "step")["w"], torch.full((4,), value))


@pytest.mark.skipif(not hasattr(staging, "DefaultStager"), reason="this torch has none")
def test_a_stager_that_stages_in_the_background_gives_two_futures(tmp_path: Path) -> None:
    stager = staging.DefaultStager(
        staging.StagingOptions(
            use_async_staging=True,
            use_pinned_memory=False,
            use_shared_memory=False,
            use_non_blocking_copy=False,
        )
    )
    response = dcp.async_save(
        {"w": torch.ones(4)}, checkpoint_id=tmp_path / "step", async_stager=stager
    )
    assert response.staging_completion.result() is None
    assert isinstance(response.upload_completion, Future)
    response.upload_completion.result()
    with pytest.raises(dcp.CheckpointError):
        dcp.async_save(
            {"w": torch.ones(4)},
            storage_writer=dcp.FileSystemWriter(tmp_path / "step", overwrite=False),
            async_stager=stager,
        ).upload_completion.result()
    stager.close()
