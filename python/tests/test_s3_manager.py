"""Runs in an object store: the manager over Ceph's S3."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import manager_jobs
import programs
import pytest
import torch
from buckets import keys_in
from command_line import command
from ranks import run_ranks

import varve
import varve.torch
from varve._manage import _history, _place

TRAIN = """
import os, signal, sys, torch, varve.torch
run, last, dies = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state = {"w": torch.zeros(200_000)}
with varve.torch.CheckpointManager(
    run, every=varve.Every(steps=2), keep=varve.Keep(last=2)
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


def train(run: str, last: int, dies: int = 0) -> subprocess.CompletedProcess[str]:
    return programs.run(TRAIN, run, last, dies, timeout=120)


def saved_run(run: str, steps: int, **options: Any) -> None:
    with varve.torch.CheckpointManager(run, every=varve.Every(steps=1), **options) as manager:
        for step in range(1, steps + 1):
            manager.save(step, {"w": torch.full((1000,), step)}, metrics={"loss": 10.0 - step})
            manager.wait()


def names_of(run: str) -> list[str]:
    return [one.name for one in varve.list_checkpoints(run) if one.state == "whole"]


def test_a_run_that_is_killed_goes_on_from_its_newest_step(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    killed = train(run, 20, dies=11)
    assert killed.returncode == -9 and "from 0" in killed.stdout, killed.stderr
    resumed = train(run, 20)
    assert resumed.returncode == 0, resumed.stderr
    start = int(resumed.stdout.split()[1])
    assert start in (6, 8, 10)  # Saves are asynchronous: the last may not have been published.
    assert resumed.stdout.split()[-1] == str(sum(range(21)))
    assert names_of(run) == ["step-00000018", "step-00000020"]
    assert train(run, 20).stdout.split()[1] == "20"  # The same script once more.


def test_removed_steps_leave_no_object(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 5, keep=varve.Keep(last=2))
    assert names_of(run) == ["step-00000004", "step-00000005"]
    assert not keys_in(bucket, "run/step-00000001") + keys_in(bucket, "run/step-00000003")


def test_a_damaged_step_is_set_aside_and_the_older_one_is_taken(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 3)
    (data,) = [key for key in keys_in(bucket, "run/step-00000003") if key.endswith(".safetensors")]
    whole = bucket.Object(data).get()["Body"].read()
    bucket.put_object(Key=data, Body=whole[:-8] + b"\xff" * 8)
    state = {"w": torch.zeros(1000, dtype=torch.int64)}
    with varve.torch.CheckpointManager(run, every=varve.Every(steps=1), verify="full") as manager:
        assert manager.resume(state) == 2 and state["w"][0] == 2
        states = {one.name: one.state for one in varve.list_checkpoints(run)}
        assert states["step-00000003"] == "quarantined"
        manager.save(3, state)
    # The step was saved anew; what was set aside is still there, also after gc.
    found = [one.state for one in varve.list_checkpoints(run) if one.name == "step-00000003"]
    assert sorted(found) == ["quarantined", "whole"]
    assert "quarantined" in command("ls", run)
    command("gc", run)
    assert bucket.Object(data).get()["Body"].read()[-8:] == b"\xff" * 8
    command("rm", f"{run}/step-00000003")
    assert [one.state for one in varve.list_checkpoints(run)][-1] == "quarantined"
    command("rm", f"{run}/step-00000003")
    assert not keys_in(bucket, "run/step-00000003")


def test_a_later_job_takes_the_run_and_the_earlier_one_ends(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    every = varve.Every(steps=1)
    first = varve.torch.CheckpointManager(run, every=every, keep=varve.Keep(last=1))
    first.save(1, {"w": torch.ones(10)})
    first.wait()
    with varve.torch.CheckpointManager(run, every=every) as second:
        assert second.resume({"w": torch.zeros(10)}) == 1
        second.save(2, {"w": torch.ones(10)})
        second.wait()
        first.save(7, {"w": torch.ones(10)})  # Under way before it can know.
        first.wait()
        with pytest.raises(varve.UnavailableError, match="another job has taken over the run"):
            for step in range(8, 12):
                first.save(step, {"w": torch.ones(10)})
        first.close()
        # It has removed nothing, and what it saved counts as older.
        assert "step-00000002" in names_of(run)
        newest = second.latest()
        assert newest is not None and newest.step == 2


def test_a_pinned_step_is_not_replaced(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 2)
    command("pin", f"{run}/step-00000002", "--why", "paper")
    assert "whole, pinned: paper" in command("ls", run)
    with varve.torch.CheckpointManager(run, every=varve.Every(steps=1)) as manager:
        manager.restore(1, {"w": torch.zeros(1000, dtype=torch.int64)})
        future = manager.save(2, {"w": torch.full((1000,), 7)})
        assert future is not None
        assert isinstance(future.exception(60), varve.PreconditionError)
    assert varve.torch.read(f"{run}/step-00000002")["w"][0] == 2


def test_a_step_that_a_script_saves_is_as_new_as_its_objects(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 3)
    varve.torch.save({"w": torch.full((1000,), 4)}, f"{run}/step-00000004")
    assert command("latest", run).strip() == f"{run}/step-00000004"
    state = {"w": torch.zeros(1000, dtype=torch.int64)}
    with varve.torch.CheckpointManager(run) as manager:
        assert manager.resume(state) == 4
        assert all(abs(one.time_ns / 1e9 - time.time()) < 600 for one in manager.steps())
    told = command("prune", run, "--keep", "newer=1")
    assert len(names_of(run)) == 4, told
    # Names without a number: the one that was published last, though it is not the last by name.
    for name in ("b", "a"):
        varve.torch.save(state, f"s3://{bucket.name}/others/{name}")
        time.sleep(1.1)  # The server's times are whole seconds.
    assert command("latest", f"s3://{bucket.name}/others").strip().endswith("/a")


@pytest.mark.parametrize("format", ["varve", "dcp"])
def test_a_run_in_any_format_knows_its_attempts_metrics_and_the_steps_of_others(
    format: str, bucket: Any
) -> None:
    run = f"s3://{bucket.name}/run"
    state = {"w": torch.zeros(1000)}
    theirs = f"{run}/step-00000001"
    varve.torch.save(state, theirs, format=format)
    options: Any = {
        "every": varve.Every(steps=1),
        "keep": varve.Keep(last=1, best=1, by="loss"),
        "save_options": {"format": format},
    }
    with varve.torch.CheckpointManager(run, **options) as manager:
        assert manager.resume(state) == 1
        for step, loss in ((2, 5.0), (3, 1.0), (4, 3.0), (5, 4.0)):
            manager.save(step, state, metrics={"loss": loss})
            manager.wait()
    assert names_of(run) == [f"step-0000000{step}" for step in (1, 3, 5)]
    attempts = {one.step: (one.attempt, one.metrics.get("loss")) for one in varve.steps(run)}
    assert attempts == {1: (0, None), 3: (1, 1.0), 5: (1, 4.0)}
    with varve.torch.CheckpointManager(run, **options) as manager:
        manager.restore(3, state)
        manager.save(4, state, metrics={"loss": 9.0})
    with varve.torch.CheckpointManager(run, **options) as manager:
        assert manager.resume(state) == 4, "not step 5, which was left behind"
    varve.remove(f"{run}/step-00000003")
    assert theirs.rsplit("/", 1)[1] in names_of(run)


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_job_that_was_overtaken_replaces_no_step_of_the_later_one(
    before: int, executor: str, bucket: Any, agent: str
) -> None:
    run = f"s3://{bucket.name}/run"
    options: Any = {"every": varve.Every(steps=1), "keep": varve.Keep(last=1)}
    if executor == "process":
        options["executor"] = executor
    earlier = varve.torch.CheckpointManager(run, **options)
    state = {"w": torch.zeros(1000)}
    for step in range(before):
        earlier.save(step, state)
    earlier.wait()
    with varve.torch.CheckpointManager(run, **options) as later:
        assert later.resume(state) == (before - 1 if before else None)
        later.save(before, {"w": torch.ones(1000)})
        later.wait()
        refused = earlier.save(before, state)
        assert refused is not None
        with pytest.raises(varve.PreconditionError, match=r"a later job.*attempt 2.*not replaced"):
            refused.result(60)
        with pytest.raises(varve.Error, match="another job"):
            earlier.save(before + 1, state)
            earlier.wait()
            earlier.save(before + 2, state)
        earlier.close()
    there = varve.torch.read(f"{run}/step-{before:08}")["w"]
    assert torch.equal(there, torch.ones(1000))


def test_the_newest_is_never_the_run_itself(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 1)
    stop = threading.Event()
    found: set[str] = set()

    def look() -> None:
        while not stop.is_set():
            try:
                found.add(varve.latest(run))
            except varve.Error as error:
                found.add(f"{error}")

    looker = threading.Thread(target=look)
    looker.start()
    saved_run(run, 25, keep=varve.Keep(last=1))
    stop.set()
    looker.join()
    assert found
    assert all(path.startswith(f"{run}/step-") for path in found), found


def test_what_is_put_beside_a_step_does_not_make_it_newer(bucket: Any, tmp_path: Path) -> None:
    for run in (f"s3://{bucket.name}/run", str(tmp_path / "run")):
        varve.torch.save({"w": torch.zeros(10)}, f"{run}/step-00000100")
        time.sleep(1.1)
        saved_run(run, 2)
        assert varve.latest(run).endswith("step-00000002")
        time.sleep(1.1)
        if run.startswith("s3:"):
            bucket.put_object(Key="run/step-00000100/eval.json", Body=b"{}")
        else:
            (tmp_path / "run" / "step-00000100" / "eval.json").write_text("{}")
        assert varve.latest(run).endswith("step-00000002")


def test_the_history_is_an_object_for_each_event_and_report_draws_it(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 3, keep=varve.Keep(last=1))
    events = [line["event"] for line in _history.read(run)]
    assert events[0] == "start" and events[-1] == "end"
    assert events.count("save") == 3 and events.count("remove") == 2
    assert len(keys_in(bucket, "run/varve-history/")) == len(events)
    told = json.loads(command("report", run, "--json"))
    assert told["saves"] == 3
    monkeypatch.chdir(tmp_path)
    command("report", run)
    assert "step-00000003" in (tmp_path / "varve-report.html").read_text()
    assert "a file of this host" in command("report", run, "-o", f"{run}/page.html", code=2)


def test_an_object_asks_the_run_to_end(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_place, "_LOOK", 0.2)
    run = f"s3://{bucket.name}/run"
    state = {"w": torch.ones(10)}
    with varve.torch.CheckpointManager(run, every=varve.Every(steps=1000)) as manager:
        step = 0
        while not manager.preempted and step < 10_000:
            step += 1
            manager.save(step, state)
            if step == 3:
                bucket.put_object(Key="run/varve-stop", Body=b"")
            time.sleep(0.02)  # A step.
        assert manager.stop_reason == "the file varve-stop"
    assert names_of(run) == [f"step-{step:08d}"]


def test_restarts_that_lead_nowhere_are_counted(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 2)
    state = {"w": torch.zeros(1000, dtype=torch.int64)}
    taken = []
    for _ in range(3):
        with varve.torch.CheckpointManager(
            run, every=varve.Every(steps=100), max_restarts=2
        ) as manager:
            taken.append(manager.resume(state))
    assert taken == [2, 2, 1]


def test_ranks_share_a_run_and_another_world_goes_on(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    options = {"every": 1, "keep": 2}
    assert run_ranks(2, manager_jobs.save_steps, run, [1, 2, 3], options) == [[1, 2, 3]] * 2
    assert names_of(run) == ["step-00000002", "step-00000003"]
    (data,) = [k for k in keys_in(bucket, "run/step-00000003") if "/data-00001" in k]
    whole = bucket.Object(data).get()["Body"].read()
    bucket.put_object(Key=data, Body=whole[:-8] + b"\xff" * 8)
    assert run_ranks(3, manager_jobs.resume, run, {}) == [(2, 2.0, True)] * 3
    states = {one.name: one.state for one in varve.list_checkpoints(run)}
    assert states["step-00000003"] == "quarantined"


def test_keys_that_may_not_write_resume_and_are_told_that_nothing_is_saved(
    bucket: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"s3://{bucket.name}/run"
    saved_run(run, 2)
    bucket.Acl().put(ACL="public-read")
    for one in bucket.objects.all():
        one.Acl().put(ACL="public-read")
    code = """
import torch, varve, varve.torch, sys, logging
logging.basicConfig()
state = {"w": torch.zeros(1000, dtype=torch.int64)}
with varve.torch.CheckpointManager(sys.argv[1], every=varve.Every(steps=1)) as manager:
    assert manager.resume(state) == 2 and state["w"][0] == 2
    saved = manager.save(3, state)
    assert saved is not None and isinstance(saved.exception(60), varve.Error), saved
"""
    monkeypatch.setenv("VARVE_S3_UNSIGNED", "1")
    began = time.monotonic()
    ended = programs.run(code, run)
    assert ended.returncode == 0, ended.stderr
    assert "nothing can be saved there" in ended.stderr and time.monotonic() - began < 60


def test_a_checkpoint_is_no_run_and_one_of_another_name_is_no_step(bucket: Any) -> None:
    run = f"s3://{bucket.name}/run"
    varve.torch.save({"w": torch.ones(3)}, f"{run}/final")
    with varve.torch.CheckpointManager(run) as manager:
        with pytest.raises(varve.CheckpointNotFoundError, match="final"):
            manager.resume({"w": torch.zeros(3)}, required=True)
        manager.save(5, {"w": torch.ones(3)}, force=True)
    for make in (varve.CheckpointManager, varve.torch.CheckpointManager):
        with pytest.raises(varve.InvalidArgumentError, match="is a checkpoint"):
            make(f"{run}/step-00000005")
