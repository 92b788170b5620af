"""Arguments of a manager that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

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
    "a tensor that is no step": (
        lambda run: varve.CheckpointManager(run).save(torch.tensor(1.0), {}),  # type: ignore[arg-type]
        "step=a Tensor: want a whole number from 0 on",
    ),
    "steps as an array": (
        lambda run: varve.CheckpointManager(run, every=np.array([1, 2])),  # type: ignore[arg-type]
        "every=a ndarray: want a whole number from 1 on",
    ),
    "a negative share": (
        lambda run: varve.Every("auto", share=-1),
        "share=-1: want a number above 0",
    ),
    "minutes below 0": (lambda run: varve.Every(minutes=-1), "minutes=-1: want a number above 0"),
    "hours below 0": (
        lambda run: varve.Keep(hours=-1),
        "hours=-1: want a number of hours from 0 on",
    ),
    "no metric's name": (
        lambda run: varve.Keep(best=2, by=3),  # type: ignore[arg-type]
        "by=3: want the name of a metric",
    ),
    "uploads to itself": (
        lambda run: varve.CheckpointManager(run, upload_to=run / ".." / run.name),
        "is the run itself",
    ),
    "a negative step": (lambda run: varve.CheckpointManager(run).save(-1, {}), "step=-1"),
    "protect": (lambda run: varve.CheckpointManager(run).protect(1, {}), "varve.torch"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_argument_that_makes_no_sense_is_refused_by_name(tmp_path: Path, what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises(varve.InvalidArgumentError) as caught:
        make(tmp_path / "run")
    assert message in str(caught.value)
