"""Runs whose steps are saved on a disk and uploaded to an object store, Ceph's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from ranks import run_ranks
from upload_jobs import train_with_uploads

import varve
import varve.torch

TRAIN = """
import os, signal, sys, torch, varve.torch
run, remote, last, dies = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
state = {"w": torch.zeros(500_000)}
with varve.torch.CheckpointManager(
    run, every=2, keep=2, upload_to=remote, keep_uploaded=varve.Keep(last=2, every=8)
) as manager:
    start = manager.resume(state) or 0
    print("from", start, flush=True)
    for step in range(start + 1, last + 1):
        state["w"] += step
        manager.save(step, state)
        if step == dies:
            os.kill(os.getpid(), signal.SIGKILL)
print("sum", int(state["w"][0]))
"""


def train(
    run: Path, remote: str, last: int, dies: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return programs.run(TRAIN, run, remote, last, dies, env={**os.environ, **environment})


def steps_in(run: str | Path) -> list[int]:
    return [one.step for one in varve.steps(str(run)) if one.state == "whole"]


def notes_in(run: Path) -> list[str]:
    return [name for name in os.listdir(run) if name.endswith(".varve-upload")]


def history_of(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (run / "varve-history.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_each_place_keeps_what_its_rules_say(bucket: Any, tmp_path: Path) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    ended = train(run, remote, 14)
    assert ended.returncode == 0, ended.stderr
    assert steps_in(run) == [12, 14]
    assert steps_in(remote) == [8, 12, 14]
    assert notes_in(run) == []
    assert [line["step"] for line in history_of(run, "upload")] == [2, 4, 6, 8, 10, 12, 14]
    again = train(run, remote, 14)  # The same script once more.
    assert again.returncode == 0 and "from 14" in again.stdout, again.stderr


def test_a_killed_job_is_made_up_for_and_a_fresh_node_goes_on(bucket: Any, tmp_path: Path) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    killed = train(run, remote, 20, dies=11)
    assert killed.returncode == -9, killed.stderr
    pending = notes_in(run)
    there = set(steps_in(run))
    resumed = train(run, remote, 12)
    assert resumed.returncode == 0, resumed.stderr
    start = int(resumed.stdout.split()[1])
    assert start in there and notes_in(run) == [], pending
    assert steps_in(remote)[-1] == 12
    shutil.rmtree(run)  # Another node, whose disk is empty.
    moved = train(run, remote, 16)
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout.split()[1] == "12"
    assert moved.stdout.split()[-1] == str(sum(range(17)))
    assert steps_in(run) == [14, 16] and steps_in(remote)[-1] == 16


def test_failed_uploads_are_counted_and_made_by_the_next_job(bucket: Any, tmp_path: Path) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    failures: list[tuple[int, BaseException]] = []
    state = {"w": torch.zeros(100_000)}
    metrics = tmp_path / "metrics.prom"
    with varve.torch.CheckpointManager(
        run,
        every=1,
        keep=1,
        upload_to=remote,
        on_failure=lambda step, error: failures.append((step, error)),
        metrics_file=metrics,
    ) as manager:
        manager.save(1, state)
        manager.wait()
        policy = json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Deny",
                        "Principal": "*",
                        "Action": "s3:PutObject",
                        "Resource": f"arn:aws:s3:::{bucket.name}/run/step*",
                    }
                ],
            }
        )
        bucket.Policy().put(Policy=policy)
        for step in (2, 3):
            manager.save(step, state)
            manager.wait()
        bucket.Policy().delete()
        assert [step for step, _ in failures] == [2, 3, 2]  # A failure starves no other step.
        assert "403" in str(failures[0][1])
        assert steps_in(run) == [2, 3]  # No rule removes what is not uploaded.
        assert steps_in(remote) == [1]
        assert 'varve_uploads_total{run="' in metrics.read_text()
    outcomes = [(line["step"], line["outcome"] == "done") for line in history_of(run, "upload")]
    assert outcomes == [(1, True), (2, False), (3, False), (2, False)]
    with varve.torch.CheckpointManager(run, every=1, keep=1, upload_to=remote) as manager:
        assert manager.resume(state) == 3
        manager.wait()
        assert steps_in(remote) == [1, 2, 3]
        assert notes_in(run) == []
        manager.save(4, state)
    assert steps_in(run) == [4] and steps_in(remote) == [1, 2, 3, 4]


def test_keys_that_may_do_nothing_there_any_more_end_no_training(
    bucket: Any, tmp_path: Path
) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    failures: list[tuple[int, BaseException]] = []
    state = {"w": torch.zeros(1000)}
    everything = [f"arn:aws:s3:::{bucket.name}", f"arn:aws:s3:::{bucket.name}/*"]
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
        "Resource": everything,
    }
    with varve.torch.CheckpointManager(
        run,
        every=1,
        upload_to=remote,
        on_failure=lambda step, error: failures.append((step, error)),
    ) as manager:
        manager.save(1, state)
        manager.wait()
        bucket.Policy().put(Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
        for step in (2, 3):
            manager.save(step, state)
            manager.wait()
        bucket.Policy().delete()
    assert {step for step, _ in failures} == {2, 3}
    assert all("403" in str(error) for _, error in failures), failures
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        assert manager.resume(state) == 3
        manager.wait()
    assert steps_in(remote) == [1, 2, 3] and notes_in(run) == []


LOSES_ITS_SERVER = """
import json, os, signal, sys, time, torch, varve.torch
run, remote, server = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = {"w": torch.zeros(1000)}
failures = []
with varve.torch.CheckpointManager(
    run, every=1, upload_to=remote, on_failure=lambda step, error: failures.append((step, str(error)))
) as manager:
    manager.save(1, state)
    manager.wait()
    os.kill(server, signal.SIGKILL)
    for step in range(2, 10):
        manager.save(step, state)
        while not os.path.exists(f"{run}/step-{step:08d}/varve.json"):
            time.sleep(0.01)
print(json.dumps(failures))
"""


def test_saves_do_not_wait_one_after_the_other_for_a_server_that_is_gone(
    bucket: Any, s3_server: dict[str, str], tmp_path: Path
) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    serve = (
        "import sys, time; from fault_proxy import FaultProxy; "
        "print(FaultProxy(sys.argv[1]).endpoint, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", serve, s3_server["AWS_ENDPOINT_URL"]],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as proxy:
        assert proxy.stdout is not None
        endpoint = proxy.stdout.readline().strip()
        environment = {"AWS_ENDPOINT_URL": endpoint, "VARVE_S3_RETRY_TIMEOUT": "2"}
        job = programs.run(
            LOSES_ITS_SERVER, run, remote, proxy.pid, env={**os.environ, **environment}
        )
    assert job.returncode == 0, job.stderr
    told = dict(json.loads(job.stdout.splitlines()[-1]))
    assert sorted(told) == list(range(2, 10))  # Each save that is not uploaded is told of.
    waited = [step for step, text in told.items() if "not tried" not in text]
    assert 1 <= len(waited) < len(told), told  # The others were given up with those.
    failed = {line["step"] for line in history_of(run, "upload") if line["outcome"] != "done"}
    assert failed == set(range(2, 10))
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        manager.resume({"w": torch.zeros(1000)})
        manager.wait()
    assert steps_in(remote) == list(range(1, 10)) and notes_in(run) == []


def test_the_newest_of_both_places_is_taken(bucket: Any, tmp_path: Path) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    state = {"w": torch.zeros(1000)}
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        for step in (1, 2):
            manager.save(step, state)
    # A second node goes on from there with a disk of its own.
    other = tmp_path / "other"
    with varve.torch.CheckpointManager(other, every=1, upload_to=remote) as manager:
        assert manager.restore(1, state) is not None
        state["w"] += 1
        manager.save(2, state)
    # The first node comes back: what was saved later is newer, whatever its number.
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        assert manager.resume(state) == 2
        assert state["w"][0] == 1
    # A damaged step here leaves the one there.
    for path in run.glob("step-*/data-*"):
        path.write_bytes(b"")
    state["w"].zero_()
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        assert manager.resume(state) == 2 and state["w"][0] == 1


def test_a_pending_step_of_an_older_job_does_not_replace_a_newer_one(
    bucket: Any, tmp_path: Path
) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    with varve.torch.CheckpointManager(run, every=1) as manager:
        manager.save(1, {"w": torch.zeros(1000)})
    varve._core.uploads.note_pending_upload(f"{run}/step-00000001", f"{remote}/step-00000001")
    with varve.torch.CheckpointManager(remote, every=1) as manager:
        manager.save(1, {"w": torch.ones(1000)})
        manager.wait()
    with varve.torch.CheckpointManager(remote, every=1) as manager:
        manager.save(1, {"w": torch.full((1000,), 2.0)})
        manager.wait()
    with varve.torch.CheckpointManager(run, every=1, upload_to=remote) as manager:
        manager.wait()
    assert varve.torch.read(f"{remote}/step-00000001")["w"][0] == 2
    assert notes_in(run) == []


def test_a_job_whose_place_was_taken_uploads_nothing_more(bucket: Any, tmp_path: Path) -> None:
    remote = f"s3://{bucket.name}/run"
    state = {"w": torch.zeros(1000)}
    first = varve.torch.CheckpointManager(tmp_path / "a", every=1, upload_to=remote)
    first.save(1, state)
    first.wait()
    second = varve.torch.CheckpointManager(tmp_path / "b", every=1, upload_to=remote)
    first.save(2, state)
    first.wait()
    with pytest.raises(varve.UnavailableError, match="another job has taken over"):
        for step in range(3, 10):
            first.save(step, state)
            first.wait()
    first.close()
    second.close()
    assert steps_in(remote) == [1]


def test_two_ranks_upload_a_run(bucket: Any, tmp_path: Path) -> None:
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    assert run_ranks(2, train_with_uploads, str(run), remote, 4) == [0, 0]
    assert steps_in(run) == [4] and steps_in(remote) == [1, 2, 3, 4]
    shutil.rmtree(run)
    assert run_ranks(2, train_with_uploads, str(run), remote, 6) == [4, 4]
    assert steps_in(remote) == [1, 2, 3, 4, 5, 6]


def test_places_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for options, says in (
        ({"upload_to": tmp_path / "run"}, "the run itself"),
        ({"keep_uploaded": 2}, "only with upload_to"),
        ({"upload_to": "ftp://bucket/run"}, "ftp://"),
    ):
        with pytest.raises(varve.InvalidArgumentError, match=says):
            varve.torch.CheckpointManager(tmp_path / "run", every=1, **options)
    with pytest.raises(varve.InvalidArgumentError, match="object store itself"):
        varve.torch.CheckpointManager("s3://bucket/run", every=1, upload_to="s3://bucket/other")


def test_a_manager_of_arrays_uploads_too(bucket: Any, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    run, remote = tmp_path / "run", f"s3://{bucket.name}/run"
    with varve.CheckpointManager(run, every=1, keep=1, upload_to=remote) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"w": numpy.full(1000, step)})
    assert steps_in(remote) == [1, 2, 3] and steps_in(run) == [3]
