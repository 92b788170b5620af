"""The command line under test, and checkpoints to run it on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import varve

sys.path.insert(0, str(Path(__file__).parent))  # For cli_support.

ROOT = Path(__file__).resolve().parents[2]

# Where Ctrl-C is ignored, as in a job that a shell has put into the background, the processes that the
# tests start would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _binary() -> Path | None:
    named = os.environ.get("VARVE_CLI")
    if named:
        return Path(named)
    places = (Path(sys.executable).parent / "varve", ROOT / "build" / "dev" / "bin" / "varve")
    return next((place for place in places if place.exists()), None)


@pytest.fixture(scope="session")
def binary() -> Path:
    found = _binary()
    if found is None:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("no varve command was built")
        pytest.skip("no varve command here; ./setup builds it")
    return found


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(binary: Path) -> Run:
    """`run("ls", folder)`: the finished process, its output as text; `code` is what it must exit with."""

    def call(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [binary, *map(str, arguments)], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done

    return call


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Like `run` with --json: what was printed, parsed. Nothing else may have been printed."""

    def call(*arguments: object, code: int = 0) -> Any:
        done = run(*arguments, "--json", code=code)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return call


@pytest.fixture
def state() -> dict[str, Any]:
    # 2.4 MB: several blocks of checksums.
    return {
        "model": {
            "weight": np.arange(600_000, dtype=np.float32).reshape(600, 1000),
            "bias": np.linspace(-1, 1, 7),
        },
        "optim": {"count": np.arange(5, dtype=np.int64)},
        "wave": np.arange(3, dtype=np.complex128),
        "step": 10,
        "note": "saved by a test",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


@pytest.fixture
def checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    path = folder / "step-00000010"
    varve.save(state, path)
    return path
