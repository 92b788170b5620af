"""varve.olmo with remote storage: Ceph's S3, from real FSDP on gloo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import olmo_remote_jobs as jobs
import programs
import pytest
import torch
import torch.distributed.checkpoint
from buckets import fetch, keys_in
from command_line import command
from ranks import run_ranks
from test_olmo import LAYOUTS, assert_equal_states, states

import varve
import varve.olmo as olmo
import varve.torch
from varve.olmo import _remote


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_uploaded_and_restored_from_there(
    layout: str, bucket: Any, tmp_path: Path
) -> None:
    path, remote = tmp_path / "step1", f"s3://{bucket.name}/run/step1"
    wanted = states(run_ranks(2, jobs.save, layout, str(path), remote)[0])
    here = {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    there = {
        key[len("run/step1/") :]: bucket.Object(key).get()["Body"].read()
        for key in keys_in(bucket, "run/step1/")
    }
    assert there == here and "config.yaml" in there
    assert os.listdir(tmp_path) == ["step1"]  # No note is left.
    shutil.rmtree(path)
    assert_equal_states(varve.torch.read(remote), wanted)
    found, step = run_ranks(3, jobs.restore, remote + "/", None)[0]
    assert_equal_states(states(found), wanted)
    assert step == 100
    model, optim, train = olmo.LocalShardedCheckpointer(jobs.jobs.Config()).unshard_checkpoint(
        remote
    )
    assert_equal_states({"model": model, "optim": optim}, wanted)
    assert train is not None and train["global_step"] == 100


@pytest.mark.parametrize("layout", ["torch_legacy", "torch_new"])
def test_a_remote_checkpoint_is_replaced_in_place_only(
    layout: str, bucket: Any, tmp_path: Path
) -> None:
    path, remote = tmp_path / "step1", f"s3://{bucket.name}/run/step1"
    results = run_ranks(2, jobs.save_twice, layout, str(path), remote)
    for _, refused in results:
        assert "in place" in refused and "is published and stays" in refused
    assert_equal_states(varve.torch.read(remote), states(results[0][0]))
    assert [key for key in keys_in(bucket, "run/") if "varve" in key and "probe" not in key] == []


def test_uploads_in_the_background(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run"
    run_ranks(2, jobs.save_in_the_background, str(tmp_path), remote)
    for step in (1, 2):
        assert varve.diff(str(tmp_path / f"step{step}"), f"{remote}/step{step}") == []


def test_a_save_of_a_directory_waits_until_it_is_uploaded(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step1", f"s3://{bucket.name}/run"
    saved = run_ranks(2, jobs.save_again_while_it_is_uploaded, str(path), remote)[0]
    for seed in (1, 2):
        assert_equal_states(varve.torch.read(f"{remote}/seed{seed}"), states(saved[seed - 1]))


def test_each_node_uploads_its_own_files(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    run_ranks(4, jobs.save_on_nodes, str(tmp_path), remote)
    names = {
        f"{folder}/rank{rank}.pt" for folder in ("model", "optim", "train") for rank in range(4)
    }
    expected = sorted(f"run/step1/{name}" for name in (*names, "config.yaml", "metadata.yaml"))
    assert keys_in(bucket, "run/step1/") == expected
    assert run_ranks(2, jobs.restore, remote, None)[0][1] == 100


def test_a_failed_upload_keeps_the_local_checkpoint_and_raises_everywhere(
    bucket: Any, tmp_path: Path
) -> None:
    path, remote = tmp_path / "step1", f"s3://{bucket.name}/run/step1"
    results = run_ranks(2, jobs.fail, str(path), remote)
    for name, text, pickles in results:
        assert name == "OLMoNetworkError" and pickles
        assert "rank 1" in text and "is published and stays" in text
    for rank in (0, 1):
        os.rmdir(tmp_path / f"step1-{rank}")  # Their working directories: nothing was made in them.
    assert varve.verify(path) == []
    assert not [key for key in keys_in(bucket, "run/step1") if key.endswith("config.yaml")]
    # The command makes the upload, and the note goes.
    command("upload", path, remote)
    assert varve.diff(str(path), remote) == []
    assert os.listdir(tmp_path) == ["step1"]


def test_a_mirror_is_read_where_it_is_one(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step1", f"s3://{bucket.name}/run/step1"
    wanted = states(run_ranks(2, jobs.save, "torch_new", str(path), remote)[0])
    cache = fetch(bucket, "run/step1", tmp_path / "cache")
    from varve.olmo._remote import readable

    assert readable(remote, cache) == str(cache)
    assert readable(remote + "/", f"file://{cache}/") == str(cache)
    assert_equal_states(states(run_ranks(2, jobs.restore, remote, str(cache))[0][0]), wanted)
    # One that is half there, or of another save, is not.
    (data,) = list((cache / "model_and_optim").glob("__0_*"))[:1]
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.warns(UserWarning, match="no mirror"):
        assert readable(remote, cache) == remote
    data.write_bytes(content)
    index = cache / "model_and_optim" / ".metadata"
    index.write_bytes(index.read_bytes()[:-2] + b"..")
    with pytest.warns(UserWarning, match="differs"):
        assert readable(remote, cache) == remote


def test_a_model_and_its_optimizer_go_there_and_come_back(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    results = run_ranks(2, jobs.save_model_and_optim, str(tmp_path / "step1"), remote)
    for found, wanted in results:
        assert_equal_states(states(found), states(wanted))
    assert keys_in(bucket, "run/step1/model_and_optim/")[0].endswith(".metadata")


def test_the_storage_classes_of_dcp(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step1"
    assert run_ranks(2, jobs.dcp_of_torch, str(tmp_path / "x"), remote) == [True] * 2
    reader = olmo.RemoteFileSystemReader(remote, thread_count=2, pre_download=True)
    assert reader.checkpoint_id == remote
    assert reader.read_metadata().state_dict_metadata
    with pytest.raises(FileNotFoundError):
        olmo.RemoteFileSystemReader(remote + "-no").read_metadata()
    # Without a local directory, as OLMo-core writes.
    direct = f"s3://{bucket.name}/run/direct/"
    state = {"w": torch.arange(6.0)}
    torch.distributed.checkpoint.save(
        state, checkpoint_id=direct, storage_writer=olmo.RemoteFileSystemWriter(direct)
    )
    found = {"w": torch.zeros(6)}
    torch.distributed.checkpoint.load(
        found, checkpoint_id=direct, storage_reader=olmo.RemoteFileSystemReader(direct)
    )
    assert torch.equal(found["w"], state["w"])
    with pytest.raises(ValueError, match="remote itself"):
        olmo.RemoteFileSystemWriter(direct, upload_to=remote)


def test_the_storage_classes_take_the_arguments_of_both_originals(tmp_path: Path) -> None:
    """OLMo 0.6 and OLMo-core 3.0, whose functions pass theirs by keyword."""
    writer = olmo.RemoteFileSystemWriter(
        f"file://{tmp_path}/a/",
        thread_count=2,
        process_count=None,
        process_group=None,
        throttle_uploads=False,
    )
    assert str(writer.checkpoint_id) == str(tmp_path / "a")
    assert writer.metadata_path == str(tmp_path / "a" / ".metadata")
    olmo.RemoteFileSystemWriter(
        tmp_path / "a",
        single_file_per_rank=True,
        sync_files=True,
        thread_count=1,
        per_thread_copy_ahead=10_000_000,
        upload_to="s3://bucket/a/",
        save_overwrite=False,
    )
    for reader in (
        olmo.RemoteFileSystemReader(tmp_path, thread_count=1, pre_download=True, work_dir=tmp_path),
        olmo.RemoteFileSystemReader(f"file://{tmp_path}/", local_cache=None),
    ):
        assert reader.checkpoint_id == str(tmp_path)


def test_files_of_state_dicts(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step1/"
    state = {"w": torch.arange(6.0), "step": 3}
    olmo.save_state_dict(tmp_path, "train/rank0.pt", state, upload_to=remote, synchronize=False)
    found = olmo.load_state_dict(remote, "train/rank0.pt")
    assert torch.equal(found["w"], state["w"]) and found["step"] == 3
    with pytest.raises(FileExistsError):  # OLMo forgets the rule for `train/`.
        (tmp_path / "train/rank0.pt").unlink()
        olmo.save_state_dict(tmp_path, "train/rank0.pt", state, upload_to=remote, synchronize=False)
    olmo.save_state_dict(
        tmp_path,
        "train/rank0.pt",
        {"step": 4},
        upload_to=remote,
        save_overwrite=True,
        synchronize=False,
    )
    assert olmo.load_state_dict(remote, "train/rank0.pt") == {"step": 4}
    # A mirror's file is taken where it is what is there.
    assert olmo.load_state_dict(remote, "train/rank0.pt", local_cache=tmp_path) == {"step": 4}
    (tmp_path / "train/rank0.pt").write_bytes(b"half")
    with pytest.warns(UserWarning, match="mirror"):
        assert olmo.load_state_dict(remote, "train/rank0.pt", local_cache=tmp_path) == {"step": 4}
    with pytest.raises(FileNotFoundError):
        olmo.load_state_dict(remote, "train/rank1.pt")


def test_files_of_web_servers_are_loaded(tmp_path: Path) -> None:
    olmo.save_state_dict(tmp_path / "x", "train/rank0.pt", {"step": 5}, synchronize=False)
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split(" port ")[1].split()[0]
        there = f"http://127.0.0.1:{port}/x/"
        assert olmo.load_state_dict(there, "train/rank0.pt") == {"step": 5}
        with pytest.raises(FileNotFoundError):
            olmo.load_state_dict(there, "train/rank1.pt")
    finally:
        server.terminate()
        server.wait()


def test_a_server_that_is_away_is_an_error_of_olmos(bucket: Any, tmp_path: Path) -> None:
    script = """
import sys, torch, varve.olmo as olmo
try:
    olmo.save_state_dict(sys.argv[1], "a.pt", {"w": torch.zeros(3)}, upload_to="s3://b/x", synchronize=False)
except olmo.OLMoNetworkError as error:
    print("network", error)
"""
    no_server = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "VARVE_S3_RETRY_TIMEOUT": "1"}
    output = programs.output(script, tmp_path, env={**os.environ, **no_server})
    assert output.startswith("network") and "s3://b/x" in output
    assert (tmp_path / "a.pt").is_file()


def test_kinds_of_storage_that_there_are_not_are_refused(tmp_path: Path) -> None:
    model, optim = jobs.jobs.trained("plain", 1)
    checkpointer = olmo.LocalShardedCheckpointer(jobs.jobs.Config())
    with pytest.raises(NotImplementedError, match="ftp://"):
        checkpointer.save_checkpoint(tmp_path / "x", model, optim, {}, upload_to="ftp://a/b")
    with pytest.raises(NotImplementedError, match="ftp://"):
        checkpointer.save_checkpoint("ftp://b/x", model, optim, {})
    with pytest.raises(NotImplementedError, match="ftp://"):
        checkpointer.restore_checkpoint("ftp://a/b", model, optim)
    assert os.listdir(tmp_path) == []


def test_a_mirror_of_another_step_differs_though_its_sizes_do_not(tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "config.yaml").write_text("model: small")
        torch.save({"w": torch.full((500_000,), step)}, folder / "model.pt")
    sizes = {(tmp_path / str(step) / "model.pt").stat().st_size for step in (1, 2)}
    assert len(sizes) == 1
    assert "model.pt differs" in _remote._difference(str(tmp_path / "1"), str(tmp_path / "2"))
    assert not _remote._difference(str(tmp_path / "1"), str(tmp_path / "1"))
