"""Decoding starts no process, opens no connection and touches no file but those it was given."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import ATTACKS
from readers import VERBS, said

import varve
import varve.torch

CALLS = (
    "trace=%network,execve,execveat,fork,vfork,open,openat,creat,mkdir,mkdirat,rename,renameat,"
    "renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat"
)
OF_THE_SYSTEM = ("/lib", "/usr/", "/opt/", "/etc/ld.so", "/proc/", "/sys/")


@pytest.mark.parametrize("verb", VERBS)
def test_by_the_calls_that_the_kernel_sees(verb: str, binary: Path, tmp_path: Path) -> None:
    tracer = shutil.which("strace")
    if tracer is None or subprocess.run([tracer, "-o", os.devnull, "true"]).returncode != 0:
        pytest.skip("needs strace, and to be allowed to trace")
    names = [name for name in ATTACKS if "call" in name or "path" in name or "outside" in name]
    assert len(names) > 12
    converted = tmp_path / "converted"
    for name in names:
        given, log = tmp_path / name, tmp_path / f"{name}.trace"
        given.mkdir()
        path = ATTACKS[name].make(given, tmp_path / "canary")
        more = (converted / name, "--to", "varve") if verb == "convert" else ()
        command = [tracer, "-f", "-qq", "-e", CALLS, "-o", log, binary, verb, path, *more]
        # `ls` asks the agent of the user, if there is one.
        alone = {**os.environ, "VARVE_AGENT_DIR": str(tmp_path / "no-agent")}
        subprocess.run([str(part) for part in command], capture_output=True, timeout=600, env=alone)
        for call in calls_of(log):
            check(call, path, converted)
    assert not (tmp_path / "canary").exists()


def calls_of(log: Path) -> list[str]:
    """All but the first, which starts the command; lines are "PID call(...) = result"."""
    calls = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]
    calls = [call for call in calls if not call.startswith(("---", "+++", "<... "))]
    assert calls[0].startswith("execve(")
    return calls[1:]


def check(call: str, path: Path, converted: Path) -> None:
    name = call.split("(")[0]
    assert name.startswith(("open", "mkdir", "rename", "unlink")), call
    what = call.split('"')[1]
    in_target = what == str(converted) or what.startswith(f"{converted}/")
    only_reads = name.startswith("open") and "O_RDONLY" in call and "O_CREAT" not in call
    if not in_target:
        assert only_reads, call
        given = what == str(path) or what.startswith(f"{path}/")
        # To make the name of the target durable, or to list what stands beside a checkpoint.
        above = "O_DIRECTORY" in call and Path(what) in (*converted.parents, path.parent)
        # Where an overwrite that was interrupted would have left the checkpoint.
        hidden = what.startswith(f"{path.parent}/.")
        assert given or above or hidden or what.startswith(OF_THE_SYSTEM), call


class Touches:
    """What opening a pickle of this makes is a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.canary}'",)


def test_a_pickle_in_a_native_checkpoint_is_opened_by_nobody(binary: Path, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "native"
    varve.save({"w": np.zeros(3), "it": Touches(canary)}, path, allow_pickle=True)
    for verb in VERBS:
        assert said(verb, binary, path, tmp_path / "out") == ""
    for load in (
        lambda: varve.read(path),
        lambda: varve.torch.read(path),
        lambda: varve.load({"w": np.zeros(3), "it": 0}, path),
    ):
        with pytest.raises(varve.UnsupportedError, match="allow_pickle=True"):
            load()
    assert not canary.exists()
