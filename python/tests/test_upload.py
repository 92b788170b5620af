"""Saves that go to a local directory and then to an object store, Ceph's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buckets import keys_in
from command_line import command
from ranks import run_ranks
from s3_dcp_jobs import save_dcp
from upload_jobs import (
    load_ranks,
    save_and_upload,
    save_and_upload_in_the_background,
    save_where_one_rank_cannot_upload,
    save_with_uploads_of_its_own,
)

import varve
import varve.torch


def notes_in(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".varve-upload"))


# ---- one save ----


def test_a_save_returns_when_both_are_durable(bucket: Any, tmp_path: Path) -> None:
    state = {"w": np.arange(3_000_000, dtype=np.int64), "step": 1}
    remote = f"s3://{bucket.name}/run/step-1"
    varve.save(state, tmp_path / "step-1", upload_to=remote, files={"config.json": b"{}"})
    for path in (str(tmp_path / "step-1"), remote):
        assert varve.verify(path) == []
        assert np.array_equal(varve.read(path)["w"], state["w"])
        assert varve.files(path)["config.json"] == b"{}"
    assert notes_in(tmp_path) == []
    report = varve.upload(tmp_path / "step-1", remote)  # Nothing is to be done.
    assert report.was_there and report.bytes == 0


def test_a_failed_upload_keeps_the_local_checkpoint_and_can_be_made_later(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = os.environ["AWS_SECRET_ACCESS_KEY"]
    save = """
import os, sys, numpy, varve
try:
    varve.save({"w": numpy.arange(1000)}, sys.argv[1], upload_to=sys.argv[2], overwrite=True)
except varve.Error as error:
    print(error)
"""
    remote = f"s3://{bucket.name}/run/step-1"
    said = subprocess.run(
        [sys.executable, "-c", save, str(tmp_path / "step-1"), remote],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "AWS_SECRET_ACCESS_KEY": "not the key"},
    ).stdout
    assert "403" in said and right not in said, said
    assert f"`varve upload --overwrite {tmp_path / 'step-1'} {remote}` makes it" in said, said
    assert varve.verify(tmp_path / "step-1") == []
    assert keys_in(bucket) == []
    listed = command("ls", str(tmp_path))
    assert f"its upload to {remote} is pending" in listed
    varve.save({"w": np.arange(10)}, tmp_path / "step-2")
    assert "is pending" in command("prune", str(tmp_path), "--keep", "last=1")
    assert (tmp_path / "step-1").is_dir()  # Retention leaves it.
    assert "uploaded" in command("upload", str(tmp_path / "step-1"), remote)
    assert varve.read(remote)["w"][-1] == 999
    assert notes_in(tmp_path) == []
    command("prune", str(tmp_path), "--keep", "last=1")
    assert not (tmp_path / "step-1").exists()


def test_a_server_that_is_not_there_fails_the_save_and_names_it(
    bucket: Any, tmp_path: Path
) -> None:
    save = "import sys, numpy, varve; varve.save({'w': numpy.arange(9)}, sys.argv[1], upload_to='s3://b/x')"
    ended = subprocess.run(
        [sys.executable, "-c", save, str(tmp_path / "step-1")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "VARVE_S3_RETRY_TIMEOUT": "1"},
    )
    assert ended.returncode == 1 and "UnavailableError" in ended.stderr
    assert "s3://b/x" in ended.stderr and "is published and stays" in ended.stderr
    assert varve.verify(tmp_path / "step-1") == []


def test_a_damaged_local_file_is_not_published(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step-1", f"s3://{bucket.name}/run/step-1"
    varve.save({"w": np.arange(3_000_000)}, path)
    (data,) = path.glob("data-*")
    with open(data, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(varve.CorruptCheckpointError, match="damaged and was not uploaded"):
        varve.upload(path, remote)
    assert not [key for key in keys_in(bucket) if "varve-probe" not in key]
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read(remote)


def test_a_save_that_fails_is_not_uploaded(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step-1", f"s3://{bucket.name}/run/step-1"
    varve.save({"w": np.arange(10)}, path)
    with pytest.raises(varve.CheckpointExistsError):
        varve.save({"w": np.arange(20)}, path, upload_to=remote)
    assert keys_in(bucket) == [] and notes_in(tmp_path) == []
    varve.save({"w": np.arange(20)}, path, overwrite=True, upload_to=remote)
    assert len(varve.read(remote)["w"]) == 20
    varve.save({"w": np.arange(30)}, path, overwrite=True, upload_to=remote)
    assert len(varve.read(remote)["w"]) == 30


def test_a_full_disk_fails_the_save_before_anything_is_uploaded(
    bucket: Any, small_disk: Path
) -> None:
    remote = f"s3://{bucket.name}/run/step-1"
    with pytest.raises(varve.OutOfSpaceError):
        varve.save({"w": np.zeros(9 << 20, np.uint8)}, small_disk / "step-1", upload_to=remote)
    assert keys_in(bucket) == [] and os.listdir(small_disk) == []
    varve.save({"w": np.zeros(4 << 20, np.uint8)}, small_disk / "step-1", upload_to=remote)
    assert varve.verify(remote) == [] and os.listdir(small_disk) == ["step-1"]


def test_uploads_that_make_no_sense_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    for given, says in (
        (path, "where the checkpoint is saved"),
        ("ftp://b/x", "ftp://"),
        ("", "empty"),
    ):
        with pytest.raises(varve.Error, match=says):
            varve.save({"w": np.arange(3)}, path, upload_to=given)
    with pytest.raises(varve.InvalidArgumentError, match="coordinate=False"):
        varve.torch.save({"w": torch.zeros(3)}, path, coordinate=False, upload_to="s3://b/x")
    with pytest.raises(varve.Error, match="file system"):
        varve.save({"w": np.arange(3)}, "s3://b/y", upload_to="s3://b/x")
    assert os.listdir(tmp_path) == []


def test_a_dcp_checkpoint_is_uploaded_with_its_index_last(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step-1", f"s3://{bucket.name}/run/step-1"
    for value in (1, 2):
        state = {"w": torch.full((100_000,), value)}
        varve.torch.save(state, path, format="dcp", overwrite=True)
        if value == 2:
            with pytest.raises(varve.CheckpointExistsError, match="in place"):
                varve.upload(path, remote, overwrite=True)
        varve.upload(path, remote, in_place=value == 2)
        assert varve.torch.read(remote)["w"][0] == value
    written = {one.key: one.last_modified for one in bucket.objects.all()}
    assert max(written, key=lambda key: written[key]).endswith(".metadata")
    assert not [key for key in written if "varve-upload" in key]


# ---- several ranks, and the background ----


def test_dcp_checkpoints_of_ranks_that_saved_apart_get_a_mark(bucket: Any, tmp_path: Path) -> None:
    run_ranks(2, save_dcp, str(tmp_path / "a"), 3, "apart")
    where = f"s3://{bucket.name}/a"
    varve.upload(tmp_path / "a", where)
    assert {"a/__0.metadata", "a/__1.metadata", "a/.varve-uploaded"} <= set(keys_in(bucket))
    # As an upload leaves it that died before its last step, and before the one before.
    bucket.put_object(Key="a/.varve-uploading", Body=b"of one that died")
    assert varve.verify(where) == []
    bucket.Object("a/.varve-uploaded").delete()
    with pytest.raises(varve.PreconditionError, match="under way there, or has died"):
        varve.verify(where)


def test_two_ranks_upload_their_own_files(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step-1"
    run_ranks(2, save_and_upload, str(tmp_path / "step-1"), remote)
    assert run_ranks(3, load_ranks, remote) == [True] * 3
    assert notes_in(tmp_path) == []


def test_a_rank_that_cannot_upload_fails_all(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run/step-1"
    said = run_ranks(2, save_where_one_rank_cannot_upload, str(tmp_path / "step-1"), remote)
    assert said[0] == said[1] and "rank 1" in said[0] and "403" in said[0]
    assert run_ranks(2, load_ranks, str(tmp_path / "step-1")) == [True] * 2
    assert not [key for key in keys_in(bucket) if "varve.json" in key]


def test_saves_in_the_background_end_when_they_are_uploaded(bucket: Any, tmp_path: Path) -> None:
    run, remote = str(tmp_path), f"s3://{bucket.name}/run"
    run_ranks(2, save_and_upload_in_the_background, run, remote)
    for step in (1, 2, 3):
        assert run_ranks(1, load_ranks, f"{remote}/step-{step}") == [True]
    assert notes_in(tmp_path) == []


def test_a_background_save_whose_upload_fails_says_so(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = varve.torch.async_save(
        {"w": torch.zeros(10)}, tmp_path / "step-1", upload_to="s3://varve-no-such-bucket/x"
    )
    with pytest.raises(varve.Error, match="is published and stays"):
        handle.result(120)
    assert varve.verify(tmp_path / "step-1") == []
    assert len(notes_in(tmp_path)) == 1


# ---- deaths ----

SAVE = """
import sys, numpy, varve
varve.save({"w": numpy.arange(30_000_000)}, sys.argv[1], overwrite=True, upload_to=sys.argv[2])
print("done", flush=True)
"""


def test_a_kill_between_publishing_and_the_remote_record_leaves_a_pending_upload(
    bucket: Any, tmp_path: Path
) -> None:
    path, remote = tmp_path / "step-1", f"s3://{bucket.name}/run/step-1"
    child = subprocess.Popen([sys.executable, "-c", SAVE, str(path), remote])
    until = time.monotonic() + 60
    while not (path / "varve.json").exists():
        assert time.monotonic() < until and child.poll() is None
        time.sleep(0.001)
    child.kill()
    child.wait()
    assert varve.verify(path) == []
    assert len(notes_in(tmp_path)) == 1
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read(remote)
    # The same script once more.
    again = subprocess.run(
        [sys.executable, "-c", SAVE, str(path), remote], capture_output=True, text=True, check=True
    )
    assert again.stdout == "done\n"
    assert varve.read(remote)["w"][-1] == 29_999_999
    assert notes_in(tmp_path) == []


def test_ctrl_c_during_the_upload_leaves_nothing_visible(bucket: Any, tmp_path: Path) -> None:
    path, remote = tmp_path / "step-1", f"s3://{bucket.name}/run/step-1"
    child = subprocess.Popen(
        [sys.executable, "-c", SAVE, str(path), remote], stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (path / "varve.json").exists():
        assert time.monotonic() < until and child.poll() is None
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert varve.verify(path) == []
    assert len(notes_in(tmp_path)) == 1
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.read(remote)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("others", ["another place", "none"])
def test_ranks_that_give_other_places_are_told_so(
    kind: str, others: str, bucket: Any, tmp_path: Path
) -> None:
    path = tmp_path / "step-1"
    first = f"s3://{bucket.name}/a"
    remotes = [first, None if others == "none" else f"s3://{bucket.name}/b"]
    second = "none" if others == "none" else f'"{remotes[1]}"'
    for error in run_ranks(2, save_with_uploads_of_its_own, str(path), remotes, kind):
        assert error.startswith("InvalidArgumentError: save ") and str(path) in error, error
        assert "ranks differ in upload_to" in error and "same arguments" in error, error
        assert f'"{first}" on rank 0' in error and f"{second} on rank 1" in error, error
    assert not path.exists() and list(bucket.objects.all()) == []


# ---- what is left out ----


def a_folder(kind: str, path: Path) -> None:
    """Makes a checkpoint with files of another program beside it."""
    state = {"w": torch.ones(3)}
    varve.torch.save(state, path, format=kind)  # type: ignore[arg-type]
    (path / "logs").mkdir()
    for name in ("optimizer.pt", "trainer_state.json", "logs/a.txt", ".hidden"):
        (path / name).write_bytes(b"{}")


LEFT_OUT = ["logs/a.txt", "optimizer.pt", "trainer_state.json"]


@pytest.mark.parametrize("kind", ["hf", "dcp", "varve"])
def test_an_upload_names_the_files_that_it_leaves_out(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_folder(kind, tmp_path / "a")
    report = varve.upload(tmp_path / "a", tmp_path / "b")
    assert report.left_out == LEFT_OUT and not report.was_there
    assert not (tmp_path / "b" / "optimizer.pt").exists()
    assert varve.torch.read(tmp_path / "b")["w"].tolist() == [1.0] * 3
    [message] = caplog.messages
    assert message == (
        f"upload {tmp_path / 'a'}: {', '.join(LEFT_OUT)} are no part of the checkpoint, and are not in "
        "the copy"
    )
    output = command("upload", str(tmp_path / "a"), str(tmp_path / "c"))
    assert f"left out, for they are no part of the checkpoint: {', '.join(LEFT_OUT)}" in output
    assert "left out" not in command("upload", str(tmp_path / "b"), str(tmp_path / "d"))
