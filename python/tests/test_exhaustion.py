"""A process that may take no more memory: every call ends, with success or with one of our errors."""

from __future__ import annotations

import json
from pathlib import Path

import programs
import pytest

#: Takes the extra MiB that the process may still get, and a directory; prints how each call ended.
SCRIPT = """
import json, resource, sys
import torch
import varve, varve.torch
from varve.errors import Error

extra, folder = int(sys.argv[1]) << 20, sys.argv[2]
state = {"w": torch.arange(3 << 20), "step": 7}
varve.torch.save(state, f"{folder}/first")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)

def background():
    with varve.torch.Stager(memory_budget=32 << 20) as stager:
        varve.torch.async_save(state, f"{folder}/async", stager=stager).result(60)

ended = {}
def call(name, function):
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, hard))
    try:
        function()
        outcome = "ok"
    except Error as error:
        outcome = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    ended[name] = outcome

call("save", lambda: varve.torch.save(state, f"{folder}/save"))
call("async", background)
target = {"w": torch.zeros(3 << 20, dtype=torch.int64), "step": 0}
call("load", lambda: varve.torch.load(target, f"{folder}/first"))
for name in ("save", "async"):
    if ended[name] == "ok":
        assert torch.equal(varve.torch.read(f"{folder}/{name}")["w"], state["w"])
    varve.torch.save(state, f"{folder}/{name}", overwrite=True)
    assert varve.verify(f"{folder}/{name}") == []
print(json.dumps(ended))
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra_mib", [0, 4, 40])
def test_calls_end_when_the_address_space_is_used_up(tmp_path: Path, extra_mib: int) -> None:
    done = programs.run(SCRIPT, extra_mib, tmp_path)
    if done.stderr.startswith("cannot allocate memory for thread-local data: ABORT"):
        return  # The C library ends a process whose new thread has no room for its variables.
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    assert set(ended) == {"save", "async", "load"} and all(ended.values())
    if extra_mib == 0:
        assert "memory_budget" in ended["async"]
