"""Limits of the process (ulimit): an error that names the file and the limit, and never a signal."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import varve

MIB = 1 << 20


@pytest.fixture
def big(folder: Path) -> Path:
    varve.save({"w": np.zeros(4 * MIB, np.uint8)}, folder / "step-1")
    return folder / "step-1"


def limited(command: list, kind: int, value: int) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, preexec_fn=limit, timeout=60
    )


@pytest.mark.parametrize(
    ("verb", "options"),
    [("export", []), ("convert", ["--to", "dcp"]), ("convert", ["--to", "torch"])],
)
def test_a_file_above_the_limit_is_an_error_and_no_signal(verb, options, binary, big, folder):
    target = folder / "target"
    done = limited([binary, verb, big, target, *options], resource.RLIMIT_FSIZE, MIB)
    assert done.returncode == 2, done
    assert "File too large" in done.stderr and "ulimit -f" in done.stderr
    assert str(folder) in done.stderr
    assert [path.name for path in folder.iterdir()] == ["step-1"]


#: Saves as a program does that has the usual action of SIGXFSZ, which is to be killed.
SAVES = """
import signal, sys
import numpy as np
import varve

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    varve.save({"w": np.zeros(4 << 20, np.uint8)}, sys.argv[1])
except varve.OutOfSpaceError as error:
    print(error)
"""


def test_a_save_above_the_limit_does_not_kill_its_program(folder):
    done = limited([sys.executable, "-c", SAVES, folder / "step-1"], resource.RLIMIT_FSIZE, MIB)
    assert done.returncode == 0, done
    assert "data-00000-of-00001.safetensors: File too large" in done.stdout
    assert "ulimit -f" in done.stdout
    assert list(folder.iterdir()) == []


def test_without_descriptors_the_error_names_the_file_and_the_limit(binary, big, folder):
    done = limited([binary, "export", big, folder / "target"], resource.RLIMIT_NOFILE, 6)
    assert done.returncode == 2, done
    assert "Too many open files" in done.stderr and "ulimit -n" in done.stderr
    assert str(folder) in done.stderr
    assert not (folder / "target").exists()
