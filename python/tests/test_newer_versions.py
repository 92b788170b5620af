"""Steps that a newer Varve wrote: a job on an older one does not go on from an older step without a word.

Nor is such a step taken for damage: it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from records import make_newer

import varve
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
    with pytest.raises(varve.UnsupportedError):
        varve.save({"w": np.zeros(3)}, tmp_path / "checkpoint-1", overwrite="damaged")
