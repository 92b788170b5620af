"""Files that are slow on demand, so that a test interrupts a process in the middle of its work.

A library that is preloaded (slow_open.c) holds up whoever opens a file, until the test lets it go. A
process that did not stop after that would open the next file, and that takes a minute.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import varve
from varve import _arrays, _core, _engine


def interrupted(
    command: Sequence[str | Path], files: str, how: signal.Signals = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Starts a command, sends it a signal while it opens a file of this glob, and waits for its end.

    Skips the test where no C compiler makes the library.
    """
    with tempfile.TemporaryDirectory() as home:
        mark = Path(home) / "mark"
        slow = {"SLOW_OPEN": files, "SLOW_OPEN_MARK": str(mark), "LD_PRELOAD": str(library(home))}
        process = subprocess.Popen(
            command,
            env={**os.environ, **slow},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in range(1200):
                if mark.exists() or process.poll() is not None:
                    break
                time.sleep(0.05)
            assert process.poll() is None, process.communicate()
            process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.7)  # It is seen while the system call is still under way.
            mark.with_suffix(".go").touch()
            out, err = process.communicate(timeout=600)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def library(home: str | Path) -> Path:
    """Makes the library in a directory; skips the test where no C compiler does."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for slow_open.c")
    library = Path(home) / "slow_open.so"
    source = Path(__file__).with_name("slow_open.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def save_in_files(path: Path, count: int = 4) -> None:
    """Saves a committed checkpoint with a data file of each of `count` ranks."""
    for rank in range(count):
        _engine.save(
            _engine.Content({f"w{rank}": np.full(1000, rank)}),
            path,
            _arrays.NumpyArrays(),
            _core.Coordinator(rank, count),
            _core.SaveOptions(coordinate=False, save_id=b"\xab" * 16),
        )
    varve.repair(path)
