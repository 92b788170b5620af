"""Checkpoints in DCP's format as objects of a real S3 server, and stock torch as their reader."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from buckets import fetch, keys_in
from command_line import command
from ranks import errors_of_ranks, run_ranks
from s3_dcp_jobs import die_in_an_upload, load_dcp, save_dcp
from s3_jobs import load_ranks
from test_s3 import small_state

import varve
import varve.torch
import varve.torch.dcp

WAYS = [
    "format",
    "format in the background",
    "plain",
    "format by the agent",
    "in the background",
    "by the agent",
    "by threads",
    "installed",
]


def stock_reader(path: str) -> Any:
    """torch's reader of files over s3torchconnector."""
    reader = pytest.importorskip("s3torchconnector.dcp").S3StorageReader
    config = pytest.importorskip("s3torchconnector").S3ClientConfig(force_path_style=True)
    return reader("us-east-1", path, s3client_config=config)


def whole_state(value: int = 0) -> dict[str, Any]:
    """The state of s3_jobs.state_of on one rank."""
    w = torch.arange(1 << 19, dtype=torch.int64).view(-1, 64) + value
    return {"w": w, "b": torch.full((1000,), float(value)), "step": value}


def load_by_torch(reader: Any) -> int:
    state = whole_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader)
    want = whole_state(state["step"])
    assert torch.equal(state["w"], want["w"])
    assert torch.equal(state["b"], want["b"])
    return int(state["step"])


@pytest.mark.parametrize("how", WAYS)
def test_ranks_save_over_a_checkpoint_and_anyone_loads(
    bucket: Any, how: str, agent: str, tmp_path: Path
) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    for value in (4, 5):
        run_ranks(2, save_dcp, path, value, how)
        keys = keys_in(bucket)
        assert keys[0] == "run/step-1/.metadata"
        assert len({key.rsplit("/", 1)[0] for key in keys}) == 2, keys
        assert len(keys) == (4 if how == "by threads" else 3)
    assert run_ranks(3, load_dcp, path) == [(5, True)] * 3
    assert run_ranks(1, load_ranks, path) == [(5, True)]
    assert "clean" in command("verify", path)
    assert "dcp" in command("ls", f"s3://{bucket.name}/run")
    assert load_by_torch(stock_reader(path)) == 5
    # A copy on a disk is a checkpoint, also for torch, and is replaced as one.
    copy = fetch(bucket, "run/step-1", tmp_path)
    assert load_by_torch(dcp.FileSystemReader(copy)) == 5
    varve.torch.save(small_state(6), copy, format="dcp", overwrite=True)
    assert sorted(file.name for file in copy.rglob("*")) == [".metadata", "__0_0.distcp"]


def test_ranks_that_save_apart_have_an_index_each(bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    for value in (1, 2):
        run_ranks(2, save_dcp, path, value, "apart")
        assert len(keys_in(bucket)) == 4
    assert {"c/__0.metadata", "c/__1.metadata"} <= set(keys_in(bucket))
    assert run_ranks(2, load_dcp, path) == [(2, True)] * 2
    run_ranks(2, save_dcp, path, 3, "plain")
    assert "c/.metadata" in keys_in(bucket)
    assert len(keys_in(bucket)) == 3
    with pytest.raises(varve.torch.dcp.CheckpointError, match="ranks saved together"):
        varve.torch.dcp.save(small_state(), checkpoint_id=path, use_collectives=False)


def test_the_metadata_that_is_returned_is_that_of_the_checkpoint(bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    first, other = run_ranks(2, save_dcp, path, 1, "plain")
    keys = set(keys_in(bucket))
    assert {f"c/{info.relative_path}" for info in first.storage_data.values()} < keys
    assert first.storage_data == other.storage_data
    assert first.storage_meta.checkpoint_id == path


def test_a_checkpoint_of_torchs_is_read_and_replaced(bucket: Any, tmp_path: Path) -> None:
    dcp.save(whole_state(3), checkpoint_id=tmp_path / "c")
    for file in (tmp_path / "c").iterdir():
        bucket.upload_file(str(file), f"c/{file.name}")
    bucket.put_object(Key="c/notes.txt", Body=b"a user's")
    path = f"s3://{bucket.name}/c"
    state = whole_state()
    varve.torch.dcp.load(state, checkpoint_id=path)
    assert state["step"] == 3
    with pytest.raises(varve.CheckpointExistsError):
        varve.torch.save(whole_state(4), path, format="dcp")
    varve.torch.dcp.save(whole_state(4), checkpoint_id=path)
    assert load_by_torch(stock_reader(path)) == 4
    assert len(keys_in(bucket)) == 3
    assert "c/notes.txt" in keys_in(bucket)
    command("rm", path)
    assert keys_in(bucket) == []


def test_a_first_save_goes_beside_other_objects_and_overwrite_is_heard(bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    bucket.put_object(Key="c/notes.txt", Body=b"a user's")
    with pytest.raises(varve.PreconditionError, match="not a checkpoint"):
        varve.torch.save(small_state(), path, format="dcp")
    varve.torch.dcp.async_save(small_state(1), checkpoint_id=path).result()
    writer = varve.torch.dcp.FileSystemWriter(path, overwrite=False)
    with pytest.raises(varve.torch.dcp.CheckpointError, match="already holds a checkpoint"):
        varve.torch.dcp.save(small_state(2), storage_writer=writer)
    assert varve.torch.read(path, flat=True)["step"] == 1
    assert len(keys_in(bucket)) == 3


def test_files_of_the_checkpoint_are_below_it_and_come_back(bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    varve.torch.save(small_state(), path, format="dcp", files={"conf/a.json": b"{}"})
    assert dict(varve.files(path)) == {"conf/a.json": b"{}"}
    assert varve.verify(path) == []


def test_convert_makes_one_and_reads_one(bucket: Any) -> None:
    native, made = (f"s3://{bucket.name}/run/{name}" for name in ("step-1", "step-1-dcp"))
    varve.torch.save(whole_state(2), native)
    command("convert", native, made, "--to", "dcp")
    assert load_by_torch(stock_reader(made)) == 2
    assert "already holds" in command("convert", native, made, "--to", "dcp", code=2)
    command("convert", native, made, "--to", "dcp", "--overwrite")
    command("diff", native, made)


def test_errors_name_what_is_wrong(bucket: Any) -> None:
    with pytest.raises(varve.torch.dcp.CheckpointError, match="s3://no-such-bucket-"):
        varve.torch.dcp.save(small_state(), checkpoint_id="s3://no-such-bucket-of-ours/c")
    with pytest.raises(varve.torch.dcp.CheckpointError, match="no checkpoint"):
        varve.torch.dcp.load(small_state(), checkpoint_id=f"s3://{bucket.name}/none")
    path = f"s3://{bucket.name}/c"
    varve.torch.save(small_state(), path)
    with pytest.raises(varve.torch.dcp.CheckpointError, match="varve rm"):
        varve.torch.dcp.save(small_state(), checkpoint_id=path)


@pytest.mark.slow
def test_a_rank_killed_in_an_upload_leaves_a_whole_checkpoint(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    run_ranks(2, save_dcp, path, 7, "format")
    for after in (1.5, 2.2, 3.0):
        errors_of_ranks(2, die_in_an_upload, path, after, dead=(1,))
        assert varve.verify(path) == []
        assert varve.torch.read(path, flat=True)["step"] in (7, *range(100, 200))
    report = command("gc", f"s3://{bucket.name}/run")
    ours = re.compile(r"run/step-1/(\.metadata|varve-data-[0-9a-f]{32}/__[01]_0\.distcp)")
    assert all(ours.fullmatch(key) for key in keys_in(bucket)), report
    run_ranks(2, save_dcp, path, 8, "plain")
    assert load_by_torch(stock_reader(path)) == 8
