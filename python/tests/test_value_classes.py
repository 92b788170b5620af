"""Values of classes: they come back as the class where the program has it, else as plain values."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import fractions
import io
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as stock

import varve
import varve.torch


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    HIGH = 3


class Access(enum.Flag):
    READ = 1
    WRITE = 2


Point = collections.namedtuple("Point", "x y")


class Batch(NamedTuple):
    size: int
    tokens: torch.Tensor


class Moment(tuple[int, ...]):
    pass


@dataclasses.dataclass
class Config:
    width: int = 0
    names: list[Any] = dataclasses.field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.made += 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    width: int = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    width: int = 0
    color: Color = Color.RED


class Names(list[Any]):
    pass


class Settings(dict[str, Any]):
    pass


class Attributes(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Mirrored(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        for key, item in items.items():
            self[key] = item
            setattr(self, key, item)


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Version(str):
    pass


class Tally(int):
    pass


VALUES: dict[str, Any] = {
    "enum": Color.RED,
    "enum of text": Color.BLUE,
    "IntEnum": Level.HIGH,
    "flags": Access.READ | Access.WRITE,
    "namedtuple": Point(1, "x"),
    "dataclass": Config(1, [2, Color.BLUE]),
    "frozen": Frozen(3),
    "slotted": Slotted(4, Color.BLUE),
    "deque": collections.deque([1, 2], 5),
    "Decimal": decimal.Decimal("1.50"),
    "Fraction": fractions.Fraction(3, 4),
    "UUID": uuid.UUID(int=5),
    "TorchVersion": torch.__version__,
    "list": Names([1, (2,)]),
    "str": Version("1.2"),
    "int": Tally(7),
    "dict": Settings(a=1),
    "dict in a tuple": (Settings(a=1), Ordered(z=1, a=2)),
    "OrderedDict": Ordered(z=1, a=2),
    "key": {Color.RED: 1},
}


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_an_object_of_its_class(name: str, tmp_path: Path) -> None:
    value = VALUES[name]
    varve.save({"v": value}, tmp_path / "c")
    assert same(varve.read(tmp_path / "c")["v"], value)
    state = {"v": None}
    varve.load(state, tmp_path / "c")
    assert same(state["v"], value)


def test_in_dcps_format_stock_torch_sees_the_plain_value(tmp_path: Path) -> None:
    state = {**VALUES, "tensors": Batch(3, torch.arange(4)), "Path": Path("a/b")}
    varve.torch.save(state, tmp_path / "c", format="dcp")
    assert varve.torch.verify(tmp_path / "c") == []
    read = varve.torch.read(tmp_path / "c")
    assert all(same(read[name], value) for name, value in VALUES.items())
    assert isinstance(read["tensors"], Batch) and read["tensors"].tokens.tolist() == [0, 1, 2, 3]
    varve.convert(tmp_path / "c", tmp_path / "d", to="dcp")
    assert same(varve.torch.read(tmp_path / "d")["slotted"], VALUES["slotted"])
    plain: dict[str, Any] = {"enum": None, "dataclass": None, "namedtuple": None}
    stock.load(plain, checkpoint_id=str(tmp_path / "c"))
    assert plain["enum"] == 1 and plain["namedtuple"] == (1, "x")
    assert plain["dataclass"] == {"width": 1, "names": [2, "b"], "made": 1}


def test_a_large_value_of_a_class_is_stored_once_in_dcps_format(tmp_path: Path) -> None:
    value = Config(1, [b"x" * (2 << 20)])
    varve.torch.save({"v": value}, tmp_path / "c", format="dcp")
    assert sum(file.stat().st_size for file in (tmp_path / "c").iterdir()) < 3 << 20
    assert varve.torch.read(tmp_path / "c")["v"]["width"] == 1


def test_a_dataclass_is_made_without_its_functions(tmp_path: Path) -> None:
    varve.save({"v": Config(1)}, tmp_path / "c")
    assert varve.read(tmp_path / "c")["v"].made == 1  # __post_init__ would have added one.


def test_objects_keep_attributes_of_their_own(tmp_path: Path) -> None:
    names = Names([1])
    names.source = "here"  # type: ignore[attr-defined]
    state = {"names": names, "self": Attributes(a=1), "mirrored": Mirrored(a=2)}
    varve.save({"v": (state,)}, tmp_path / "c")
    (back,) = varve.read(tmp_path / "c")["v"]
    assert back["names"].source == "here"
    assert back["self"].a == 1 and back["mirrored"].a == 2
    back["self"].b = 3
    assert back["self"]["b"] == 3


def test_a_dict_of_a_class_is_a_container_of_tensors(tmp_path: Path) -> None:
    state = {"s": Settings(t=torch.ones(2)), "m": Mirrored(t=torch.ones(3)), "k": {Color.RED: 1.0}}
    state["k"][Color.BLUE] = torch.zeros(1)
    varve.torch.save(state, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")
    assert type(back["s"]) is Settings and back["s"]["t"].tolist() == [1, 1]
    assert back["m"].t is back["m"]["t"]
    assert back["k"][Color.BLUE].tolist() == [0]
    target = {"s": Settings(t=torch.zeros(2))}
    varve.torch.load(target, tmp_path / "c")
    assert type(target["s"]) is Settings and target["s"]["t"].tolist() == [1, 1]


def test_a_dict_whose_items_are_its_attributes_is_a_container(tmp_path: Path) -> None:
    class Items(dict[str, Any]):
        __getattr__ = dict.__getitem__  # Raises KeyError where others raise AttributeError.

    varve.register_classes(Items)
    varve.torch.save({"c": Items(t=torch.ones(2))}, tmp_path / "c")
    assert varve.torch.read(tmp_path / "c")["c"].t.tolist() == [1, 1]


def test_a_subclass_is_stored_as_its_base_has_it(tmp_path: Path) -> None:
    class Secret(str):
        def __str__(self) -> str:
            return "***"

    class Slotted(list[Any]):
        __slots__ = ("more",)

    varve.register_classes(Secret)
    varve.save({"v": Secret("text")}, tmp_path / "c")
    back = varve.read(tmp_path / "c")["v"]
    assert type(back) is Secret and str.__eq__(back, "text")
    with pytest.raises(varve.InvalidArgumentError, match='"v"'):
        varve.save({"v": Slotted([1])}, tmp_path / "d")


def test_a_list_that_is_opened_loses_its_class_with_a_warning(tmp_path: Path) -> None:
    state = {"v": Names([torch.ones(2), 3])}
    with pytest.warns(UserWarning, match='"v" holds tensors.*class Names'):
        varve.torch.save(state, tmp_path / "c")
    assert type(varve.torch.read(tmp_path / "c")["v"]) is list
    varve.torch.load(state, tmp_path / "c")
    assert type(state["v"]) is Names


def test_a_namedtuple_of_tensors(tmp_path: Path) -> None:
    varve.torch.save({"v": Batch(2, torch.arange(3))}, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")["v"]
    assert type(back) is Batch and back.size == 2 and back.tokens.tolist() == [0, 1, 2]


def test_the_extra_state_of_transformer_engine_is_a_file_in_memory(tmp_path: Path) -> None:
    varve.save({"v": io.BytesIO(b"scales")}, tmp_path / "c")
    back = varve.read(tmp_path / "c")["v"]
    assert isinstance(back, io.BytesIO) and back.read() == b"scales"


def test_without_the_class_the_plain_value_comes_back_with_a_warning(tmp_path: Path) -> None:
    """In a program that has not imported this file; it is not imported for it."""
    plain = {
        "enum": 1,
        "namedtuple": [1, "x"],
        "dataclass": {"width": 1, "names": [2, "b"], "made": 1},
        "list": [1, [2]],
        "dict": {"a": 1},
        "key": {"Color.RED": 1},
    }
    varve.save({name: VALUES[name] for name in plain}, tmp_path / "c")
    text = (
        "import json, sys, warnings, varve\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    back = varve.read(sys.argv[1])\n"
        "print(json.dumps([back, [str(w.message) for w in caught]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=True,
    )
    back, warned = json.loads(done.stdout)
    assert back == plain
    assert any("Color" in text and "import" in text for text in warned)
    assert any("Settings" in text for text in warned)


def test_a_class_that_has_changed_gives_the_plain_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"e": Color.BLUE, "p": Point(1, 2), "c": Frozen(1), "t": Moment((1, 2))}
    varve.save(state, tmp_path / "c")
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "Color", enum.Enum("Color", {"BLUE": "other"}))
    monkeypatch.setattr(here, "Point", collections.namedtuple("Point", "x y z"))
    monkeypatch.setattr(here, "Frozen", dict)
    monkeypatch.setattr(here, "Moment", time.struct_time)  # tuple.__new__ refuses to make one.
    plain = {"e": "b", "p": (1, 2), "c": {"width": 1}, "t": (1, 2)}
    with pytest.warns(UserWarning, match="no such class"):
        assert varve.read(tmp_path / "c") == plain


def test_a_defaultdict_of_a_class_is_refused(tmp_path: Path) -> None:
    class Counts(collections.defaultdict[str, int]):
        pass

    with pytest.raises(varve.InvalidArgumentError, match='"v"'):
        varve.save({"v": Counts(int)}, tmp_path / "c")


def test_an_attribute_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    names = Names([1])
    names.lock = iter([])  # type: ignore[attr-defined]
    with pytest.raises(varve.InvalidArgumentError, match=r"v.*attributes.*lock"):
        varve.save({"v": names}, tmp_path / "c")
