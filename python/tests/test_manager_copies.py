"""Steps that were copied or renamed to another number: the manager's note in them has the one that they hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_manager import names, state, train

import varve


def saved(run: Path, copy: str = "step-00000099") -> Path:
    """Saves steps 1 to 3, and copies the first."""
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 4))
    shutil.copytree(run / "step-00000001", run / copy)
    return run


@pytest.mark.parametrize("how", ["copied", "renamed"])
def test_a_step_under_a_higher_number_is_not_resumed_from_and_removes_no_other(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path / "run")
    if how == "renamed":
        shutil.rmtree(run / "step-00000001")
    with varve.CheckpointManager(run, every=1, keep=2) as manager:
        assert manager.resume(state()) == 3
        warnings = [line for line in caplog.messages if "step-00000099" in line]
        assert len(warnings) == 1 and "is step 1" in warnings[0] and "load" in warnings[0]
        train(manager, range(4, 5))
    assert names(run) == [3, 4]
    assert (run / "step-00000099" / "varve.json").exists()


def test_a_step_under_a_lower_number_is_none_either(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(2, 4))
    shutil.copytree(run / "step-00000003", run / "step-00000001")
    assert names(run) == [2, 3]


def test_a_step_that_is_asked_for_by_the_number_of_a_copy_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    run = saved(tmp_path / "run")
    with (
        varve.CheckpointManager(run) as manager,
        pytest.raises(varve.CheckpointNotFoundError, match=r"step-00000099 is step 1.*load"),
    ):
        manager.restore(99, state())
    into = state()
    varve.load(into, run / "step-00000099")
    assert into["n"] == 1.0


def test_latest_takes_no_copy_for_the_newest(tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    assert varve.latest(run) == str(run / "step-00000003")


def test_a_run_with_copies_alone_has_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path / "run")
    for step in range(1, 4):
        shutil.rmtree(run / f"step-0000000{step}")
    with varve.CheckpointManager(run) as manager:
        assert manager.resume(state()) is None
        assert "no step in" in caplog.text and "step-00000099, which is step 1" in caplog.text
        with pytest.raises(varve.CheckpointNotFoundError, match="step-00000099, which is step 1"):
            manager.resume(state(), required=True)
