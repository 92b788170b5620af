"""Arguments of a manager that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import varve

WRONG: dict[str, tuple[Any, str]] = {
    "no time": (lambda run: varve.Every(), "say when"),
    "no steps": (lambda run: varve.Every(steps=0), "steps=0: want a whole number from 1 on"),
    "a mode": (lambda run: varve.Every("now"), "Every='now'"),  # type: ignore[arg-type]
    "a share": (lambda run: varve.Every("auto", share=2), "share=2"),
    "best by nothing": (lambda run: varve.Keep(best=2), "needs the metric's name"),
    "last none": (lambda run: varve.Keep(last=0), "last=0: want a whole number from 1 on"),
    "a signal": (
        lambda run: varve.CheckpointManager(run, ending=varve.Ending(signals=["SIGNOPE"])),
        "no signal 'SIGNOPE'",
    ),
    "a name": (
        lambda run: varve.CheckpointManager(run, name="{step}-model"),
        "name='{step}-model'",
    ),
    "an option": (
        lambda run: varve.CheckpointManager(run, save_options={"overwite": True}),
        "'overwite' is none of allow_pickle",
    ),
    "an option nearly": (
        lambda run: varve.torch.CheckpointManager(run, save_options={"fromat": "dcp"}),
        "is it format?",
    ),
    "an option's value": (
        lambda run: varve.torch.CheckpointManager(run, save_options={"format": "dpc"}),
        'save_options: format=\'dpc\': want "varve", "dcp" or "hf"',
    ),
    "an option of the copy": (
        lambda run: varve.torch.CheckpointManager(run, save_options={"retries": "often"}),
        "save_options: retries='often': want a whole number",
    ),
    "options": (
        lambda run: varve.torch.CheckpointManager(run, save_options=3),  # type: ignore[arg-type]
        "save_options=3: want a dict",
    ),
    "a step": (lambda run: varve.CheckpointManager(run).save(1.5, {}), "step=1.5"),  # type: ignore[arg-type]
    "a negative step": (lambda run: varve.CheckpointManager(run).save(-1, {}), "step=-1"),
    "protect": (lambda run: varve.CheckpointManager(run).protect(1, {}), "varve.torch"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_argument_that_makes_no_sense_is_refused_by_name(tmp_path: Path, what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises(varve.InvalidArgumentError) as caught:
        make(tmp_path / "run")
    assert message in str(caught.value)
