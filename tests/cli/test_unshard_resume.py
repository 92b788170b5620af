"""`varve unshard` that was killed goes on with the files that it had not finished."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import contents

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "olmo"
LONG_AGO = 1_000_000_000


@pytest.fixture(params=["local-world2", "legacy-world2", "torch-new-world2"])
def source(request, folder) -> Path:
    path = folder / "source"
    shutil.copytree(GOLDEN / request.param, path)
    return path


#: Unshards, and kills itself when it has written model.pt and is in optim.pt or has just ended it.
KILLED = """
import os, signal, sys
from pathlib import Path
import varve

source, target = map(Path, sys.argv[1:])

def progress(done, total):
    if list(target.parent.glob(f".{target.name}.varve-saving-*/model.pt")):
        os.kill(os.getpid(), signal.SIGKILL)

varve.unshard(source, target, progress=progress)
"""


def kill_in_the_optimizer(source: Path, target: Path) -> Path:
    """Ends an unshard, by a signal, that has written model.pt and no optim.pt. Returns its model.pt."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, source, target], capture_output=True, timeout=600
    )
    assert done.returncode == -signal.SIGKILL, done
    assert not target.exists()
    (staging,) = target.parent.glob(f".{target.name}.varve-saving-*")
    (staging / "optim.pt").unlink(missing_ok=True)  # A small one may be whole already.
    os.utime(staging / "model.pt", (LONG_AGO, LONG_AGO))
    return staging / "model.pt"


def only(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_that_is_whole_is_not_written_again(run, source, folder):
    kill_in_the_optimizer(source, folder / "out")
    run("unshard", source, folder / "out")
    assert (folder / "out" / "model.pt").stat().st_mtime == LONG_AGO
    run("unshard", source, folder / "again")
    assert contents(folder / "out") == contents(folder / "again")
    assert only(folder) == {"source", "out", "again"}
    assert only(folder / "out") == {"config.yaml", "model.pt", "optim.pt", "train.pt"}


def test_it_goes_on_as_often_as_it_is_killed(run, source, folder):
    for _ in range(3):
        kill_in_the_optimizer(source, folder / "out")
    run("unshard", source, folder / "out")
    assert (folder / "out" / "model.pt").stat().st_mtime == LONG_AGO
    assert only(folder) == {"source", "out"}


def test_a_file_of_another_size_is_written_again(run, source, folder):
    model = kill_in_the_optimizer(source, folder / "out")
    os.truncate(model, 1000)
    run("unshard", source, folder / "out")
    assert (folder / "out" / "model.pt").stat().st_mtime != LONG_AGO
    assert "clean" in run("verify", folder / "out").stdout


def test_a_source_that_has_changed_is_written_anew(run, source, folder):
    kill_in_the_optimizer(source, folder / "out")
    file = sorted(path for path in source.rglob("*") if path.suffix in (".pt", ".distcp"))[0]
    os.utime(file, (LONG_AGO, LONG_AGO))
    run("unshard", source, folder / "out")
    assert (folder / "out" / "model.pt").stat().st_mtime != LONG_AGO
    assert only(folder) == {"source", "out"}


@pytest.mark.parametrize("options", [["--model-only"], ["--dtype", "bf16"]])
def test_other_options_start_anew(options, run, source, folder):
    kill_in_the_optimizer(source, folder / "out")
    run("unshard", source, folder / "out", *options)
    assert (folder / "out" / "model.pt").stat().st_mtime != LONG_AGO
    assert only(folder) == {"source", "out"}


def test_gc_removes_what_a_killed_one_left(run, source, folder):
    kill_in_the_optimizer(source, folder / "out")
    run("gc", folder)
    assert only(folder) == {"source"}


def test_a_save_of_that_name_removes_what_a_killed_one_left(run, source, folder):
    kill_in_the_optimizer(source, folder / "out")
    run("convert", source, folder / "out", "--to", "varve")
    assert only(folder) == {"source", "out"}
    assert not (folder / "out" / "model.pt").exists()
