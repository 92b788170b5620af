"""Small file systems."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(kind: str, options: str, at: Path) -> Iterator[Path]:
    at.mkdir()
    command = ["mount", "-t", kind, *(["-o", options] if options else []), kind, str(at)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)
