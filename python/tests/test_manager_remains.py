"""Steps whose index and data are missing: a purge of a scratch disk removes files and leaves directories."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_manager import events, names, state, train

import varve
from varve.integrations import _hf_folders


def keep_notes(step: Path) -> None:
    """Removes the index and the data; the manifest and the note of the manager stay."""
    for file in [step / "varve.json", *step.glob("data-*")]:
        file.unlink()


def empty(step: Path) -> None:
    for file in step.iterdir():
        file.unlink()


VARVE = Path(sys.executable).with_name("varve")
LOSSES = pytest.mark.parametrize("lose", [keep_notes, empty])
Lose = Callable[[Path], None]


def saved(run: Path, lose: Lose | None = None, *lost: int) -> Path:
    """Saves steps 1 to 3, of which some then lose their files."""
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 4))
    for step in lost:
        assert lose is not None
        lose(run / f"step-{step:08d}")
    return run


@LOSSES
@pytest.mark.parametrize("history", [True, False])
def test_no_job_begins_anew_where_all_steps_have_lost_their_files(
    tmp_path: Path, lose: Lose, history: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path / "run", lose, 1, 2, 3)
    if not history:  # A purge takes it too.
        (run / "varve-history.jsonl").unlink()
    for _ in range(2):
        with (
            varve.CheckpointManager(run) as manager,
            pytest.raises(varve.CorruptCheckpointError, match="no whole step is left"),
        ):
            manager.resume(state())
        assert "step-00000003 is damaged and passed over" in caplog.text
    assert names(run) == [1, 2, 3]


@LOSSES
def test_a_step_that_has_lost_its_files_is_passed_over_and_its_number_saved_again(
    tmp_path: Path, lose: Lose, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path / "run", lose, 3)
    with varve.CheckpointManager(run, every=1) as manager:
        assert manager.resume(state()) == 2
        assert "step-00000003 is damaged and passed over" in caplog.text
        assert [line["name"] for line in events(run, "quarantine")] == ["step-00000003"]
        train(manager, range(3, 4))
    assert [one.state for one in varve.steps(run)] == ["whole"] * 3


@LOSSES
def test_a_user_s_file_beside_what_is_left_stays(tmp_path: Path, lose: Lose) -> None:
    run = saved(tmp_path / "run", lose, 2)
    mine = run / "step-00000002" / "mine.txt"
    with varve.CheckpointManager(run, every=1) as manager:
        if lose is keep_notes:
            mine.write_text("mine")
        manager.restore(1, state())
        future = manager.save(2, state(2.0))
        assert future is not None and future.exception() is None
    assert {one.step: one.state for one in varve.steps(run)} == {
        1: "whole",
        2: "whole",
        3: "whole",
    }
    assert lose is empty or mine.read_text() == "mine"
    assert sorted(one.name for one in run.iterdir() if one.name.startswith(".step")) == []


@LOSSES
def test_ls_latest_and_prune_know_it_and_keep_the_last_good_step(
    tmp_path: Path, lose: Lose
) -> None:
    run = saved(tmp_path / "run", lose, 2, 3)

    def call(*arguments: str) -> str:
        done = subprocess.run([VARVE, *arguments], capture_output=True, text=True)
        return done.stdout + done.stderr

    listed = call("ls", str(run))
    assert listed.count("damaged") == 2
    assert ("its index and its data are missing" if lose is keep_notes else "empty") in listed
    latest = call("latest", str(run)).splitlines()
    assert latest[0] == str(run / "step-00000001") and "passed over step-00000003" in latest[1]
    call("prune", str(run), "--keep", "last=1")
    assert [(one.step, one.state) for one in varve.steps(run)] == [
        (1, "whole"),
        (2, "damaged"),
        (3, "damaged"),
    ]
    call("rm", str(run / "step-00000003"))
    assert names(run) == [1, 2]


def test_a_directory_that_was_never_a_checkpoint_is_not_claimed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "step-00000100").mkdir(parents=True)
    (run / "step-00000100" / "notes.txt").write_text("mine")
    (run / "figures-1").mkdir()
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(state()) is None
    assert names(run) == [] and os.listdir(run / "step-00000100") == ["notes.txt"]


def test_empty_directories_of_other_software_are_not_claimed(tmp_path: Path) -> None:
    for name in ("checkpoint-500", "version_0", "run-1"):
        (tmp_path / name).mkdir()
    assert varve.list_checkpoints(tmp_path) == []
    varve.save(state(), tmp_path / "checkpoint-400")
    found = {one.name: one.state for one in varve.list_checkpoints(tmp_path)}
    assert found == {"checkpoint-400": "whole", "checkpoint-500": "damaged"}


def test_a_checkpoint_of_transformers_without_its_index_and_data_is_not_resumed_from(
    tmp_path: Path,
) -> None:
    for step in (4, 8):
        varve.save(
            state(step), tmp_path / f"checkpoint-{step}", files={"trainer_state.json": b"{}"}
        )
    keep_notes(tmp_path / "checkpoint-8")
    with pytest.warns(RuntimeWarning, match="checkpoint-8 is passed over: it is damaged"):
        good = _hf_folders.newest_good(str(tmp_path), "checkpoint-", False, lambda path: None)
    assert good == str(tmp_path / "checkpoint-4")
    _hf_folders.clear_way(str(tmp_path / "checkpoint-8"), [])
    assert not (tmp_path / "checkpoint-8").exists()
