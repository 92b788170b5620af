"""What would not come back as what it was is refused at save, by its path."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch


class Unknown:
    def __init__(self, number: int = 0) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda bad: {"a": {"b": bad}}, "a.b"),
        (lambda bad: {"a": (1, [bad])}, "a[1][0]"),
        (lambda bad: {"a": ({"k": bad},)}, "a[0]['k']"),
        (lambda bad: {"a": [np.zeros(1), bad]}, "a.1"),
        (lambda bad: {"a": {bad: 1}}, "a"),
        (lambda bad: {"a": ({bad},)}, "a[0][0]"),
    ],
)
def test_a_value_of_unknown_type_is_refused_by_its_path(
    make: Callable[[Any], Any], path: str, tmp_path: Path
) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="not stored") as caught:
        varve.save(make(Unknown()), tmp_path / "c")
    assert path in str(caught.value)
    assert "Unknown" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        iter([]),
        collections.defaultdict(lambda: 0),
        (collections.defaultdict(lambda: 0),),
        np.array([object()], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        memoryview,
        print,
        dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()),
        torch.Generator(),
        time.gmtime(0),
        (os.terminal_size((80, 24)),),
        (torch.zeros(2).to_sparse(),),
        (torch.zeros(2, device="meta"),),
        (torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8),),
    ],
    # Without addresses: workers that share the tests must find the same names.
    ids=lambda v: re.sub(r" at 0x[0-9a-f]*", "", f"{type(v).__name__}-{v!r}")[:40],
)
def test_what_would_come_back_as_something_else_is_refused(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match='"v'):
        varve.save({"v": bad}, tmp_path / "c")


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(varve.InvalidArgumentError, match="deeper than"):
        varve.save({"v": (loop,)}, tmp_path / "c")


@pytest.mark.parametrize("depth", [100, 190])
def test_deep_nesting_within_the_limit_round_trips(depth: int, tmp_path: Path) -> None:
    as_value: Any = ()
    as_container: Any = 1
    for _ in range(depth):
        as_value = (as_value,)
        as_container = {"k": as_container}
    varve.save({"v": as_value, "c": as_container}, tmp_path / "c")
    assert varve.read(tmp_path / "c") == {"v": as_value, "c": as_container}


def test_containers_nested_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["k"] = loop
    with pytest.raises(varve.InvalidArgumentError, match="deeper than"):
        varve.save({"v": loop}, tmp_path / "c")


class Custom:
    """A class that no reader of a file can be expected to have."""


def test_classes_in_a_file_of_torch_save_are_named_with_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    state = {
        "model": {"w": torch.ones(3)},
        "args": argparse.Namespace(lr=1),
        "deep": {"list": [Custom(), torch.ones(1)]},
        "step": 3,
    }
    torch.save(state, path)
    for allow_pickle in (False, True):
        with pytest.raises(varve.UnsupportedError) as caught:
            varve.torch.read(path, allow_pickle=allow_pickle)
        text = str(caught.value)
        assert str(path) in text
        assert "argparse.Namespace" in text
        assert ".Custom" in text
        assert 'in "args", "deep.list.0"' in text
        assert "keys=['model', 'step']" in text
        assert "pass allow_pickle" not in text
    assert varve.torch.read(path, ["model", "step"])["step"] == 3
    target = {"model": {"w": torch.zeros(3)}, "args": None}
    with pytest.raises(varve.UnsupportedError, match=r"argparse\.Namespace"):
        varve.torch.load(target, path)
    assert not target["model"]["w"].any()  # type: ignore[index]
    varve.torch.load(target, path, keys="model")
    assert target["model"]["w"].all()  # type: ignore[index]


def test_a_whole_module_in_a_file_of_torch_save_cannot_be_read_in_parts(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(varve.UnsupportedError, match=r"Linear.*Nothing in it can be read"):
        varve.torch.read(tmp_path / "module.pt")
