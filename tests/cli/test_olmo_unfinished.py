"""`varve ls` and `gc` know the directory that a save of OLMo leaves when it dies: stepN-tmp."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from cli_support import contents

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "olmo"
LAYOUTS = {
    "local-world2": "olmo-local",
    "legacy-world2": "olmo-torch-legacy",
    "torch-new-world2": "olmo-torch-new",
    "unsharded-ids": "olmo-full",
}
DAY = 24 * 3600


def age(path: Path, seconds: float = 2 * DAY) -> None:
    """Makes everything under a path look as if it was last changed so long ago."""
    then = time.time() - seconds
    for below in [*path.rglob("*"), path]:
        os.utime(below, (then, then), follow_symlinks=False)


def unfinished(folder: Path, case: str, name: str = "step5-tmp") -> Path:
    """What OLMo leaves when it dies before the last of its files."""
    path = folder / name
    shutil.copytree(GOLDEN / case, path, ignore=shutil.ignore_patterns("config.yaml", "*.json"))
    age(path)
    return path


@pytest.mark.parametrize("case", LAYOUTS)
def test_ls_lists_what_olmo_has_not_finished(case, run, run_json, folder):
    shutil.copytree(GOLDEN / case, folder / "step4")
    path = unfinished(folder, case)
    whole, left = run_json("ls", folder)
    assert (whole["name"], whole["state"]) == ("step4", "whole")
    assert (left["name"], left["state"], left["step"]) == ("step5-tmp", "incomplete", 5)
    assert left["format"] == whole["format"]
    assert left["bytes"] == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert "OLMo has not finished it" in run("ls", folder).stdout
    assert run("latest", folder).stdout.strip().endswith("step4")


@pytest.mark.parametrize("case", LAYOUTS)
def test_gc_removes_it_a_day_after_its_last_change(case, run, run_json, folder):
    shutil.copytree(GOLDEN / case, folder / "step4")
    before = contents(folder)
    path = unfinished(folder, case)
    assert run_json("gc", folder, "--dry-run")["removed"] == [str(path)]
    assert f"would remove {path}" in run("gc", folder, "--dry-run").stdout
    assert path.exists()
    assert f"removed {path}" in run("gc", folder).stdout
    assert contents(folder) == before


def test_gc_removes_an_empty_one(run_json, folder):
    path = folder / "step7-unsharded-tmp"
    path.mkdir()
    assert "OLMo" in run_json("ls", folder)[0]["detail"]
    assert run_json("gc", folder)["kept"] == [str(path)]
    age(path)
    assert run_json("gc", folder)["removed"] == [str(path)]
    assert not path.exists()


def test_gc_keeps_one_in_which_any_file_has_changed_today(run_json, folder):
    path = unfinished(folder, "local-world2")
    os.utime(path / "model" / "rank1.pt")
    before = contents(folder)
    found = run_json("gc", folder)
    assert found["removed"] == [] and found["kept"] == [str(path)]
    assert contents(folder) == before


def test_gc_keeps_one_that_is_whole_for_it_may_be_the_only_copy(run_json, folder):
    path = folder / "step5-tmp"
    shutil.copytree(GOLDEN / "local-world2", path, ignore=shutil.ignore_patterns("*.json"))
    age(path)
    (entry,) = run_json("ls", folder)
    assert entry["state"] == "incomplete" and "not renamed it to step5" in entry["detail"]
    assert run_json("gc", folder)["removed"] == []
    assert path.exists()


def _note(path: Path) -> None:
    (path / "notes.txt").write_text("mine")


def _note_below(path: Path) -> None:
    (path / "model" / "notes.txt").write_text("mine")


def _folder(path: Path) -> None:
    (path / "plots").mkdir()


def _folder_below(path: Path) -> None:
    (path / "model" / "rank0.pt").unlink()
    (path / "model" / "rank0.pt").mkdir()


def _link(path: Path) -> None:
    (path / "model" / "rank9.pt").symlink_to(path.parent / "elsewhere")


def _copy(path: Path) -> None:
    (path / "model" / "rank0.pt.bak").write_bytes(b"x")


@pytest.mark.parametrize("add", [_note, _note_below, _folder, _folder_below, _link, _copy])
def test_gc_keeps_one_that_holds_anything_else(add, run_json, folder):
    path = unfinished(folder, "local-world2")
    add(path)
    age(path)
    before = contents(folder)
    assert run_json("gc", folder)["removed"] == []
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["run-tmp", "step5", "step5-tmp2", "my-step5-tmp", "step-tmp"])
def test_gc_keeps_directories_of_other_names(name, run_json, folder):
    unfinished(folder, "local-world2", name)
    before = contents(folder)
    assert run_json("gc", folder)["removed"] == []
    assert contents(folder) == before


def test_gc_does_not_follow_a_link_of_that_name(run_json, folder, tmp_path):
    elsewhere = unfinished(tmp_path, "local-world2", "elsewhere")
    (folder / "step5-tmp").symlink_to(elsewhere)
    age(folder)
    before = contents(elsewhere)
    assert run_json("gc", folder)["removed"] == []
    assert contents(elsewhere) == before and (folder / "step5-tmp").is_symlink()
