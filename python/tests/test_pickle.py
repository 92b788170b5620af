"""Values of unknown types: stored as pickles only on request, and opened only on request."""

from __future__ import annotations

import datetime as dt
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import varve

#: A value of a type that Varve does not know and pickle does.
UNKNOWN = re.compile("a")


def test_allow_pickle_stores_and_opens_unknown_types(tmp_path: Path) -> None:
    state = {"a": UNKNOWN, "b": (1, [UNKNOWN]), "c": 3}
    varve.save(state, tmp_path / "c", allow_pickle=True)
    assert varve.read(tmp_path / "c", allow_pickle=True) == state
    target: dict[str, Any] = dict.fromkeys(state)
    varve.load(target, tmp_path / "c", allow_pickle=True)
    assert target == state


def test_known_types_are_never_pickled(tmp_path: Path) -> None:
    state = {"a": (1, "b", {2: np.float32(3)}), "t": dt.timedelta(1)}
    varve.save(state, tmp_path / "c", allow_pickle=True)
    assert varve.read(tmp_path / "c") == state


def test_reading_a_pickle_that_was_not_allowed_names_the_value(tmp_path: Path) -> None:
    varve.save({"a": {"b": UNKNOWN}}, tmp_path / "c", allow_pickle=True)
    with pytest.raises(varve.UnsupportedError, match="allow_pickle=True") as caught:
        varve.read(tmp_path / "c")
    assert '"a.b"' in str(caught.value)


def test_a_refused_pickle_leaves_the_destination_untouched(tmp_path: Path) -> None:
    varve.save({"w": np.ones(4), "n": 1, "x": UNKNOWN}, tmp_path / "c", allow_pickle=True)
    target: dict[str, Any] = {"w": np.zeros(4), "n": 0, "x": None}
    with pytest.raises(varve.UnsupportedError, match="allow_pickle=True"):
        varve.load(target, tmp_path / "c")
    assert not target["w"].any()
    assert (target["n"], target["x"]) == (0, None)


def test_other_values_of_the_checkpoint_are_read_without_the_pickle(tmp_path: Path) -> None:
    varve.save({"w": np.ones(4), "x": UNKNOWN}, tmp_path / "c", allow_pickle=True)
    assert varve.read(tmp_path / "c", "w")["w"].sum() == 4


def test_what_pickle_cannot_store_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r'"a\.b"'):
        varve.save({"a": {"b": lambda: 0}}, tmp_path / "c", allow_pickle=True)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_that_cannot_be_opened_names_the_value_and_changes_nothing(tmp_path: Path) -> None:
    module = types.ModuleType("gone_tomorrow")
    exec("class Gone:\n    pass\n", module.__dict__)
    sys.modules["gone_tomorrow"] = module
    try:
        varve.save({"n": 1, "x": module.Gone()}, tmp_path / "c", allow_pickle=True)
    finally:
        del sys.modules["gone_tomorrow"]
    target = {"n": 0, "x": None}
    with pytest.raises(varve.UnsupportedError, match=r'"x".*gone_tomorrow'):
        varve.load(target, tmp_path / "c", allow_pickle=True)
    assert target == {"n": 0, "x": None}
