"""varve.olmo straight into a bucket."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import olmo_remote_jobs as jobs
import pytest
import torch
from buckets import keys_in
from ranks import collect, run_ranks
from test_olmo import LAYOUTS, assert_equal_states, states

import varve
import varve.olmo as olmo
import varve.torch


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_saved_with_a_remote_name_alone(
    layout: str, bucket: Any, tmp_path: Path
) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    results = run_ranks(2, jobs.save_remotely, layout, remote, str(tmp_path))
    assert [error for _, error in results] == ["", ""]
    wanted = states(results[0][0])
    assert_equal_states(varve.torch.read(remote), wanted)
    assert "run/step1/config.yaml" in keys_in(bucket)
    assert not [key for key in keys_in(bucket) if "varve" in key]
    assert [p for p in tmp_path.rglob("*") if p.parent != tmp_path] == []  # Nothing is left there.
    found, step = run_ranks(3, jobs.restore, remote, None)[0]
    assert_equal_states(states(found), wanted)
    assert step == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "kind"),
    [*((layout, "fsdp1") for layout in LAYOUTS), ("torch_new", "fsdp2"), ("torch_new", "ddp")],
)
def test_nodes_with_disks_of_their_own_save_into_one_bucket(
    layout: str, kind: str, bucket: Any, tmp_path: Path
) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    arguments = (layout, kind, remote, str(tmp_path))
    results = run_ranks(4, jobs.save_remotely_on_nodes, *arguments)
    assert [error for _, error in results] == [""] * 4
    wanted = states(results[0][0])
    assert_equal_states(varve.torch.read(remote), wanted)
    assert varve.verify(remote) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    found, step = run_ranks(2, jobs.restore, remote, None)[0]
    assert_equal_states(states(found), wanted)
    assert step == 100


def test_a_checkpoint_that_is_there_is_found_before_anything_is_written(
    bucket: Any, tmp_path: Path
) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    arguments = ("torch_legacy", remote, str(tmp_path))
    first = run_ranks(2, jobs.save_remotely, *arguments)[0][0]
    keys = keys_in(bucket)
    for overwrite, advice in ((False, "save_overwrite"), (True, "remote_overwrite")):
        for _, error in run_ranks(2, jobs.save_remotely, *arguments, 2, overwrite):
            assert error.startswith("CheckpointExistsError") and advice in error
    assert keys_in(bucket) == keys
    assert_equal_states(varve.torch.read(remote), states(first))
    second = run_ranks(2, jobs.save_in_place, *arguments)
    assert [error for _, error in second] == ["", ""]
    assert_equal_states(varve.torch.read(remote), states(second[0][0]))


def test_what_a_killed_job_leaves_in_the_temporary_directory_goes_with_the_next_save(
    bucket: Any, tmp_path: Path
) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    collect(2, jobs.save_remotely_and_die, remote, str(tmp_path), dead=(0, 1))
    left = list(tmp_path.rglob("*.pt"))
    assert left, "the job was killed in its uploads"
    assert "run/step1/config.yaml" not in keys_in(bucket)
    results = run_ranks(2, jobs.save_in_place, "torch_legacy", remote, str(tmp_path))
    assert [error for _, error in results] == ["", ""]
    assert list(tmp_path.rglob("*.pt")) == []
    assert_equal_states(varve.torch.read(remote), states(results[0][0]))


@pytest.mark.parametrize("layout", ["full", "torch_new", "torch_legacy", "olmo_core"])
def test_a_full_temporary_directory_fails_the_save_with_what_helps(
    layout: str, bucket: Any, small_disk: Path
) -> None:
    room = 16 << 10
    used = small_disk / "used"
    used.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
    remote = f"s3://{bucket.name}/run/step1"
    for _, error in run_ranks(2, jobs.save_remotely, layout, remote, str(small_disk)):
        assert error.startswith(f"OutOfSpaceError: save {remote}: writing its files into "), error
        assert "set TMPDIR to a larger disk" in error and "No space left" in error
    assert keys_in(bucket) == []
    assert [path for path in small_disk.rglob("*") if path.is_file()] == [used]


@pytest.mark.parametrize("layout", ["torch_new", "olmo_core"])
def test_one_node_with_a_full_disk_fails_the_save_on_all(
    layout: str, bucket: Any, tmp_path: Path, small_disk: Path
) -> None:
    used = small_disk / "used"
    used.write_bytes(bytes(shutil.disk_usage(small_disk).free - (16 << 10)))
    (tmp_path / "node1").symlink_to(small_disk)
    remote = f"s3://{bucket.name}/run/step1"
    arguments = (layout, "fsdp1", remote, str(tmp_path))
    for _, error in run_ranks(4, jobs.save_remotely_on_nodes, *arguments):
        assert error.startswith(f"OutOfSpaceError: save {remote}: "), error
        assert "set TMPDIR to a larger disk" in error and "No space left" in error
    assert keys_in(bucket) == []
    assert [path for path in small_disk.rglob("*") if path.is_file()] == [used]


def test_functions_take_remote_directories(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    truth = states(run_ranks(2, jobs.save_functions, remote, str(tmp_path))[0])
    assert_equal_states(varve.torch.read(f"{remote}/model_and_optim"), truth)
    for rank in range(2):
        assert torch.equal(
            olmo.load_state_dict(remote, f"rank{rank}.pt")["rank"], torch.tensor(rank)
        )
    assert os.listdir(tmp_path) == []
    assert varve.verify(f"{remote}/model_and_optim") == []
