"""Saves to an object store that the agent writes, with its trainers' keys: over Ceph's S3."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_jobs
import programs
import pytest
import s3_jobs
from async_jobs import LONG, assert_holds, state_of, wait_until
from ranks import collect, process_of, run_ranks

import varve
import varve.agent
import varve.torch
from varve.torch import Stager, async_save


@pytest.fixture
def prefix(bucket: Any) -> str:
    return f"s3://{bucket.name}/run"


def names_of(prefix: str) -> list[str]:
    return [one.name for one in varve.list_checkpoints(prefix) if one.state == "whole"]


def killed(function: Callable[..., None], *arguments: Any) -> None:
    """Runs a trainer that kills itself."""
    trainer = process_of(function, *arguments)
    trainer.start()
    trainer.join(LONG)
    assert trainer.exitcode == -signal.SIGKILL


def test_a_save_is_written_by_the_agent_and_loaded_from_its_memory(agent: str, prefix: str) -> None:
    with Stager(executor="process") as stager:
        for value in (1, 2):
            handle = async_save(state_of(value, 20), f"{prefix}/c", stager=stager, overwrite=True)
            assert handle.result(LONG).attempts == 1
        state = state_of(0, 20)
        report = varve.torch.load(state, f"{prefix}/c")
    assert report.bytes_from_agent >= 20 << 20 and (state["w"] == 2).all()
    varve.agent.stop()
    assert_holds(f"{prefix}/c", 2, 20)


def test_what_a_killed_trainer_has_submitted_becomes_a_checkpoint(agent: str, prefix: str) -> None:
    killed(s3_jobs.submit_and_die, f"{prefix}/c", 3)
    varve.agent.drain(LONG)
    assert names_of(prefix) == ["c"]
    assert_holds(f"{prefix}/c", 3, 20)


def test_an_agent_that_was_started_without_keys_has_those_of_each_trainer(
    agent: str,
    prefix: str,
    s3_server: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in s3_server}
    code = (
        "import sys, torch, varve.torch as v;"
        "v.async_save({'w': torch.ones(9)}, sys.argv[1], executor='process').result()"
    )
    programs.output(code, tmp_path / "local", env=bare)
    status = varve.agent.status()
    assert status is not None
    environment = Path(f"/proc/{status.pid}/environ").read_bytes()
    assert b"AWS_SECRET_ACCESS_KEY" not in environment
    killed(s3_jobs.submit_and_die, f"{prefix}/c", 4)
    varve.agent.drain(LONG)
    assert_holds(f"{prefix}/c", 4, 20)
    # Wrong keys are the trainer's own, and its save alone fails.
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        killed(s3_jobs.submit_and_die, f"{prefix}/d", 5)
    varve.agent.drain(LONG)
    assert names_of(prefix) == ["c"]
    log = Path(agent, "agent.log").read_text()
    assert "wrong-secret" not in log and s3_server["AWS_SECRET_ACCESS_KEY"] not in log
    assert f"{prefix}/d" in log


def test_ranks_that_are_killed_after_their_submission_leave_a_whole_checkpoint(
    agent: str, prefix: str
) -> None:
    collect(2, agent_jobs.ranks_submit_and_die, prefix, dead=(0, 1))
    varve.agent.drain(LONG)
    assert names_of(prefix) == ["1", "2"]
    loaded = run_ranks(2, agent_jobs.load_on_ranks, f"{prefix}/2")
    assert sum(loaded) > 0


def test_an_agent_that_is_killed_during_an_upload_leaves_the_old_checkpoint(
    agent: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("boto3").client("s3")
    bucket = prefix.split("/")[2]
    monkeypatch.setenv("VARVE_S3_MAX_BANDWIDTH", "10000000")
    path = f"{prefix}/c"
    with Stager(executor="process") as stager:
        async_save(state_of(1, 20), path, stager=stager).result(LONG)
        status = varve.agent.status()
        assert status is not None
        handle = async_save(state_of(2, 60), path, stager=stager, overwrite=True)
        wait_until(lambda: client.list_multipart_uploads(Bucket=bucket).get("Uploads"))
        os.kill(status.pid, signal.SIGKILL)
        with pytest.raises(varve.UnavailableError, match="agent"):
            handle.result(LONG)
        assert varve.verify(path) == []
        assert_holds(path, 1, 20)
        async_save(state_of(3, 20), path, stager=stager, overwrite=True).result(LONG)
        again = varve.agent.status()
        assert again is not None and again.pid != status.pid
    assert_holds(path, 3, 20)
    assert names_of(prefix) == ["c"]


def test_of_deferred_saves_the_newest_that_all_ranks_have_is_written(
    agent: str, prefix: str
) -> None:
    collect(2, s3_jobs.defer_and_die, prefix, dead=(0, 1))
    varve.agent.drain(LONG)
    wait_until(lambda: names_of(prefix) == ["step-6"])
    assert not [one for one in varve.list_checkpoints(prefix) if one.state != "whole"]


def test_a_manager_has_the_agent_finish_what_a_killed_job_has_left(agent: str, prefix: str) -> None:
    killed(s3_jobs.train_with_agent_and_die, prefix)
    state = state_of(0)
    with varve.torch.CheckpointManager(prefix, executor="process") as manager:
        assert manager.resume(state) == 5
    assert (state["w"] == 5).all()


def test_keys_of_a_trainers_function_go_to_the_agent_with_their_end(
    agent: str, prefix: str, s3_server: dict[str, str]
) -> None:
    killed(s3_jobs.submit_with_keys_and_die, f"{prefix}/long", 600.0)
    killed(s3_jobs.submit_with_keys_and_die, f"{prefix}/short", 3.0)
    varve.agent.drain(LONG)
    assert names_of(prefix) == ["long"]
    assert_holds(f"{prefix}/long", 7, 20)
    log = Path(agent, "agent.log").read_text()
    assert "A function of the trainer gave them" in log
    assert s3_server["AWS_SECRET_ACCESS_KEY"] not in log
