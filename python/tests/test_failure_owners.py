"""The adapter that made a failed save learns of it, and no other one with the same stager."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import varve
import varve.torch
from varve._core import background
from varve.integrations._hf_saves import Saves, VarveSaving

LONG = 60.0


def state() -> dict[str, Any]:
    return {"w": torch.ones(4)}


def failing(tmp_path: Path) -> str:
    """A path at which a save fails in the background: there is a checkpoint."""
    varve.torch.save(state(), tmp_path / "taken")
    return str(tmp_path / "taken")


@pytest.mark.parametrize("own_stager", [False, True])
def test_an_adapter_does_not_learn_of_the_failure_of_an_abandoned_one(
    tmp_path: Path, own_stager: bool
) -> None:
    stager = varve.torch.Stager() if own_stager else None
    saving = VarveSaving(stager=stager, on_failure="raise")
    taken = failing(tmp_path)
    abandoned = Saves()
    error = abandoned.begin(state(), taken, saving, optimizers=()).exception(LONG)
    assert isinstance(error, varve.CheckpointExistsError)

    other = Saves()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.begin(state(), str(tmp_path / "mine"), saving, optimizers=()).result(LONG)
        other.finish(saving)
    assert varve.verify(tmp_path / "mine") == []

    with pytest.raises(varve.Error, match="a background save has failed"):
        abandoned.begin(state(), str(tmp_path / "next"), saving, optimizers=()).result(LONG)
    assert not (tmp_path / "next").exists()
    if stager is not None:
        stager.close()


def test_a_save_that_fails_before_its_call_returns_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = background.begin_save

    def begin_and_wait(*arguments: Any) -> Any:
        *others, end, refusal = arguments
        ended = threading.Event()

        def noting_end(report: Any, error: BaseException | None) -> None:
            end(report, error)
            ended.set()

        engine = begin(*others, noting_end, refusal)
        assert ended.wait(LONG)
        return engine

    stager = varve.torch.Stager()
    taken = failing(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(background, "begin_save", begin_and_wait)
        handle = varve.torch.async_save(state(), taken, stager=stager, on_failure="raise")
    assert handle.done()
    with pytest.raises(varve.Error, match="a background save has failed"):
        varve.torch.async_save(state(), tmp_path / "next", stager=stager, on_failure="raise")
    stager.close()


def test_the_end_of_one_adapter_forgets_its_own_failures(tmp_path: Path) -> None:
    stager = varve.torch.Stager()
    saving = VarveSaving(stager=stager)
    saves = Saves()
    saves.begin(state(), failing(tmp_path), saving, optimizers=()).exception(LONG)
    with pytest.raises(varve.CheckpointExistsError):
        saves.finish(saving)
    saves.begin(state(), str(tmp_path / "next"), saving, optimizers=()).result(LONG)
    saves.finish(saving)
    stager.close()


def test_a_manager_tells_of_its_failures_itself_and_of_no_others(tmp_path: Path) -> None:
    taken = failing(tmp_path)
    stager = varve.torch.Stager()
    run = tmp_path / "run"
    told = []
    with varve.torch.CheckpointManager(
        run, stager=stager, on_failure=lambda step, error: told.append(step)
    ) as manager:
        (run / "step-00000001").write_text("in the way")
        save = manager.save(1, state(), force=True)
        assert save is not None and save.exception(LONG) is not None
        manager.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            varve.torch.async_save(state(), taken, stager=stager).exception(LONG)
            again = manager.save(2, state(), force=True)
            assert again is not None
            again.result(LONG)
        assert told == [1]
    with pytest.warns(RuntimeWarning, match="taken"):  # The stager's user is told.
        varve.torch.async_save(state(), tmp_path / "last", stager=stager).result(LONG)
    stager.close()
