"""A job in another process that has a run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = """
import sys, varve
manager = varve.CheckpointManager(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
manager.close()
"""


@contextlib.contextmanager
def other_job(run: Path) -> Iterator[int]:
    """Yields its process."""
    command = [sys.executable, "-c", _PROGRAM, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        try:
            yield job.pid
        finally:
            job.communicate()
