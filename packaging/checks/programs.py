"""Runs the command line and the agent of an installed wheel, and prints how long the former takes to start."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

import numpy as np

import varve
import varve.agent

SCRIPTS = sysconfig.get_path("scripts")
STARTS = 20


def run(name: str, *arguments: str, code: int = 0) -> str:
    """Runs a program of the wheel, and returns what it printed."""
    done = subprocess.run(
        [os.path.join(SCRIPTS, name), *arguments], capture_output=True, text=True, timeout=60
    )
    if done.returncode != code:
        raise SystemExit(f"{name} {arguments}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def milliseconds(*command: str) -> float:
    """Returns the median time that a command takes."""
    taken = []
    for _ in range(STARTS):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


def command_line(folder: str) -> None:
    """Lists, verifies and exports a checkpoint."""
    assert varve.__version__ in run("varve", "--version")
    path = os.path.join(folder, "step-1")
    varve.save({"w": np.arange(1000.0), "step": 1}, path)
    (entry,) = json.loads(run("varve", "ls", folder, "--json"))
    assert entry["state"] == "whole", entry
    run("varve", "verify", path)
    assert run("varve", "latest", folder).strip() == path
    run("varve", "export", path, os.path.join(folder, "w.safetensors"))
    run("varve", "latest", os.path.join(folder, "nothing"), code=1)


def agent(folder: str) -> None:
    """Starts the agent as trainers do, asks after it and stops it."""
    os.environ["VARVE_AGENT_DIR"] = folder
    assert not json.loads(run("varve", "agent", "status", "--json"))["running"]
    program = varve.agent.program()
    assert program == os.path.join(os.path.dirname(varve.__file__), "bin", "varve-agent"), program
    subprocess.run([program, "--directory", folder, "--detach"], check=True, timeout=60)
    status: dict[str, object] = {"running": False}
    limit = time.monotonic() + 30
    while not status["running"] and time.monotonic() < limit:
        status = json.loads(run("varve", "agent", "status", "--json"))
    assert status["running"] and status["version"] == varve.__version__, status
    run("varve", "agent", "stop")
    assert not json.loads(run("varve", "agent", "status", "--json"))["running"]
    assert varve.__version__ in run("varve-agent", "--version")


def main() -> None:
    """Checks both programs."""
    with tempfile.TemporaryDirectory() as folder:
        command_line(folder)
    with tempfile.TemporaryDirectory() as folder:
        agent(folder)
    launched = milliseconds(os.path.join(SCRIPTS, "varve"), "--version")
    program = os.path.join(os.path.dirname(varve.__file__), "bin", "varve")
    itself = milliseconds(program, "--version")
    print(
        f"Python {sys.version.split()[0]}: the command line and the agent run; varve --version takes"
        f" {launched:.1f} ms, {itself:.1f} of them the program itself (median of {STARTS})"
    )


if __name__ == "__main__":
    main()
