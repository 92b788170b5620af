"""A checkpoint that is overwritten stays whole until the new one is, and nothing of it is left then."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

import varve
import varve.torch
import varve.torch.dcp as dcp


def state(value: float, size: int = 3000) -> dict[str, Any]:
    return {"w": torch.full((size,), value), "step": int(value)}


def assert_holds(path: Path, value: float) -> None:
    assert varve.verify(path) == []
    loaded = {"w": torch.zeros(3000), "step": 0}
    torch_dcp.load(loaded, checkpoint_id=path)
    assert loaded["step"] == value and bool((loaded["w"] == value).all())


def files(path: Path) -> list[str]:
    return sorted(os.listdir(path))


class Killed(BaseException):
    """Ends a save without its ends. Real kills are in test_in_place.py."""


class DiesBefore(dcp.FileSystemWriter):
    """Ends between writing the data and publishing it."""

    def finish(self, metadata: Any, results: Any) -> None:
        self._publication = None  # What the engine has written it removes.
        raise Killed


def die(path: Path, **options: Any) -> None:
    writer = DiesBefore(path)
    with pytest.raises(torch_dcp.CheckpointException):
        torch_dcp.save(state(2), storage_writer=writer, **options)


def test_the_old_checkpoint_is_whole_after_a_save_that_died(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path)
    before = {name: (path / name).read_bytes() for name in files(path)}
    die(path)
    assert {name: (path / name).read_bytes() for name in files(path)} == before
    assert_holds(path, 1)
    (whole,) = (e for e in varve.list_checkpoints(tmp_path) if e.state != "stale")
    assert (whole.name, whole.state, whole.format) == ("step", "whole", "dcp")
    dcp.save(state(3), checkpoint_id=path)
    assert_holds(path, 3)
    assert files(tmp_path) == ["step"]


def test_nothing_shows_under_a_new_name_before_the_save_is_done(tmp_path: Path) -> None:
    die(tmp_path / "step")
    assert [name for name in files(tmp_path) if not name.startswith(".")] == []


def test_at_every_moment_the_name_is_one_whole_checkpoint(tmp_path: Path) -> None:
    """DCP removes `.metadata` before it renames the new one, and truncates data files first."""
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path)
    ended = threading.Event()
    absent = 0

    def look() -> None:
        nonlocal absent
        while not ended.is_set():
            absent += not os.path.exists(path / ".metadata")

    watcher = threading.Thread(target=look)
    watcher.start()
    for value in range(10):
        dcp.save(state(value), checkpoint_id=path)
    ended.set()
    watcher.join()
    assert absent == 0


def test_files_of_a_larger_save_before_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "step"
    for module in (torch_dcp, dcp):
        module.save(
            {f"w{i}": torch.ones(5) for i in range(9)},
            storage_writer=module.FileSystemWriter(path, single_file_per_rank=False),
        )
        assert len(files(path)) == 10
        dcp.save(state(1), checkpoint_id=path)
        assert files(path) == [".metadata", "__0_0.distcp"]


@pytest.mark.parametrize("module", [dcp, torch_dcp])
def test_a_checkpoint_is_not_overwritten_unless_allowed(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "step"
    module.save(state(1), checkpoint_id=path)
    with pytest.raises(dcp.CheckpointError, match="already holds a checkpoint") as caught:
        dcp.save(state(2), storage_writer=dcp.FileSystemWriter(path, overwrite=False))
    assert isinstance(caught.value.__cause__, varve.CheckpointExistsError)
    assert_holds(path, 1)


def test_a_directory_that_is_there_and_empty_is_free(tmp_path: Path) -> None:
    dcp.save(state(1), storage_writer=dcp.FileSystemWriter(tmp_path, overwrite=False))
    assert_holds(tmp_path, 1)


def test_other_files_in_the_directory_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "step"
    path.mkdir()
    (path / "tokenizer.json").write_text("{}")
    for value in (1, 2):
        dcp.save(state(value), checkpoint_id=path)
        assert_holds(path, value)
        assert files(path) == [".metadata", f"__0_{value - 1}.distcp", "tokenizer.json"]
    with pytest.raises(dcp.CheckpointError, match="already holds a checkpoint"):
        dcp.save(state(3), storage_writer=dcp.FileSystemWriter(path, overwrite=False))


def test_beside_other_files_too_the_old_one_is_whole_until_the_new_one_is(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path)
    (path / "notes.txt").write_text("mine")
    die(path)
    assert_holds(path, 1)
    assert files(path) == [".metadata", "__0_0.distcp", "notes.txt"]
    dcp.save(state(3), checkpoint_id=path)
    assert_holds(path, 3)
    assert files(path) == [".metadata", "__0_1.distcp", "notes.txt"]


def test_a_failed_save_beside_other_files_leaves_none_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path)
    (path / "notes.txt").write_text("mine")
    writer = dcp.FileSystemWriter(path)
    writer.finish = _raise_killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        dcp.save(state(2), storage_writer=writer)
    assert files(path) == [".metadata", "__0_0.distcp", "notes.txt"]
    assert_holds(path, 1)


def _raise_killed(*args: Any, **kwargs: Any) -> None:
    raise Killed


def test_a_link_to_a_directory_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "latest").symlink_to("real")
    for value in (1, 2):
        dcp.save(state(value), checkpoint_id=tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert_holds(tmp_path / "real", 2)


def test_a_native_checkpoint_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "step"
    varve.torch.save(state(1), path)
    dcp.save(state(2), checkpoint_id=path)
    assert_holds(path, 2)
    assert files(path) == [".metadata", "__0_0.distcp"]


def test_two_saves_of_one_name_at_once_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "step"
    first = dcp.FileSystemWriter(path)
    first.set_up_storage_writer(True)

    def claim() -> None:
        first.prepare_global_plan([first.prepare_local_plan(torch_dcp.SavePlan([]))])

    other = threading.Thread(target=claim)
    other.start()
    other.join()
    with pytest.raises(dcp.CheckpointError, match="another save"):
        dcp.save(state(1), checkpoint_id=path)
    first.reset()
    dcp.save(state(1), checkpoint_id=path)
    assert_holds(path, 1)


def test_a_rank_saving_alone_keeps_its_old_checkpoint_until_the_new_one_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path, use_collectives=False)
    die_alone = DiesBefore(path)
    with pytest.raises(Killed):
        torch_dcp.save(state(2), storage_writer=die_alone, use_collectives=False)
    loaded = {"w": torch.zeros(3000), "step": 0}
    dcp.load(loaded, checkpoint_id=path)
    assert loaded["step"] == 1 and bool((loaded["w"] == 1).all())
    dcp.save(state(3), checkpoint_id=path, use_collectives=False)
    assert files(path) == ["__0.metadata", "__0_1.distcp"]
    with pytest.raises(dcp.CheckpointError, match="already holds a checkpoint"):
        dcp.save(
            state(4),
            storage_writer=dcp.FileSystemWriter(path, overwrite=False),
            use_collectives=False,
        )


def test_a_rank_saving_alone_does_not_hide_behind_a_checkpoint_of_all(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(state(1), checkpoint_id=path)
    with pytest.raises(dcp.CheckpointError, match="would never be read"):
        dcp.save(state(2), checkpoint_id=path, use_collectives=False)
    assert_holds(path, 1)
    dcp.save(state(2), checkpoint_id=tmp_path / "local", use_collectives=False)
    dcp.save(state(3), checkpoint_id=tmp_path / "local")
    assert files(tmp_path / "local") == [".metadata", "__0_0.distcp"]
