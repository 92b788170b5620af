"""Saves into a directory that stays: kills at every phase, and files that they do not touch."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from pathlib import Path

import dcp_kill_jobs as jobs
import pytest
from ranks import fork_context

import varve.torch
import varve.torch.dcp as dcp

OTHERS = {"tokenizer.json": "{}", "__0_0.distcp.bak": "no data file", "my.metadata": "nor an index"}


def make_directory(path: Path) -> None:
    (path / "logs").mkdir(parents=True)
    for name, text in {**OTHERS, "logs/train.txt": "step 1"}.items():
        (path / name).write_text(text)


def assert_others_are_there(path: Path) -> None:
    for name, text in {**OTHERS, "logs/train.txt": "step 1"}.items():
        assert (path / name).read_text() == text


def number_of(path: Path) -> int:
    """The one number that all elements of a checkpoint must share."""
    state = varve.torch.read(path)
    for name in "wv":
        assert bool((state[name] == state["n"]).all())
    return int(state["n"])


def own_files(path: Path, rank_local: bool) -> list[str]:
    (data,) = (n for n in os.listdir(path) if n.endswith(".distcp"))
    return sorted(["__0.metadata" if rank_local else ".metadata", data, "logs", *OTHERS])


@pytest.mark.parametrize("rank_local", [False, True])
@pytest.mark.parametrize("phase", ["claimed", "written in part", "written", "published"])
def test_a_kill_in_any_phase_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, phase: str, rank_local: bool
) -> None:
    path = tmp_path / "step"
    make_directory(path)
    dcp.save(jobs.numbered(1), checkpoint_id=path, use_collectives=not rank_local)
    for number in (2, 3):  # The second meets what the first has left.
        process = fork_context().Process(
            target=jobs.save_and_be_killed, args=(str(path), number, phase, rank_local)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert number_of(path) == (number if phase == "published" else 1)
        assert_others_are_there(path)
    dcp.save(jobs.numbered(4), checkpoint_id=path, use_collectives=not rank_local)
    assert number_of(path) == 4
    assert_others_are_there(path)
    assert sorted(os.listdir(path)) == own_files(path, rank_local)
    assert os.listdir(tmp_path) == ["step"]


@pytest.mark.slow
@pytest.mark.parametrize("rank_local", [False, True])
def test_kills_at_random_instants_leave_the_old_or_the_new_checkpoint(
    tmp_path: Path, rank_local: bool
) -> None:
    random.seed(7)
    path = tmp_path / "step"
    make_directory(path)
    dcp.save(jobs.numbered(0), checkpoint_id=path, use_collectives=not rank_local)
    seen: set[int] = set()
    first = 1
    for _ in range(25):
        context = fork_context()
        started = context.Event()
        process = context.Process(
            target=jobs.save_in_place_for_ever, args=(str(path), first, started, rank_local)
        )
        process.start()
        assert started.wait(60)
        time.sleep(0.02 + random.random() * 0.1)
        process.kill()
        process.join()
        number = number_of(path)
        assert number >= first - 1, "an older checkpoint came back"
        assert_others_are_there(path)
        seen.add(number)
        first = number + 1
    assert len(seen) > 5, "hardly any save succeeded: the kills prove little"
    dcp.save(jobs.numbered(-1), checkpoint_id=path, use_collectives=not rank_local)
    assert number_of(path) == -1
    assert sorted(os.listdir(path)) == own_files(path, rank_local)


def test_two_saves_at_once_into_one_directory_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "step"
    make_directory(path)
    first = dcp.FileSystemWriter(path)
    context = fork_context()
    process = context.Process(
        target=jobs.save_in_place_for_ever, args=(str(path), 1, context.Event(), False)
    )
    first.set_up_storage_writer(True)
    first.prepare_global_plan([first.prepare_local_plan(dcp.SavePlan([]))])
    process.start()
    process.join()
    assert process.exitcode == 1  # "another save of ... is under way"
    assert sorted(os.listdir(path)) == sorted([*OTHERS, "logs", ".in-place.varve-lock"])
    first.abandon()
    dcp.save(jobs.numbered(5), checkpoint_id=path)
    assert number_of(path) == 5


def test_a_checkpoint_of_ranks_on_their_own_in_varves_format_is_replaced(tmp_path: Path) -> None:
    """Beside its data files an index of DCP would never be read."""
    path = tmp_path / "step"
    varve.torch.save(jobs.numbered(1), path, coordinate=False)
    dcp.save(jobs.numbered(2), checkpoint_id=path)
    assert number_of(path) == 2


def test_files_that_could_not_come_along_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "step"
    varve.torch.save(jobs.numbered(1), path)
    (path / "notes.txt").write_text("newer")
    dead = tmp_path / ".step.varve-saving-0123456789ab"  # The checkpoint that a dead save replaced.
    varve.torch.save(jobs.numbered(0), tmp_path / "other")
    (tmp_path / "other").rename(dead)
    (dead / "notes.txt").write_text("older")
    with caplog.at_level(logging.WARNING, "varve"):
        dcp.save(jobs.numbered(2), checkpoint_id=path)
    assert number_of(path) == 2
    assert (path / "notes.txt").read_text() == "newer"
    assert (dead / "notes.txt").read_text() == "older"
    (record,) = (r for r in caplog.records if r.name.startswith("varve"))
    assert str(dead / "notes.txt") in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "varve"):  # Now the directory stays, with notes.txt.
        dcp.save(jobs.numbered(3), checkpoint_id=path)
    assert any(str(dead / "notes.txt") in r.getMessage() for r in caplog.records)
    assert number_of(path) == 3


def test_a_large_number_in_a_name_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "step"
    make_directory(path)
    (path / f"__0_{10**30}.distcp").write_text("")
    dcp.save(jobs.numbered(1), checkpoint_id=path)
    assert number_of(path) == 1
