"""Ranks that save without each other (coordinate=False) into a bucket of a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from async_jobs import save_uncoordinated as save_apart_in_background
from command_line import command
from rank_jobs import load_uncoordinated, save_uncoordinated
from ranks import run_ranks

import varve
import varve.torch


def test_they_are_one_checkpoint_when_the_last_has_saved(bucket: Any, tmp_path: Path) -> None:
    path = f"s3://{bucket.name}/run/step-4"
    run_ranks(3, save_uncoordinated, path, b"a" * 16, (0, 2))
    (entry,) = varve.list_checkpoints(f"s3://{bucket.name}/run")
    assert entry.state == "incomplete" and "rank 1" in entry.detail
    for call in (varve.torch.read, varve.verify, varve.repair):
        with pytest.raises(varve.PreconditionError, match="rank"):
            call(path)
    run_ranks(3, save_uncoordinated, path, b"a" * 16, (1,))
    assert run_ranks(2, load_uncoordinated, path) == [0, 1]
    assert "clean" in command("verify", path)
    assert command("latest", f"s3://{bucket.name}/run").strip() == path
    command("upload", path, str(tmp_path / "copy"))
    assert varve.torch.read(tmp_path / "copy")["step"] == 4
    before = sorted(one.key for one in bucket.objects.all())
    assert varve.repair(path) is False  # It has no index, and needs none.
    assert sorted(one.key for one in bucket.objects.all()) == before
    assert "removed" in command("rm", path)
    assert not list(bucket.objects.all())


def test_a_complete_save_is_only_replaced_on_request(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    varve.torch.save({"step": 1}, path, coordinate=False)
    with pytest.raises(varve.CheckpointExistsError, match="overwrite"):
        varve.torch.save({"step": 2}, path, coordinate=False)
    varve.torch.save({"step": 2}, path, coordinate=False, overwrite=True)
    assert varve.torch.read(path)["step"] == 2
    assert len(list(bucket.objects.all())) == 1


def test_they_save_in_the_background_too(bucket: Any) -> None:
    prefix = f"s3://{bucket.name}/run"
    jobs = run_ranks(2, save_apart_in_background, prefix)
    assert jobs == [[True] * 3] * 2


def test_the_agent_writes_such_a_save(agent: str, bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    w = torch.arange(1 << 20)
    handle = varve.torch.async_save({"w": w}, path, coordinate=False, executor="process")
    handle.result(120.0)
    assert torch.equal(varve.torch.read(path)["w"], w)
    assert [one.key.count("/") for one in bucket.objects.all()] == [2]
