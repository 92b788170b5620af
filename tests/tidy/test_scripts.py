"""The scripts that people start by their path can be started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"setup", "test", "demo", "run", "build"}
FOLDERS = (".", ".ci", "fuzz", "bench", "examples", "packaging", "tests/*", "bench/*")
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in ROOT.glob(f"{folder}/*")
    if path.name in NAMES and path.is_file()
)


def test_there_are_scripts() -> None:
    assert Path("test") in SCRIPTS and {Path("tests/sim/run"), Path("packaging/build")} <= {
        *SCRIPTS
    }


@pytest.mark.parametrize("name", SCRIPTS, ids=str)
def test_a_script_can_be_started(name: Path) -> None:
    script = ROOT / name
    assert os.access(script, os.X_OK), "it is not executable"
    first = script.read_text().partition("\n")[0]
    assert first in ("#!/usr/bin/env bash", "#!/usr/bin/env python3", "#!/bin/bash", "#!/bin/sh"), (
        first
    )
    if not first.endswith("python3"):
        subprocess.run(["bash", "-n", script], check=True)
