"""Ctrl-C in one process: it ends the call, leaves nothing half done, and the next call works.

With several ranks: test_channel.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("call", _CALLS)
def test_ctrl_c_ends_the_call_and_the_next_one_works(call: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT % _CALLS[call], str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert lines[0] == "interrupted", (done.stdout, done.stderr)
    assert lines[1:] in ([], ["CancelledError"])
    assert sorted(os.listdir(tmp_path)) == ["next"]
    assert varve.verify(tmp_path / "next") == []
