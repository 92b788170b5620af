"""Loads that meet something else than they want: another kind of entry, a failure, another save."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch
from varve import _core


class Counter:
    """An object whose state dict has no tensors."""

    def __init__(self) -> None:
        self.given: object = None

    def state_dict(self) -> dict[str, int]:
        return {"count": 1}

    def load_state_dict(self, state: object) -> None:
        self.given = state


@pytest.mark.parametrize(
    "stored", [5, None, torch.ones(2), [1, 2]], ids=["value", "None", "tensor", "list"]
)
def test_what_is_no_dict_is_not_given_to_an_object_and_nothing_changes(
    stored: Any, tmp_path: Path
) -> None:
    varve.torch.save({"o": stored, "w": torch.ones(3)}, tmp_path / "c")
    counter = Counter()
    for wanted in (torch.optim.SGD([torch.ones(2)]), counter):
        state = {"o": wanted, "w": torch.zeros(3)}
        name = type(wanted).__name__
        with pytest.raises(varve.InvalidArgumentError, match=f"wanted the state of a {name}"):
            varve.torch.load(state, tmp_path / "c")
        assert state["w"].sum() == 0
        report = varve.torch.load(state, tmp_path / "c", strict=False)
        assert len(report.mismatched) == 1
        assert state["w"].sum() == 3
    assert counter.given == {"count": 1}  # Its own, in the load that takes what fits.


class Twice(dict[str, int]):
    """A class of dict, which is stored as one value."""


def test_a_dict_of_a_class_of_its_own_is_given_to_an_object(tmp_path: Path) -> None:
    varve.torch.save({"o": Twice(count=7)}, tmp_path / "c")
    counter = Counter()
    varve.torch.load({"o": counter}, tmp_path / "c")
    assert counter.given == {"count": 7}


@pytest.mark.parametrize(
    "array",
    [np.zeros(6, ">f4"), np.zeros(99, ">f4"), np.ma.zeros(6, "f4"), np.zeros(3, "M8[s]")],
    ids=["big-endian", "of another shape", "masked", "of dates"],
)
def test_an_array_that_cannot_be_filled_is_not_replaced_by_a_tensor(
    array: Any, tmp_path: Path
) -> None:
    varve.save({"w": np.arange(6, dtype="f4")}, tmp_path / "c")
    state = {"w": array}
    with pytest.raises(varve.InvalidArgumentError, match="which cannot be filled in place"):
        varve.load(state, tmp_path / "c")
    assert state["w"] is array
    varve.save(state, tmp_path / "own", allow_pickle=True)
    varve.load(state, tmp_path / "own", allow_pickle=True)  # Stored as a value.
    assert (state["w"] == array).all()


def test_a_load_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    varve.torch.save({"m": torch.nn.Linear(4, 4), "w": torch.ones(4)}, tmp_path / "c")
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            state = {"m": torch.nn.Linear(4, 4), "missing": torch.ones(3)}
            with pytest.raises(varve.InvalidArgumentError):
                varve.torch.load(state, tmp_path / "c")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("format", ["varve", "dcp", "hf"])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_called_damaged(
    format: Any, tmp_path: Path
) -> None:
    path = tmp_path / "c"

    def save(value: float) -> None:
        state = {f"w{i}": torch.full((50_000,), float(value)) for i in range(20)}
        varve.torch.save(state, path, overwrite=True, format=format)

    save(0)
    reader = _core.Reader(str(path))  # The index of before, and no file of it.
    save(1)
    with pytest.raises(
        varve.PreconditionError, match=r"overwritten by another save.*open it again"
    ):
        names = list(reader.tensors())
        filling = varve._engine.Filling()
        for name in names:
            varve._arrays.NumpyArrays().add_targets(filling, name, np.zeros(50_000, "f4"))
        reader.load(filling.engine, _core.LoadOptions(), None)


def test_reads_beside_overwrites_find_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "c"
    stop = threading.Event()

    def save(value: int) -> None:
        state = {f"w{i}": torch.full((10_000,), float(value)) for i in range(20)}
        varve.torch.save(state, path, overwrite=True, format="dcp")

    def write() -> None:
        value = 1
        while not stop.is_set():
            save(value)
            value += 1

    save(0)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            try:
                found = varve.torch.read(path)
            except varve.PreconditionError:
                continue
            assert len({float(tensor.sum()) for tensor in found.values()}) == 1
    finally:
        stop.set()
        writer.join()
