"""Ctrl-C in one process: it ends the call, leaves nothing half done, and the next call works.

With several ranks: test_channel.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
import slow_open

import varve

#: Sends itself SIGINT after half a second, says how the call ended, and saves once more.
_SCRIPT = """
import os, signal, sys, threading, time, torch, varve, varve.torch
from varve.torch import Stager, async_save
directory, = sys.argv[1:]
MIB = 1 << 20
state = {"w": torch.ones(40 * MIB, dtype=torch.uint8)}
slow = lambda done, total: time.sleep(1.5)
stager = Stager(memory_budget=16 * MIB)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
handle = None
try:
    %s
    print("returned")
except KeyboardInterrupt:
    print("interrupted")
assert time.monotonic() - start < 20
if handle is not None:
    handle.cancel()
    print(type(handle.exception(60)).__name__)
state["w"].zero_()
async_save(state, directory + "/next", stager=stager).result(60)
"""

_CALLS = {
    "save": "varve.torch.save(state, directory + '/a', progress=slow)",
    "save of arrays": "varve.save({'w': state['w'].numpy()}, directory + '/a', progress=slow)",
    "async_save in waves": (
        "async_save(state, directory + '/a', stager=stager, max_write_bandwidth=1000)"
    ),
    "wait_staged": (
        "handle = async_save(state, directory + '/a', stager=stager, staging='overlapped',"
        " max_write_bandwidth=1000); handle.wait_staged()"
    ),
    "result": (
        "handle = async_save({'w': state['w'][:9 * MIB]}, directory + '/a', stager=stager,"
        " max_write_bandwidth=1000); handle.result()"
    ),
    "drain": (
        "handle = async_save({'w': state['w'][:9 * MIB]}, directory + '/a', stager=stager,"
        " max_write_bandwidth=1000); stager.drain()"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", _CALLS)
def test_ctrl_c_ends_the_call_and_the_next_one_works(call: str, tmp_path: Path) -> None:
    done = programs.run(_SCRIPT % _CALLS[call], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert lines[0] == "interrupted", (done.stdout, done.stderr)
    assert lines[1:] in ([], ["CancelledError"])
    assert sorted(os.listdir(tmp_path)) == ["next"]
    assert varve.verify(tmp_path / "next") == []


#: Prints how a call ended that was interrupted while it opened the first of several files.
_CATALOGUE_SCRIPT = """
import sys, varve
directory, = sys.argv[1:]
try:
    %s
    print("returned")
except KeyboardInterrupt:
    print("interrupted")
"""

_CATALOGUE_CALLS = {
    "verify": "varve.verify(directory + '/ranks')",
    "diff": "varve.diff(directory + '/ranks', directory + '/ranks')",
    "convert": "varve.convert(directory + '/ranks', directory + '/new', to='varve')",
    "convert to one file": "varve.convert(directory + '/ranks', directory + '/new', to='torch')",
    "convert to a folder": "varve.convert(directory + '/ranks', directory + '/new', to='hf')",
    "repair": "varve.repair(directory + '/ranks')",
    "read": "varve.read(directory + '/ranks')",
    "list_checkpoints": "varve.list_checkpoints(directory)",
    "latest": "varve.latest(directory)",
}


@pytest.mark.parametrize("call", _CATALOGUE_CALLS)
def test_ctrl_c_ends_a_call_on_what_is_stored(call: str, tmp_path: Path) -> None:
    slow_open.save_in_files(tmp_path / "ranks")
    files = "*/ranks/data-*"
    if call in ("list_checkpoints", "latest"):
        for step in (1, 2, 3):
            varve.save({"w": np.full(10, step)}, tmp_path / f"step-{step}")
        files = "*/step-*/varve.json"

    def names() -> list[str]:
        found = (str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        return sorted(name for name in found if not name.endswith("varve-lock"))

    before = names()
    script = _CATALOGUE_SCRIPT % _CATALOGUE_CALLS[call]
    done = slow_open.interrupted([sys.executable, "-c", script, str(tmp_path)], files)
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted"]), done.stderr
    assert names() == before
    assert varve.verify(tmp_path / "ranks") == []


def test_ctrl_c_during_a_removal_leaves_what_gc_removes(tmp_path: Path) -> None:
    """The signal comes somewhere in the removal of many files; all or nothing is left to load."""
    stale = tmp_path / f".step-1.varve-saving-{'0123456789abcdef' * 2}"
    stale.mkdir()
    for number in range(20_000):
        (stale / f"data-{number}-of-20000.safetensors").touch()
    script = _CATALOGUE_SCRIPT % "print('ready', flush=True); varve.collect_garbage(directory)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and out.split() in (["interrupted"], ["returned"])
    varve.collect_garbage(tmp_path)
    assert not stale.exists()
