"""Links and removals of adapters wait for the saves that were asked for before them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import varve

pytest.importorskip("torch")

from varve.integrations._saves import Saves


@pytest.fixture
def saves() -> Iterator[Saves]:
    made = Saves()
    yield made
    made.settle()


def checkpoint(path: Path, number: int = 0) -> str:
    varve.save({"n": number}, path, overwrite=True)
    return str(path)


def under_way(saves: Saves, path: str) -> Future[Any]:
    save: Future[Any] = Future()
    saves.add(path, save)
    return save


def test_a_checkpoint_is_removed_when_the_newer_one_is_durable(
    saves: Saves, tmp_path: Path
) -> None:
    old, new = checkpoint(tmp_path / "old"), str(tmp_path / "new")
    save = under_way(saves, new)
    saves.remove(old)
    assert varve.read(old) == {"n": 0} and saves.is_asked(new) and saves.is_asked(old)
    save.set_result(None)
    saves.settle()
    assert not os.path.exists(old) and not saves.is_asked(new) and not saves.is_asked(old)


def test_a_checkpoint_stays_where_the_newer_one_has_failed(saves: Saves, tmp_path: Path) -> None:
    old = checkpoint(tmp_path / "old")
    under_way(saves, str(tmp_path / "new")).set_exception(varve.OutOfSpaceError("full"))
    saves.remove(old)
    saves.settle()
    assert varve.read(old) == {"n": 0}
    assert isinstance(saves.take_failure(), varve.OutOfSpaceError)
    assert saves.take_failure() is None, "taken once"


def test_a_link_moves_when_its_target_is_durable(saves: Saves, tmp_path: Path) -> None:
    last = str(tmp_path / "last")
    saves.link(checkpoint(tmp_path / "1", 1), last)
    saves.settle()
    save = under_way(saves, str(tmp_path / "2"))
    saves.link(str(tmp_path / "2"), last)
    assert os.readlink(last) == "1"
    checkpoint(tmp_path / "2", 2)
    save.set_result(None)
    saves.settle()
    assert os.readlink(last) == "2"


def test_a_link_stays_where_the_save_of_its_target_has_failed(saves: Saves, tmp_path: Path) -> None:
    last = str(tmp_path / "last")
    saves.link(checkpoint(tmp_path / "1"), last)
    under_way(saves, str(tmp_path / "2")).set_exception(varve.OutOfSpaceError("full"))
    saves.link(str(tmp_path / "2"), last)
    saves.settle()
    assert os.readlink(last) == "1"


def test_what_a_link_points_to_is_removed_once_the_link_has_moved(
    saves: Saves, tmp_path: Path
) -> None:
    last = str(tmp_path / "last")
    saves.link(checkpoint(tmp_path / "1", 1), last)
    under_way(saves, checkpoint(tmp_path / "2", 2)).set_result(None)
    saves.remove(str(tmp_path / "1"))
    saves.settle()
    assert varve.read(last) == {"n": 1}
    saves.link(str(tmp_path / "2"), last)
    saves.settle()
    assert varve.read(last) == {"n": 2}
    assert sorted(os.listdir(tmp_path)) == ["2", "last"]


def test_what_is_no_checkpoint_is_not_removed(saves: Saves, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    saves.remove(str(tmp_path / "mine"))
    saves.settle()
    assert (tmp_path / "mine" / "notes").exists()


def test_a_removal_with_nothing_under_way_is_done_in_the_call(saves: Saves, tmp_path: Path) -> None:
    old = checkpoint(tmp_path / "old")
    saves.remove(old)
    assert not os.path.exists(old)
    assert "varve-saves" not in [thread.name for thread in threading.enumerate()]


def test_the_thread_ends_with_the_last_save(saves: Saves, tmp_path: Path) -> None:
    save = under_way(saves, str(tmp_path / "new"))
    assert "varve-saves" in [thread.name for thread in threading.enumerate()]
    save.set_result(None)
    saves.settle()
    assert "varve-saves" not in [thread.name for thread in threading.enumerate()]


def test_a_forked_child_has_none_of_its_parents_saves(saves: Saves, tmp_path: Path) -> None:
    save = under_way(saves, str(tmp_path / "of-the-parent"))

    def child() -> None:
        assert not saves.is_asked(str(tmp_path / "of-the-parent"))
        under_way(saves, str(tmp_path / "new")).set_result(None)
        saves.settle()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    alive = process.is_alive()
    process.kill()
    save.set_result(None)
    assert not alive and process.exitcode == 0
