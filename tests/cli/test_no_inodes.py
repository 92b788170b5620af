"""A file system that has no inode for another file: its user can still make room."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import varve

INODES = 64


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with few inodes, and a run of three steps on it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "small"
    disk.mkdir()
    options = f"size=8m,nr_inodes={INODES}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk])
    if done.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        for step in (1, 2, 3):
            varve.save({"w": np.full(9, step)}, disk / "run" / f"step-{step}")
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def use_all_inodes(disk: Path) -> None:
    (disk / "ballast").mkdir()
    for number in range(INODES):
        try:
            (disk / "ballast" / str(number)).touch()
        except OSError:
            return
    raise AssertionError("the file system still has inodes")


def names(run_folder: Path) -> list[str]:
    return sorted(path.name for path in run_folder.iterdir())


def test_prune_removes_steps_where_no_lock_file_can_be_made(run, small):
    use_all_inodes(small)
    with pytest.raises(varve.OutOfSpaceError):
        varve.save({"w": 4}, small / "run" / "step-4")
    assert "removed 2 steps" in run("prune", small / "run", "--keep", "last=1").stdout
    assert names(small / "run") == ["step-3"]
    varve.save({"w": 4}, small / "run" / "step-4")


def test_rm_and_gc_remove_where_no_lock_file_can_be_made(run, small):
    (small / "run" / "step-1").rename(small / "run" / f".step-1.varve-removed-{'0' * 12}")
    use_all_inodes(small)
    assert "removed " in run("gc", small / "run").stdout
    assert names(small / "run") == ["step-2", "step-3"]
    with (small / "ballast" / "more").open("w"), (small / "ballast" / "still").open("w"):
        run("rm", small / "run" / "step-2")
    assert names(small / "run") == ["step-3"]


def test_rm_on_a_file_system_without_inodes_refuses_what_is_being_saved(run, small):
    with (small / "run" / ".step-%31.varve-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # As a save holds it.
        use_all_inodes(small)
        done = run("rm", small / "run" / "step-1", code=2)
        assert "a save of it is under way" in done.stderr
        varve.verify(small / "run" / "step-1")


def test_a_lock_of_the_directory_by_another_program_fails_no_save(folder):
    directory = os.open(folder, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)  # As `flock RUN train` holds it, or a removal.
    varve.save({"w": 1}, folder / "step-1")
    os.close(directory)
    assert varve.verify(folder / "step-1") == []
