"""Checkpoints as objects of a real S3 server, Ceph's. The conftest starts it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from buckets import fetch, keys_in
from command_line import VARVE, command
from ranks import process_of, run_ranks
from s3_jobs import die_in_a_save, load_ranks, save_asynchronously, save_ranks

import varve
import varve.torch


def small_state(value: int = 1) -> dict[str, Any]:
    return {"model": {"w": torch.full((300, 100), value, dtype=torch.int64)}, "step": value}


def test_two_ranks_save_and_three_load(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    run_ranks(2, save_ranks, path, 5, False)
    assert run_ranks(3, load_ranks, path) == [(5, True)] * 3
    assert "clean" in command("verify", path)
    folders = {key.rsplit("/", 1)[0] for key in keys_in(bucket)}
    assert len(folders) == 2  # The record's, and that of the data.


def test_r2_and_weka_are_servers_with_an_endpoint_of_their_own(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import varve.torch; varve.torch.save({'step': 1}, 'weka://b/run/step-1')"
    process = programs.run(script)  # Apart: this one may have an endpoint of that name already.
    assert "InvalidArgumentError" in process.stderr and "WEKA_ENDPOINT_URL" in process.stderr
    monkeypatch.setenv("R2_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # Nobody is there.
    path = f"r2://{bucket.name}/run/step-1"
    varve.torch.save(small_state(3), path)
    assert varve.torch.read(path)["step"] == 3
    assert "clean" in command("verify", path)
    assert any(key.startswith("run/step-1/") for key in keys_in(bucket))


def test_an_asynchronous_save_is_whole_when_it_is_done(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-3"
    run_ranks(2, save_asynchronously, path)
    assert run_ranks(1, load_ranks, path) == [(3, True)]


def test_an_overwrite_replaces_the_checkpoint_and_removes_the_old_one(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    run_ranks(2, save_ranks, path, 1, False)
    before = keys_in(bucket)
    with pytest.raises(varve.CheckpointExistsError):
        varve.torch.save(small_state(), path)
    assert keys_in(bucket) == before
    run_ranks(2, save_ranks, path, 2, True)
    assert run_ranks(2, load_ranks, path) == [(2, True)] * 2
    after = keys_in(bucket)
    assert len(after) == len(before)
    assert not set(before) & set(after)
    assert "run/step-1/varve-2.json" in after


@pytest.mark.parametrize("name", ["a b", "step=1+é:%41", "~*'()!&<>"])
def test_keys_of_all_characters_are_signed(bucket: Any, name: str) -> None:
    path = f"s3://{bucket.name}/{name}/step-1"
    varve.torch.save(small_state(4), path)
    assert varve.torch.read(path)["step"] == 4
    assert f"{name}/step-1/varve.json" in keys_in(bucket)
    varve.remove(path)
    assert keys_in(bucket) == []


def test_files_of_several_parts_come_back(bucket: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    w = torch.randint(0, 256, (50 * (1 << 20) + 17,), dtype=torch.uint8, generator=generator)
    path = f"s3://{bucket.name}/large"
    assert not varve.torch.save({"w": w}, path).weak_publish
    assert torch.equal(varve.torch.read(path)["w"], w)
    assert not list(bucket.multipart_uploads.all())


def test_the_command_line_takes_objects_everywhere(bucket: Any, tmp_path: Path) -> None:
    run_path = f"s3://{bucket.name}/run"
    for step in (1, 2):
        varve.torch.save(small_state(step), f"{run_path}/step-{step}")
    assert command("latest", run_path).strip() == f"{run_path}/step-2"
    assert "step-1" in command("ls", run_path)
    assert "model" in command("inspect", f"{run_path}/step-1")
    assert "different: 2" in command("diff", f"{run_path}/step-1", f"{run_path}/step-2", code=1)
    command("convert", f"{run_path}/step-2", str(tmp_path / "dcp"), "--to", "dcp")
    command("convert", str(tmp_path / "dcp"), f"{run_path}/step-3", "--to", "varve")
    assert torch.equal(
        varve.torch.read(f"{run_path}/step-3", flat=True)["model.w"], small_state(2)["model"]["w"]
    )
    single = f"{run_path}/m.safetensors"
    command("convert", f"{run_path}/step-2", single, "--to", "safetensors")
    assert torch.equal(varve.torch.read(single, flat=True)["model.w"], small_state(2)["model"]["w"])
    command("rm", f"{run_path}/step-1")
    assert not any("step-1/" in key for key in keys_in(bucket))


def test_a_copy_on_disk_is_a_checkpoint(bucket: Any, tmp_path: Path) -> None:
    path = f"s3://{bucket.name}/c"
    for value in (1, 2):
        varve.torch.save(small_state(value), path, overwrite=True)
    copy = fetch(bucket, "c", tmp_path)
    assert varve.torch.read(copy)["step"] == 2
    assert varve.verify(copy) == []


def test_what_is_damaged_is_found(bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    varve.torch.save(small_state(), path)
    (name,) = [key for key in keys_in(bucket) if key.endswith(".safetensors")]
    stored = bytearray(bucket.Object(name).get()["Body"].read())
    stored[-1] ^= 1
    bucket.put_object(Key=name, Body=bytes(stored))
    with pytest.raises(varve.CorruptCheckpointError, match="checksum"):
        varve.torch.read(path)
    assert "checksum mismatch" in command("verify", path, code=1)


@pytest.mark.parametrize("what", ["bucket", "key", "endpoint"])
def test_what_is_wrong_is_named_and_no_key_is_told(
    s3_server: dict[str, str], bucket: Any, what: str
) -> None:
    environment = {**os.environ, "VARVE_S3_RETRY_TIMEOUT": "1"}
    name = bucket.name
    want = "NoSuchBucket"
    if what == "bucket":
        name = "varve-nowhere"
    elif what == "key":
        environment["AWS_SECRET_ACCESS_KEY"] = "another-secret"
        want = "SignatureDoesNotMatch; the server does not know these keys"
    else:
        environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
        want = "127.0.0.1:1"
    script = (
        f"import torch, varve.torch\nvarve.torch.save({{'w': torch.zeros(3)}}, 's3://{name}/c')\n"
    )
    ended = programs.run(script, env=environment)
    assert ended.returncode == 1
    assert want in ended.stderr
    assert f"s3://{name}/c" in ended.stderr
    for secret in (environment["AWS_SECRET_ACCESS_KEY"], "Signature=", "AWS4-HMAC"):
        assert secret not in ended.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("VARVE_CACHE_DIR", "relative"), ("VARVE_CACHE_BYTES", "5")]
)
def test_a_cache_that_is_set_wrongly_hides_no_checkpoint(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    run_path = f"s3://{bucket.name}/run"
    varve.torch.save(small_state(), f"{run_path}/step-1")
    monkeypatch.setenv("VARVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(name, value)
    for verb, path in (("ls", run_path), ("latest", run_path), ("inspect", f"{run_path}/step-1")):
        assert f"{name}={value}" in command(verb, path, code=2), verb


def test_what_unshard_leaves_in_a_bucket_is_whole(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    state = {"model": {"w": torch.arange(6.0)}, "optim": {"m": torch.ones(6)}}
    varve.torch.save(state, path)
    varve.torch.unshard(path, f"s3://{bucket.name}/whole/step-1")
    (entry,) = varve.list_checkpoints(f"s3://{bucket.name}/whole")
    assert (entry.name, entry.state) == ("step-1", "whole"), entry.detail


def test_the_command_line_says_that_a_server_gives_no_answer(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("VARVE_S3_RETRY_TIMEOUT", "1")
    told = command("ls", f"s3://{bucket.name}/run", code=2)
    assert "tried again in" in told and "given up after" in told


def test_unshard_to_a_disk_and_the_paths_of_chunks(bucket: Any, tmp_path: Path) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    state = {"model": {"w": torch.arange(6.0)}}
    varve.torch.save(state, path)
    command("unshard", path, str(tmp_path / "whole"))
    assert torch.equal(torch.load(tmp_path / "whole" / "model.pt")["w"], state["model"]["w"])
    opened = varve.open(path)
    (chunk,) = opened.tensors["model.w"].chunks
    key = f"{opened.directory}/{chunk.file}".removeprefix(f"s3://{bucket.name}/")
    assert key in keys_in(bucket)


def test_a_run_whose_name_ends_with_a_slash_is_the_same_run(bucket: Any) -> None:
    name = f"s3://{bucket.name}/run/"
    varve.torch.save(small_state(), name + "/step-1")
    assert varve.latest(name) == f"s3://{bucket.name}/run/step-1"
    assert "step-1" in command("ls", name + "/")
    with pytest.raises(varve.InvalidArgumentError, match=r'no "\." and "\.\."'):
        varve.torch.save(small_state(), name + "../other/step-1")


def test_a_copy_on_a_disk_is_replaced_with_all_its_files(bucket: Any, tmp_path: Path) -> None:
    varve.torch.save(small_state(), f"s3://{bucket.name}/run/step-1", files={"a/b.txt": b"b"})
    copy = fetch(bucket, "run/step-1", tmp_path)
    (copy / "eval.json").write_text("{}")
    varve.torch.save(small_state(2), copy, overwrite=True)
    assert varve.verify(copy) == []
    names = sorted(path.name for path in copy.iterdir())
    assert [name for name in names if not name.startswith("data-")] == [
        "eval.json",
        "manifest.bin",
        "varve.json",
    ]


def test_a_name_whose_save_died_says_so(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    varve.torch.save(small_state(), path)
    bucket.Object("run/step-1/varve.json").delete()
    for verb in ("verify", "inspect"):
        assert "a save of step-1 is under way, or it or its removal has died" in command(
            verb, path, code=2
        )
    with pytest.raises(varve.InvalidArgumentError, match="Varve uses itself"):
        varve.torch.save(small_state(), f"{path}/varve-data-{'0' * 32}")


def test_a_step_that_vanishes_while_it_is_listed_is_not_there(bucket: Any) -> None:
    run_path = f"s3://{bucket.name}/run"
    stop = threading.Event()
    failures: list[Exception] = []

    def look() -> None:
        while not stop.is_set():
            try:
                entries = varve.list_checkpoints(run_path)
                assert {entry.state for entry in entries} <= {"whole", "saving"}
                varve.steps(run_path)
            except varve.CheckpointNotFoundError as error:
                if "/step-" in str(error):  # Not of the run, which has no step in between.
                    failures.append(error)
            except Exception as error:
                failures.append(error)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    varve.torch.save(small_state(), f"{run_path}/step-1")
    for looker in lookers:
        looker.start()
    for step in range(2, 40):
        varve.torch.save(small_state(step), f"{run_path}/step-{step}")
        varve.remove(f"{run_path}/step-{step - 1}")
    stop.set()
    for looker in lookers:
        looker.join()
    assert failures == []


@pytest.mark.parametrize("file_format", ["varve", "dcp"])
@pytest.mark.parametrize("end", ["overwrite", "remove"])
def test_a_reader_learns_that_its_checkpoint_was_replaced(
    bucket: Any, file_format: str, end: str
) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    varve.torch.save(small_state(1), path, format=file_format)
    reader = varve.open(path)
    assert reader["model.w"][0, 0] == 1
    if end == "overwrite":
        varve.torch.save(small_state(2), path, format=file_format, overwrite=True)
    else:
        varve.remove(path)
    with pytest.raises(
        varve.PreconditionError, match="was overwritten by another save, or removed"
    ):
        reader["model.w"][1, 0]


def test_an_object_that_is_gone_beneath_a_reader_is_damage(bucket: Any) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    varve.torch.save(small_state(1), path)
    reader = varve.open(path)
    assert reader["model.w"][0, 0] == 1
    [data] = [key for key in keys_in(bucket) if key.endswith(".safetensors")]
    bucket.Object(data).delete()
    with pytest.raises(varve.CorruptCheckpointError, match="NoSuchKey"):
        reader["model.w"][1, 0]


def test_limits_of_a_node_without_room_in_shared_memory_are_an_error_that_says_so(
    bucket: Any,
) -> None:
    full = "mount -t tmpfs -o size=64k none /dev/shm && { cat /dev/zero > /dev/shm/full; "
    if subprocess.run(["unshare", "-m", "sh", "-c", f"{full} :; }}"], check=False).returncode != 0:
        pytest.skip("needs root and mount namespaces")
    ended = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f'{full} exec "$@"; }}',
            "sh",
            VARVE,
            "ls",
            f"s3://{bucket.name}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VARVE_S3_MAX_BANDWIDTH_PER_NODE": "1000000000"},
    )
    assert ended.returncode == 2, ended
    assert "No space left" in ended.stderr and "VARVE_S3_MAX_BANDWIDTH_PER_NODE" in ended.stderr


def test_a_bucket_is_no_directory_of_the_disk(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    varve.torch.save(small_state(), tmp_path / "s3:" / bucket.name)
    varve.torch.save(small_state(), f"s3://{bucket.name}/step-1")
    told = command("rm", f"s3://{bucket.name}", code=2)
    assert f"remove s3://{bucket.name}: it is not a checkpoint; nothing was removed" in told
    assert varve.verify(tmp_path / "s3:" / bucket.name) == []
    assert varve.verify(f"s3://{bucket.name}/step-1") == []


def test_a_bucket_that_is_not_there_is_no_missing_checkpoint(bucket: Any) -> None:
    run_path = "s3://varve-nowhere/run"
    for call in (varve.torch.read, varve.list_checkpoints, varve.verify, varve.steps):
        with pytest.raises(varve.PreconditionError, match="no bucket of this name"):
            call(run_path)
    with pytest.raises(varve.PreconditionError, match="no bucket of this name"):
        varve.torch.CheckpointManager(run_path)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.torch.read(f"s3://{bucket.name}/run")


@pytest.mark.parametrize("call", ["varve.torch.read(name)", "varve.torch.save(state, name)"])
def test_ctrl_c_ends_a_wait_for_a_server_that_does_not_answer(bucket: Any, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        script = (
            "import torch, varve.torch\n"
            f"state, name = {{'w': torch.zeros(3)}}, 's3://{bucket.name}/c'\n"
            f"{call}\n"
        )
        with (
            tempfile.TemporaryFile() as told,
            programs.started(script, env=environment, err=told) as child,
        ):
            silent.accept()[0].recv(1)  # Its first request has come.
            child.send_signal(signal.SIGINT)
            child.wait(60)
            told.seek(0)
            assert b"KeyboardInterrupt" in told.read()


@pytest.mark.slow
def test_a_killed_save_leaves_the_checkpoint_before_it(
    s3_server: dict[str, str], bucket: Any
) -> None:
    path = f"s3://{bucket.name}/c"
    varve.torch.save(small_state(7), path)
    for after in (0.6, 1.1):
        child = process_of(die_in_a_save, path, after)
        child.start()
        child.join(120)
        assert child.exitcode == -9
        state = varve.torch.read(path)
        assert "w" in state or state["step"] == 7
        assert varve.verify(path) == []
    varve.torch.save(small_state(8), path, overwrite=True)
    assert varve.torch.read(path)["step"] == 8


def test_the_agent_is_sent_every_variable_that_settings_and_keys_ask_for() -> None:
    source = Path(__file__).resolve().parents[2] / "src" / "storage" / "s3"
    sent = set(re.findall(r'"([A-Z0-9_]+)",', (source / "keys" / "described.cc").read_text()))
    asked = set()
    for file in source.rglob("*.cc"):
        if file.name != "described.cc" and not file.name.endswith("_test.cc"):
            asked |= set(
                re.findall(r'"((?:AWS|OLMO|R2|WEKA|VARVE_S3)_[A-Z0-9_]+)"', file.read_text())
            )
    assert asked <= sent and len(asked) > 25


def test_unshard_writes_whole_states_into_a_bucket(bucket: Any, tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(6.0)}, "optim": {"state": {"w": torch.ones(6)}}}
    varve.torch.save(state, tmp_path / "sharded")
    where = f"s3://{bucket.name}/whole"
    command("unshard", str(tmp_path / "sharded"), where)
    assert keys_in(bucket) == ["whole/.varve-uploaded", "whole/model.pt", "whole/optim.pt"]
    assert torch.equal(varve.torch.read(f"{where}/model.pt")["w"], torch.arange(6.0))
    assert "is there" in command("unshard", str(tmp_path / "sharded"), where, code=2)
    varve.torch.save({"model": {"w": torch.zeros(6)}}, tmp_path / "sharded", overwrite=True)
    command("unshard", str(tmp_path / "sharded"), where, "--overwrite", "--olmo-safetensors")
    command("unshard", str(tmp_path / "sharded"), where, "--overwrite")
    assert torch.equal(varve.torch.read(f"{where}/model.pt")["w"], torch.zeros(6))


def test_one_file_does_not_take_the_name_of_a_directory(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    varve.torch.save({"w": torch.ones(3)}, f"{run}/step-1")
    varve.torch.save({"w": torch.zeros(3)}, f"{run}/step-2")
    before = keys_in(bucket)
    for target in (run, f"{run}/step-1", f"{run}/step-2"):
        for verb in (["export"], ["convert", "--to", "torch"]):
            told = command(verb[0], f"{run}/step-1", target, *verb[1:], "--overwrite", code=2)
            assert "is a directory" in told
    assert keys_in(bucket) == before
    command("export", f"{run}/step-1", f"{run}/one.safetensors")
    with pytest.raises(varve.PreconditionError, match="one object and no directory"):
        varve.remove(f"{run}/one.safetensors")
