"""Keys of dicts that are no strings: each kind comes back as it was, or the save refuses it by name."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import pathlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

Pair = collections.namedtuple("Pair", "x y")


class Word(str):
    """A str with a class of its own."""


class Odd(str):
    """A str with a hash of its own."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


class Color(enum.Enum):
    """An enum."""

    RED = 1


@dataclass(frozen=True)
class Frozen:
    """A dataclass, which hashes its fields."""

    x: int


KEPT: list[Any] = [
    3,
    -3,
    10**30,
    True,
    None,
    1.5,
    float("inf"),
    (1, 2),
    (1, (2, "a"), None),
    b"ab",
    frozenset([1]),
    datetime.date(2020, 1, 2),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    range(3),
    pathlib.PurePosixPath("a/b"),
    torch.float32,
    torch.device("cpu"),
    torch.Size([2]),
    np.int64(3),
    np.bool_(True),
    Color.RED,
    uuid.UUID(int=3),
    decimal.Decimal("1.5"),
    Pair(1, 2),
    Word("a"),
    "",
    "a.b",
]

#: Kept in Varve's format; an index of DCP has no text of them.
KEPT_BY_VARVE: list[Any] = [
    1 + 2j,
    datetime.timedelta(1, 2),
    datetime.time(1, 2),
    datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
    np.float32(0.1),
    np.float64(0.1),
    np.str_("a"),
    (1, 2j),
    (Color.RED, 1),
]


def same_key(path: Path, key: Any, format: Any) -> None:
    """Checks a key beside a tensor, beside a value, in a list and in a tuple."""
    inside = {key: 7, "z": 1}
    state = {
        "tensors": {key: torch.ones(2), "z": torch.ones(1)},
        "values": dict(inside),
        "list": [{key: torch.ones(2)}],
        "tuple": (dict(inside),),
    }
    varve.torch.save(state, path, format=format)
    found = varve.torch.read(path)
    dicts = [found["tensors"], found["values"], found["list"][0]]
    if format == "varve":  # In DCP the tuple is a pickle, without the classes of keys.
        dicts.append(found["tuple"][0])
    for each in dicts:
        [back] = [name for name in each if not (type(name) is str and name == "z")]
        assert type(back) is type(key) and back == key
    wanted = {"tensors": {key: torch.zeros(2)}, "values": {key: 0}}
    varve.torch.load(wanted, path)
    assert wanted["tensors"][key].sum() == 2 and wanted["values"][key] == 7
    assert len(wanted["tensors"]) == len(wanted["values"]) == 1


def shown(key: Any) -> str:
    return f"{type(key).__name__} {key}"


@pytest.mark.parametrize("format", ["varve", "dcp"])
@pytest.mark.parametrize("key", KEPT, ids=shown)
def test_a_key_comes_back_as_it_was(key: Any, format: str, tmp_path: Path) -> None:
    same_key(tmp_path / "a", key, format)


@pytest.mark.parametrize("key", KEPT_BY_VARVE, ids=shown)
def test_a_key_without_a_text_in_dcp_is_refused_there_by_name(key: Any, tmp_path: Path) -> None:
    """The names would not be found in the index's structure, which was then left out in silence."""
    same_key(tmp_path / "a", key, "varve")
    state = {"top": {"in": {key: torch.ones(1)}}}
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.torch.save(state, tmp_path / "b", format="dcp")
    text = str(caught.value)
    assert f'"top.in": the key {key!r}, a {type(key).__name__}, cannot be stored' in text
    assert "use a str, an int or a tuple" in text
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("format", ["varve", "dcp"])
@pytest.mark.parametrize("key", [Odd("a"), Frozen(1)], ids=["hash of its own", "dataclass"])
def test_a_key_whose_class_hashes_it_is_refused(key: Any, format: Any, tmp_path: Path) -> None:
    """A load would have to run the class's code; such keys came back as strings."""
    for state in ({"top": {key: torch.ones(1)}}, {"top": ({key: 1},)}):
        with pytest.raises(varve.InvalidArgumentError, match="is not stored as a key") as caught:
            varve.torch.save(state, tmp_path / "b", format=format)
        assert "top" in str(caught.value) and type(key).__name__ in str(caught.value)
