"""Tensors inside of plain values: a load fills those of the destination, as it fills any other."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass(frozen=True)
class Held:
    ema: torch.Tensor
    steps: int


def tensor(value: float) -> torch.Tensor:
    return torch.full((3,), float(value))


def test_a_model_whose_parameters_are_given_in_a_tuple_gets_the_stored_ones(tmp_path: Path) -> None:
    saved, model = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    varve.torch.save({"weights": tuple(saved.parameters())}, tmp_path / "c")
    state = {"weights": tuple(model.parameters())}
    varve.torch.load(state, tmp_path / "c")
    assert torch.equal(model.weight, saved.weight) and torch.equal(model.bias, saved.bias)
    assert state["weights"][0] is model.weight and model.weight.requires_grad


@pytest.mark.parametrize(
    "around",
    [
        lambda x: (x, 5),
        lambda x: [(x, "text")],
        lambda x: ({"deep": [x, 1]}, 2),
        lambda x: Pair(7, x),
        lambda x: Held(x, 9),
        lambda x: collections.deque([x]),
        lambda x: (Held((x, Pair(x, x)), 1),),
    ],
    ids=["tuple", "list-of-tuple", "dict-in-tuple", "namedtuple", "dataclass", "deque", "nested"],
)
def test_every_container_keeps_its_tensors_and_gets_the_stored_values(
    around: Any, tmp_path: Path
) -> None:
    varve.torch.save({"v": around(tensor(1))}, tmp_path / "c")
    x = tensor(0)
    state = {"v": around(x)}
    report = varve.torch.load(state, tmp_path / "c")
    assert torch.equal(x, tensor(1))
    assert repr(state["v"]) == repr(around(tensor(1))) and type(state["v"]) is type(around(x))
    assert report.loaded == 1 and not report.mismatched
    x.fill_(4)  # The state has that very tensor.
    assert repr(state["v"]) == repr(around(tensor(4)))


@pytest.mark.parametrize(
    ("stored", "wanted", "says"),
    [
        ((tensor(1),), (torch.zeros(4),), "float32[3] at 0, wanted float32[4]"),
        ((tensor(1),), (tensor(0).double(),), "float32[3] at 0, wanted float64[3]"),
        ((1, (2, 3)), (1, (2, tensor(0))), "an int at 1.1, wanted a tensor"),
        ((tensor(1),), (1, tensor(0)), "nothing at 1, wanted a tensor"),
        ((1, (2, 3)), (1, [tensor(0)]), "a tuple at 1, wanted a list with tensors"),
        (None, (tensor(0),), "a NoneType, wanted a tuple with tensors"),
        ([tensor(1)], (tensor(0),), "a list, wanted a tuple with tensors"),
        ((tensor(1),), (tensor(0).to("meta"),), "wanted one on the meta device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_cannot_fill_them_is_named_and_nothing_changes(
    stored: Any, wanted: Any, says: str, tmp_path: Path
) -> None:
    varve.torch.save({"v": stored, "w": tensor(1)}, tmp_path / "c")
    state = {"v": wanted, "w": tensor(0)}
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.torch.load(state, tmp_path / "c")
    assert says in str(caught.value)
    assert not state["w"].any()
    report = varve.torch.load(state, tmp_path / "c", strict=False)
    assert [says in line for line in report.mismatched] == [True] and report.loaded == 1
    assert state["v"] is wanted and torch.equal(state["w"], tensor(1))


def test_cast_converts_them_and_assign_replaces_those_without_memory(tmp_path: Path) -> None:
    varve.torch.save({"v": (tensor(1), tensor(2))}, tmp_path / "c")
    double = tensor(0).double()
    varve.torch.load({"v": (double, tensor(0))}, tmp_path / "c", cast=True)
    assert torch.equal(double, tensor(1).double())
    there = tensor(0)
    state = {"v": (there, tensor(0).to("meta"))}
    varve.torch.load(state, tmp_path / "c", assign=True)
    assert state["v"][0] is there and torch.equal(there, tensor(1))
    assert torch.equal(state["v"][1], tensor(2))


def test_an_object_gets_what_is_stored_whatever_it_holds(tmp_path: Path) -> None:
    class Loader:
        def __init__(self, state: Any) -> None:
            self.state = state

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.state}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state["seen"]

    varve.torch.save({"loader": Loader((tensor(1), 3))}, tmp_path / "c")
    loader = Loader((torch.zeros(9),))
    varve.torch.load({"loader": loader}, tmp_path / "c")
    assert torch.equal(loader.state[0], tensor(1)) and loader.state[1] == 3


def test_arrays_inside_are_filled_without_torch_too(tmp_path: Path) -> None:
    varve.save(
        {"v": (np.arange(3.0), "x"), "n": np.random.RandomState(5).get_state()}, tmp_path / "c"
    )
    held = np.zeros(3)
    state = {"v": (held, ""), "n": np.random.get_state()}
    varve.load(state, tmp_path / "c")
    assert state["v"][0] is held and held.tolist() == [0, 1, 2] and state["v"][1] == "x"
    assert (state["n"][1] == np.random.RandomState(5).get_state()[1]).all()
    held.flags.writeable = False
    with pytest.raises(varve.InvalidArgumentError, match="wanted one that is read-only"):
        varve.load(state, tmp_path / "c")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint16, torch.bool])
def test_a_single_element_of_a_strided_view_is_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    # Such a view is contiguous with a stride that is not 1.
    view = torch.ones(2, 2, dtype=dtype)[:1, ::2]
    assert view.is_contiguous() and view.stride(-1) == 2
    varve.torch.save({"v": (view, 1)}, tmp_path / "c")
    (found, _) = varve.torch.read(tmp_path / "c")["v"]
    assert found.dtype is dtype and torch.equal(found, view)
