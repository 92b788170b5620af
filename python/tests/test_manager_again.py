"""A manager made again in one process, errors in the middle, and runs that hold no steps."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch

import varve
import varve.torch

MANAGERS = [varve.CheckpointManager, varve.torch.CheckpointManager]


def state() -> dict[str, Any]:
    return {"w": np.arange(8.0), "n": 1}


def waits_for_a_job(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns what was logged of a wait for another job, which takes 15 s."""
    return [line for line in caplog.messages if "waiting" in line]


@pytest.fixture(params=MANAGERS, ids=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield request.param
    gc.collect()


# ---- made again ----


def test_a_second_manager_of_a_run_is_refused_at_once_and_not_blamed_on_another_job(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(tmp_path), pytest.raises(varve.PreconditionError) as caught:
        make(tmp_path)
    assert not waits_for_a_job(caplog)
    assert "this process has the run" in str(caught.value)
    assert "close()" in str(caught.value)
    assert "another job" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"every": 1, "keep": 2}, {"callbacks": True}])
def test_a_manager_that_nothing_refers_to_is_taken_over(
    make: Any, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for attempt in range(3):
        if "callbacks" in options:  # They refer to the manager.
            held: list[Any] = []
            manager = make(tmp_path, on_saved=lambda line, held=held: held[0].latest())
            held.append(manager)
            del held
        else:
            manager = make(tmp_path, **options)
        manager.save(attempt + 1, state(), force=True)
        manager = None
    assert not waits_for_a_job(caplog)
    with make(tmp_path) as last:
        assert [step.step for step in last.steps()][-1] == 3
        assert all(step.state == "whole" for step in last.steps())
    assert any("dropped without close()" in line for line in caplog.messages)


def test_a_manager_that_only_the_last_error_has_is_taken_over(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a notebook: a cell's function has raised, and Python keeps its frames for a debugger."""

    def cell() -> None:
        manager = make(tmp_path)
        manager.save(1, state(), force=True)
        raise KeyError("loss")

    kept = None
    try:
        cell()
    except KeyError as error:
        kept = error
    monkeypatch.setattr(sys, "last_value", kept, raising=False)
    with make(tmp_path) as manager:
        assert manager.resume({"w": np.zeros(8), "n": 0}) == 1
    assert not waits_for_a_job(caplog)
    assert kept is not None


def test_an_error_in_the_constructor_leaves_the_run_free(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (KeyboardInterrupt, MemoryError, varve.UnavailableError):
        with monkeypatch.context() as patch:

            def fail(*_: Any, error: Any = error) -> None:
                raise error()

            patch.setattr("varve._manage._manager.Requests", fail)
            with pytest.raises(error):
                make(tmp_path)
        make(tmp_path).close()


def test_ctrl_c_in_close_leaves_the_run_free(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_remove", "_note_end"):
        manager = make(tmp_path)

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(manager, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager.close()
        manager.close()
        make(tmp_path).close()


def test_a_manager_that_is_never_closed_is_closed_at_exit_with_its_saves_made(
    make: Any, tmp_path: Path
) -> None:
    program = f"""
import numpy as np, sys, varve, varve.torch
def cell():
    manager = {make.__module__}.CheckpointManager(sys.argv[1])
    manager.save(1, {{"w": np.arange(1000.0)}}, force=True)
cell()
kept = {make.__module__}.CheckpointManager(sys.argv[1])
kept.save(2, {{"w": np.arange(1000.0)}}, force=True)
""".replace("varve._numpy_manager", "varve").replace("varve.torch._manager", "varve.torch")
    programs.output(program, tmp_path)
    assert [(step.step, step.state) for step in varve.steps(tmp_path)] == [
        (1, "whole"),
        (2, "whole"),
    ]
    assert (tmp_path / "varve-history.jsonl").read_text().count('"never closed"') == 2


# ---- functions that raise ----


def test_a_state_function_that_raises_fails_its_save_and_the_next_one_is_made(
    make: Any, tmp_path: Path
) -> None:
    failed = []

    def broken() -> Any:
        raise KeyError("momentum")

    with make(
        tmp_path, on_failure=lambda step, error: failed.append((step, str(error)))
    ) as manager:
        save = manager.save(1, broken, force=True)
        assert "KeyError: 'momentum'" in str(save.exception(30))
        assert isinstance(manager.save(2, state, force=True).result(30), object)
    assert [step.step for step in varve.steps(tmp_path)] == [2]
    assert len(failed) == 1 and failed[0][0] == 1 and "momentum" in failed[0][1]


def test_ctrl_c_in_a_state_function_is_raised_and_the_next_save_is_made(
    make: Any, tmp_path: Path
) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    with make(tmp_path) as manager:
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, interrupted, force=True)
        manager.save(2, state, force=True).result(30)


@pytest.mark.parametrize("value", [10**400, -(10**400), lambda: 10**400])
def test_a_metric_that_no_float_can_hold_is_refused_by_name(
    make: Any, tmp_path: Path, value: Any
) -> None:
    with make(tmp_path) as manager:
        with pytest.raises(varve.InvalidArgumentError, match=r"metrics\['loss'\]") as caught:
            manager.save(1, state(), metrics={"loss": value}, force=True)
        assert len(str(caught.value)) < 300
        manager.save(2, state(), metrics={"loss": 10**300}, force=True).result(30)


# ---- paths that are no run ----


@pytest.mark.parametrize("with_steps", [False, True])
def test_a_checkpoint_is_no_run(make: Any, tmp_path: Path, with_steps: bool) -> None:
    step = tmp_path / "run" / "step-100"
    varve.save(state(), step)
    if with_steps:  # Of a manager that did not look.
        varve.save(state(), step / "step-1")
    for given in (str(step), f"{step}/"):
        with pytest.raises(varve.InvalidArgumentError) as caught:
            make(given)
        text = str(caught.value)
        assert str(tmp_path / "run") + "'" in text and "load(state" in text, text
    with make(tmp_path / "run") as manager:
        assert manager.resume({"w": np.zeros(8), "n": 0}) == 100


def test_a_folder_of_a_model_is_no_run(make: Any, tmp_path: Path) -> None:
    varve.torch.save({"w": torch.arange(8.0)}, tmp_path / "model", format="hf")
    with pytest.raises(varve.InvalidArgumentError, match="is a checkpoint"):
        make(tmp_path / "model")


def test_checkpoints_none_of_which_is_a_step_are_named_once(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("final", "epoch=3-step=100"):
        varve.save(state(), tmp_path / name)
    (tmp_path / "step-100.pt").write_bytes(b"PK")
    (tmp_path / "notes.txt").write_text("mine")
    with make(tmp_path) as manager:
        assert manager.resume(state()) is None
        lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(lines) == 1
        assert all(name in lines[0] for name in ("final", "epoch=3-step=100", "step-100.pt"))
        assert "notes.txt" not in lines[0]
        with pytest.raises(varve.CheckpointNotFoundError, match="final") as caught:
            manager.resume(state(), required=True)
        assert caught.value.path == str(tmp_path)


def test_saves_that_were_never_finished_are_named(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = """
import os, sys, numpy as np, varve
varve.save({"w": np.ones(1 << 20)}, sys.argv[1], progress=lambda done, total: os._exit(9))
"""
    programs.run(program, tmp_path / "step-7")
    assert varve.list_checkpoints(tmp_path)[0].state == "stale"
    with make(tmp_path) as manager:
        with pytest.raises(varve.CheckpointNotFoundError, match="dead save of step-7"):
            manager.resume(state(), required=True)
        assert manager.resume(state()) is None
    assert any("dead save of step-7" in line for line in caplog.messages)


def test_an_empty_run_is_no_warning_and_an_error_where_a_step_is_required(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(), make(tmp_path / "new") as manager:
        warnings.simplefilter("error")
        assert manager.resume(state()) is None
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
        with pytest.raises(varve.CheckpointNotFoundError, match="no step"):
            manager.resume(state(), required=True)
