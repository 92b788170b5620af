"""`varve agent`: what it says of the process that writes for trainers, and how it ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import varve
import varve.agent

TRAINER = """
import sys, time
import torch
from varve.torch import Stager, async_save

stager = Stager(executor="process", memory_budget=1 << 28)
async_save({"w": torch.ones(1 << 20)}, sys.argv[1], stager=stager).result()
print("ready", flush=True)
sys.stdin.read()
"""


def started(script: str, path: Path) -> subprocess.Popen[str]:
    """A trainer that waits when it has done its save."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "ready\n"
    return trainer


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Iterator[str]:
    directory = str(tmp_path_factory.mktemp("a") / "agent")
    monkeypatch.setenv("VARVE_AGENT_DIR", directory)
    yield directory
    varve.agent.stop(60)


def test_without_an_agent_everything_is_said_and_done(run, run_json, agent):
    assert run("agent", "status").stdout.startswith("no agent runs in ")
    assert run_json("agent", "status") == {"running": False}
    assert run("agent", "drain").stdout.startswith("no agent runs in ")
    assert run("agent", "stop").stdout.startswith("no agent runs in ")


def test_it_says_what_the_agent_does_and_ends_it(run, run_json, agent, folder):
    pytest.importorskip("torch")
    trainer = started(TRAINER, folder / "step-1")
    found = run_json("agent", "status")
    assert found["running"] is True
    assert found["version"] == varve.__version__
    assert found["trainers"] == 1
    assert found["saves"] == []
    assert [file["path"] for file in found["held"]] == [str(folder.resolve() / "step-1")]
    assert found["held"][0]["bytes"] >= 4 << 20
    text = run("agent", "status").stdout
    assert "1 trainer connected" in text
    assert "held" in text and "alive" in text and "4.0 MiB" in text

    trainer.kill()
    trainer.communicate()
    assert run("agent", "drain").stdout == "everything is written\n"
    assert "exited" in run("agent", "status").stdout
    assert run("agent", "stop", "--timeout", 60).stdout == "the agent has ended\n"
    assert run_json("agent", "status") == {"running": False}


DEFERS = """
import sys
import torch
from varve.torch import Stager, defer_save

stager = Stager(executor="process", memory_budget=1 << 28)
defer_save({"w": torch.ones(1 << 20)}, sys.argv[1], stager=stager).result()
print("ready", flush=True)
sys.stdin.read()
"""


def test_ls_shows_what_the_agent_has_and_has_not_written(run, run_json, agent, folder):
    pytest.importorskip("torch")
    trainer = started(DEFERS, folder / "step-1")
    (entry,) = run_json("ls", folder)
    assert (entry["name"], entry["state"]) == ("step-1", "saving")
    assert entry["detail"].startswith("the agent has 1 file, kept for ")
    assert entry["bytes"] >= 4 << 20
    assert "step-1" in run("ls", folder).stdout
    assert run("ls", folder.parent).stdout.startswith("no checkpoints in ")

    trainer.kill()
    trainer.communicate()
    assert run("agent", "drain").stdout == "everything is written\n"
    (entry,) = run_json("ls", folder)
    assert (entry["name"], entry["state"], entry["detail"]) == ("step-1", "whole", "")


def test_a_directory_that_others_may_enter_is_refused(run, agent):
    os.mkdir(agent, 0o755)
    os.chmod(agent, 0o755)
    done = run("agent", "status", code=2)
    assert agent in done.stderr and "0700" in done.stderr
    os.chmod(agent, 0o700)


@pytest.mark.parametrize("time", ["-1", "soon", "nan"])
def test_a_time_that_is_none_is_refused(run, agent, time):
    assert "not a number of seconds" in run("agent", "drain", "--timeout", time, code=2).stderr


def test_json_is_one_line(run, agent):
    text = run("agent", "status", "--json").stdout
    assert text.endswith("\n") and text.count("\n") == 1
    json.loads(text)
