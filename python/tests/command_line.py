"""The program `varve` of the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARVE = Path(sys.executable).with_name("varve")


def command(*arguments: str | Path, code: int = 0, **environment: str) -> str:
    """Returns what a command prints. Fails where it does not end with `code`."""
    ended = subprocess.run(
        [VARVE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
