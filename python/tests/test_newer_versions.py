"""Steps that a newer Varve wrote: a job on an older one does not go on from an older step without a word.

Nor is such a step taken for damage: it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from records import make_data_newer, make_newer

import varve
import varve.torch
from varve.integrations import _hf_folders, _newest, _steps


def save(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        varve.save({"w": np.arange(3.0), "global_step": number}, folder / name)


def newest_hf(folder: Path) -> object:
    return _hf_folders.newest_good(str(folder), "checkpoint-", True, lambda _: "no")


def newest(run: Path) -> object:
    with varve.CheckpointManager(run) as manager:
        return manager.latest()


def resume(run: Path) -> int | None:
    with varve.CheckpointManager(run) as manager:
        return manager.resume({"w": np.zeros(3), "global_step": 0})


CHOICES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "latest": ("step-{}", varve.latest),
    "manager": ("step-{:08}", newest),
    "manager resumes": ("step-{:08}", resume),
    "torchtitan": ("step-{}", lambda folder: _steps.whole_steps(str(folder))),
    "transformers": ("checkpoint-{}", newest_hf),
    "lightning": ("{}.ckpt", lambda folder: _newest.newest_good(str(folder))),
    "lightning, sharded": ("{}.ckpt", lambda folder: _newest.whole_in(str(folder))),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_newest_step_is_not_passed_over(name: str, tmp_path: Path) -> None:
    pattern, choose = CHOICES[name]
    names = [pattern.format(number) for number in (1, 2)]
    save(tmp_path, names)
    assert choose(tmp_path) is not None
    make_newer(tmp_path / names[1])
    with pytest.raises(varve.UnsupportedError, match="use a newer Varve"):
        choose(tmp_path)
    states = {entry.name: entry.state for entry in varve.list_checkpoints(tmp_path)}
    assert states == {names[0]: "whole", names[1]: "unsupported"}


@pytest.mark.parametrize("name", ["latest", "manager", "torchtitan", "transformers"])
def test_an_older_step_may_be_of_a_newer_varve(name: str, tmp_path: Path) -> None:
    pattern, choose = CHOICES[name]
    names = [pattern.format(number) for number in (1, 2)]
    save(tmp_path, names)
    make_newer(tmp_path / names[0])
    assert names[1] in str(choose(tmp_path))


def test_a_save_does_not_take_it_for_damage(tmp_path: Path) -> None:
    save(tmp_path, ["checkpoint-1"])
    make_newer(tmp_path / "checkpoint-1")
    _hf_folders.clear_way(str(tmp_path / "checkpoint-1"), ())
    assert (tmp_path / "checkpoint-1").is_dir()
    for overwrite in (True, "damaged"):
        with pytest.raises(varve.UnsupportedError, match="use a newer Varve"):
            varve.save({"w": np.zeros(3)}, tmp_path / "checkpoint-1", overwrite=overwrite)


def test_a_manager_that_goes_on_from_an_older_step_does_not_replace_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, ["step-00000001", "step-00000002"])
    make_newer(tmp_path / "step-00000002")
    before = contents(tmp_path / "step-00000002")
    with varve.CheckpointManager(tmp_path) as manager:
        manager.restore(1, {"w": np.zeros(3), "global_step": 0})
        manager.save(2, {"w": np.zeros(3)}, force=True)
    assert "a save does not replace it: remove it, or choose another name" in caplog.text
    assert contents(tmp_path / "step-00000002") == before


def contents(checkpoint: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checkpoint.iterdir() if file.is_file()}


def no_file(checkpoint: Path) -> None:
    """A record that cannot be read, also not by root."""
    (checkpoint / "varve.json").rename(checkpoint / "kept")
    (checkpoint / "varve.json").mkdir()


@pytest.mark.parametrize("change", [make_newer, no_file])
def test_repair_leaves_an_index_alone_that_is_not_damaged(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    varve.save({"w": np.arange(3.0)}, tmp_path / "a", files={"config.json": b"{}"})
    change(tmp_path / "a")
    before = contents(tmp_path / "a")
    with pytest.raises(varve.Error):
        varve.repair(tmp_path / "a")
    assert contents(tmp_path / "a") == before


def test_a_data_file_of_a_newer_version_is_no_damage(tmp_path: Path) -> None:
    save(tmp_path, ["step-00000001", "step-00000002"])
    newest = tmp_path / "step-00000002"
    make_data_newer(next(newest.glob("data-*")))
    with pytest.raises(varve.UnsupportedError, match="use a newer Varve"):
        varve.verify(newest)
    with pytest.raises(varve.UnsupportedError, match="use a newer Varve"):
        varve.save({"w": np.zeros(3)}, newest, overwrite="damaged")
    with (
        varve.CheckpointManager(tmp_path, verify="full") as manager,
        pytest.raises(varve.UnsupportedError, match="use a newer Varve"),
    ):
        manager.resume({"w": np.zeros(3), "global_step": 0})
    assert {one.state for one in varve.list_checkpoints(tmp_path)} == {"whole"}


def test_an_interrupted_overwrite_of_one_says_so(tmp_path: Path) -> None:
    save(tmp_path, ["step-2"])
    make_newer(tmp_path / "step-2")
    (tmp_path / "step-2").rename(tmp_path / ".step-%32.varve-old")
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state == "unsupported"
    assert "an overwrite was interrupted" in entry.detail
    assert "use a newer Varve" in entry.detail


def flip_header(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)


def save_apart(values: torch.Tensor, checkpoint: Path, *, overwrite: bool = False) -> Path:
    """Returns the file of a rank that saves apart."""
    before = set(checkpoint.glob("data-*"))
    varve.torch.save({"w": values}, checkpoint, coordinate=False, overwrite=overwrite)
    (file,) = set(checkpoint.glob("data-*")) - before
    return file


@pytest.mark.parametrize("change", [make_data_newer, flip_header])
def test_files_of_an_older_save_do_not_stand_for_newer_ones_that_cannot_be_read(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    older = save_apart(torch.zeros(3), tmp_path / "older")
    newer = save_apart(torch.ones(3), tmp_path / "newer")
    # As an overwrite leaves them that is killed before it has removed the older file.
    older.rename(tmp_path / "newer" / older.name)
    assert varve.torch.read(tmp_path / "newer")["w"].tolist() == [1, 1, 1]
    change(newer)
    with pytest.raises(varve.Error, match="a set of files that may be the newest"):
        varve.torch.read(tmp_path / "newer")


def test_a_save_without_coordination_replaces_a_damaged_one(tmp_path: Path) -> None:
    flip_header(save_apart(torch.zeros(3), tmp_path / "a"))
    kept = save_apart(torch.ones(3), tmp_path / "a", overwrite=True)
    assert list((tmp_path / "a").glob("data-*")) == [kept]
    assert varve.torch.read(tmp_path / "a")["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("apart", [True, False])
def test_files_that_a_newer_varve_saved_apart_are_not_replaced(apart: bool, tmp_path: Path) -> None:
    make_data_newer(save_apart(torch.zeros(3), tmp_path / "a"))
    before = contents(tmp_path / "a")
    with pytest.raises(varve.UnsupportedError, match="use a newer Varve"):
        varve.torch.save({"w": torch.ones(3)}, tmp_path / "a", coordinate=not apart, overwrite=True)
    assert {
        name: text for name, text in contents(tmp_path / "a").items() if "lock" not in name
    } == before
