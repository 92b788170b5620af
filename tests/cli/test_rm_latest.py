"""varve rm and varve latest."""

from __future__ import annotations

import pytest

import varve


def test_rm_removes_the_directory_and_lists_what_was_not_part_of_it(
    run, run_json, folder, checkpoint
):
    (checkpoint / "notes.txt").write_text("mine")
    dry = run_json("rm", checkpoint, "--dry-run")
    assert dry["others"] == ["notes.txt"] and dry["bytes"] > 0 and checkpoint.exists()
    text = run("rm", checkpoint).stdout
    assert "removed notes.txt, which is not part of the checkpoint" in text
    assert f"removed {checkpoint}, " in text
    assert list(folder.iterdir()) == []


def test_rm_refuses_what_is_no_checkpoint(run, folder):
    (folder / "data").mkdir()
    (folder / "data" / "x").write_text("mine")
    done = run("rm", folder / "data", code=2)
    assert "not a checkpoint" in done.stderr
    assert (folder / "data" / "x").read_text() == "mine"
    assert "nothing of that name" in run("rm", folder / "none", code=2).stderr


@pytest.mark.parametrize("written", ["step-1/../step-1", "./step-1", "step-1/", "step-1//"])
def test_rm_and_prune_understand_a_path_however_it_is_written(written, run, folder, state):
    varve.save(state, folder / "step-1")
    run("rm", f"{folder}/{written}")
    assert list(folder.iterdir()) == []
    for step in (1, 2, 3):
        varve.save(state, folder / f"step-{step}")
    run("prune", f"{folder}/step-1/..", "--keep", "last=1")
    assert [path.name for path in folder.iterdir()] == ["step-3"]


def test_latest_prints_the_newest_whole_checkpoint(run, folder, state):
    assert (
        run("latest", folder, code=1).stderr == f"varve: there is no whole checkpoint in {folder}\n"
    )
    for name in ("step-9", "step-10", "step-11"):
        varve.save(state, folder / name)
    (folder / "step-11" / "manifest.bin").unlink()
    latest = run("latest", folder)
    assert latest.stdout == f"{folder / 'step-10'}\n"
    assert "passed over step-11: it is damaged: " in latest.stderr
    assert "manifest.bin is missing" in latest.stderr
    varve.repair(folder / "step-11")
    latest = run("latest", folder)
    assert (latest.stdout, latest.stderr) == (f"{folder / 'step-11'}\n", "")


def test_inspect_shows_side_files(run, run_json, folder, state):
    varve.save(state, folder / "c", files={"config.json": b"{}"})
    assert run_json("inspect", folder / "c")["side_files"] == [{"name": "config.json", "bytes": 2}]
    assert "config.json" in run("inspect", folder / "c").stdout
