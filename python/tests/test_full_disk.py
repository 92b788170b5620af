"""Storage that is full, read-only, without O_DIRECT or already taken: clear errors, nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disks import mounted

import varve


def arrays(mebibytes: int, value: int = 1) -> dict[str, Any]:
    return {"n": value, "w": np.full(mebibytes << 20, value, np.uint8)}


def assert_holds(path: Path, value: int) -> None:
    assert varve.verify(path) == []
    state = varve.read(path)
    assert state["n"] == value
    assert (state["w"] == value).all()


def visible(directory: Path) -> list[str]:
    return sorted(entry.name for entry in varve.list_checkpoints(directory))


def test_a_full_disk_fails_the_save_and_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(varve.OutOfSpaceError, match="No space left") as caught:
        varve.save(arrays(9), small_disk / "step-1")
    assert isinstance(caught.value, OSError)
    assert "data-00000-of-00001.safetensors" in str(caught.value)
    assert list(small_disk.iterdir()) == []
    varve.save(arrays(6), small_disk / "step-1")
    assert_holds(small_disk / "step-1", 1)


def test_a_full_disk_leaves_older_checkpoints_as_they_were(small_disk: Path) -> None:
    varve.save(arrays(5), small_disk / "step-1")
    with pytest.raises(varve.OutOfSpaceError):
        varve.save(arrays(5, 2), small_disk / "step-2")
    assert [path.name for path in small_disk.iterdir()] == ["step-1"]
    assert visible(small_disk) == ["step-1"]
    assert_holds(small_disk / "step-1", 1)


def test_a_full_disk_during_an_overwrite_keeps_the_old_checkpoint(small_disk: Path) -> None:
    varve.save(arrays(5), small_disk / "step-1")
    with pytest.raises(varve.OutOfSpaceError):
        varve.save(arrays(5, 2), small_disk / "step-1", overwrite=True)
    assert visible(small_disk) == ["step-1"]
    assert_holds(small_disk / "step-1", 1)
    varve.save(arrays(2, 3), small_disk / "step-1", overwrite=True)
    assert_holds(small_disk / "step-1", 3)
    assert [path.name for path in small_disk.iterdir()] == ["step-1"]


def test_a_disk_without_room_for_even_a_directory_fails_the_save(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=3", str(small_disk)], check=True)
    (small_disk / "a").touch()
    (small_disk / "b").touch()
    with pytest.raises(varve.OutOfSpaceError):
        varve.save(arrays(1), small_disk / "step-1")
    assert sorted(path.name for path in small_disk.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("free", [0, 1, 3, 6])
def test_a_disk_that_fills_up_at_any_file_of_a_save_leaves_nothing(
    free: int, small_disk: Path
) -> None:
    state = arrays(1)
    varve.save(state, small_disk / "probe")
    used = sum(-(-file.stat().st_size // 4096) * 4096 for file in (small_disk / "probe").iterdir())
    shutil.rmtree(small_disk / "probe")
    stat = os.statvfs(small_disk)
    room = used - 4096 * (1 + free)
    with (small_disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, stat.f_bavail * stat.f_frsize - room)
    with pytest.raises(varve.OutOfSpaceError):
        varve.save(state, small_disk / "step-1")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_file_system_that_refuses_direct_writes_is_written_through_the_cache(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a ramfs, which refuses O_DIRECT, needs root")
    with mounted("ramfs", "", tmp_path / "ram") as disk:
        with pytest.raises(OSError, match="Invalid argument"):
            os.open(disk / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        (disk / "probe").unlink(missing_ok=True)
        report = varve.save(arrays(3), disk / "step-1")
        assert report.direct is False
        assert_holds(disk / "step-1", 1)
        varve.save(arrays(2, 2), disk / "step-1", overwrite=True)
        assert_holds(disk / "step-1", 2)
        assert [path.name for path in disk.iterdir()] == ["step-1"]


def test_a_save_reports_direct_writes_where_the_file_system_takes_them(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"the file system of temporary files refuses O_DIRECT: {error}")
    assert varve.save(arrays(3), tmp_path / "step-1").direct is True


def test_a_read_only_file_system_is_an_error_that_names_it(small_disk: Path) -> None:
    varve.save(arrays(1), small_disk / "step-1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(varve.Error, match="Read-only file system") as caught:
        varve.save(arrays(1), small_disk / "step-2")
    assert str(small_disk) in str(caught.value)
    assert_holds(small_disk / "step-1", 1)
    assert visible(small_disk) == ["step-1"]


AS_NOBODY = """
import os, sys
import numpy as np
import varve
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    varve.save({"w": np.ones(4)}, sys.argv[1] + "/step-2")
except varve.Error as error:
    assert "Permission denied" in str(error) and sys.argv[1] in str(error), error
else:
    raise AssertionError("saved into a directory without write permission")
assert varve.read(sys.argv[1] + "/step-1")["w"].sum() == 4
assert varve.verify(sys.argv[1] + "/step-1") == []
assert [c.state for c in varve.list_checkpoints(sys.argv[1])] == ["whole"]
"""


def test_a_directory_one_may_only_read_can_be_read_and_refuses_saves(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        varve.save({"w": np.ones(4)}, Path(parent) / "step-1")
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, parent], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert os.listdir(parent) == ["step-1"]


def test_a_save_through_a_link_to_nothing_makes_what_it_leads_to(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    path.symlink_to("step-1")
    varve.save(arrays(1), path)
    assert path.is_symlink() and varve.verify(tmp_path / "step-1") == []


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_path_that_holds_something_else_is_refused_and_untouched(
    what: str, overwrite: bool, tmp_path: Path
) -> None:
    path = tmp_path / "taken"
    if what == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    with pytest.raises(varve.Error) as caught:
        varve.save(arrays(1), path, overwrite=overwrite)
    assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    if what == "file":
        assert path.read_text() == "mine"
    else:
        assert [p.name for p in path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    varve.save(arrays(1), tmp_path / "step-1")
    assert_holds(tmp_path / "step-1", 1)


def test_a_name_that_is_taken_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    varve.save(arrays(1), tmp_path / "step-1")
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "step-1").iterdir()}
    with pytest.raises(varve.CheckpointExistsError, match="overwrite"):
        varve.save(arrays(1, 2), tmp_path / "step-1")
    after = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "step-1").iterdir()}
    assert before == after
    assert_holds(tmp_path / "step-1", 1)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_cannot_be_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (lambda: varve.save(arrays(1), path), lambda: varve.verify(path)):
        with pytest.raises(varve.Error):
            call()
