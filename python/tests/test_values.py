"""Plain values come back with their exact type and value; what cannot is refused by its path."""

from __future__ import annotations

import collections
import datetime as dt
import math
import struct
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same import same

import varve
import varve.torch
from varve import _core

CET = zoneinfo.ZoneInfo("Europe/Berlin")


PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**2000,
    -(2**2000),
    127,
    128,
    -128,
    -129,
    1.5,
    -0.0,
    5e-324,
    math.inf,
    -math.inf,
    math.nan,
    struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0],
    complex(-0.0, math.nan),
    "",
    "text",
    "nul\0 inside",
    "emoji 🦥 and é",
    "\ud800 lone surrogate \udfff",
    b"",
    bytes(range(256)),
    bytearray(b"grows"),
    [],
    (),
    [1, [2, (3, [])]],
    (1, "a", None, (2.5,)),
    set(),
    {1, "a", (2, 3)},
    frozenset({frozenset({1}), 2}),
    range(0),
    range(-3, 2**70, 7),
    slice(None),
    slice(1, None, -2),
]

CONTAINERS: list[Any] = [
    {},
    {"a": 1, "b": {"c": [1, 2]}},
    {1: "int"},
    {True: "bool"},
    {1.0: "float"},
    {False: "bool", 2: "int"},
    {(1, "a"): "tuple", ((), 2.5): "nested"},
    {-0.0: "negative zero"},
    collections.OrderedDict([("z", 1), ("a", 2)]),
    collections.OrderedDict(),
    collections.Counter({5: 2, 10: -1}),
    collections.Counter(),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {"a": 1}),
    collections.defaultdict(int),
]

TORCH: list[Any] = [
    torch.Size([]),
    torch.Size([2, 0, 3]),
    torch.float32,
    torch.bfloat16,
    torch.bool,
    torch.device("cpu"),
    torch.device("cuda:3"),
    torch.device("meta"),
]

TIMES: list[Any] = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
    dt.datetime(1, 1, 1),
    dt.datetime.max,
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=-30, seconds=-7))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "named")),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=CET, fold=1),
    dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.date(2024, 2, 29),
    dt.time(1, 2, 3, 4),
    dt.time(1, 2, tzinfo=dt.timezone.utc, fold=1),
    dt.time(1, 2, tzinfo=CET),
    dt.timedelta(0),
    dt.timedelta.max,
    dt.timedelta.min,
    dt.timedelta(microseconds=-1),
    dt.timezone.utc,
    dt.timezone(dt.timedelta(0), "zero"),
    CET,
]

NUMPY_SCALARS: list[Any] = [
    np.bool_(True),
    np.int8(-1),
    np.int64(-(2**63)),
    np.uint16(65535),
    np.uint64(2**64 - 1),
    np.float16(0.1),
    np.float32(np.nan),
    np.float64(-0.0),
    np.longdouble(1) / 3,
    np.complex64(1 - 2j),
    np.complex128(complex(math.inf, -0.0)),
    np.datetime64("2024-01-01T00:00:00.123456789"),
    np.datetime64("2024-01", "M"),
    np.datetime64("NaT"),
    np.timedelta64(7, "D"),
    np.timedelta64(7),
    np.str_(""),
    np.str_("déjà 🦥"),
    np.str_("ends in nul\0"),
    np.bytes_(b""),
    np.bytes_(b"ends in nul\0"),
    np.void(b"\x01\x02\x03"),
]

NUMPY_ARRAYS: list[Any] = [
    np.array(3, np.int16),
    np.zeros((0, 3), np.float32),
    np.arange(6, dtype=">f8").reshape(2, 3),
    np.arange(6, dtype=">i2")[::-2],
    np.array(["a", "bcd", ""]),
    np.array([b"a", b"bcd"]),
    np.array(["2024-01-01", "NaT"], dtype="M8[ms]"),
    np.array([1, 2], dtype="m8[h]"),
    np.array([1, 2], dtype=np.longdouble),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([b"\x01\x02"], dtype="V2"),
]

EVERYTHING = PLAIN + CONTAINERS + TORCH + TIMES + NUMPY_SCALARS + NUMPY_ARRAYS


def name_of(value: Any) -> str:
    """The same in every process: a set's own text is not."""
    text = f"{len(value)} items" if isinstance(value, (set, frozenset)) else repr(value)
    return f"{type(value).__name__}-{text}"[:50]


@pytest.mark.parametrize("value", EVERYTHING, ids=name_of)
def test_a_value_comes_back_exactly_as_a_leaf_and_within_a_tuple(
    value: Any, tmp_path: Path
) -> None:
    varve.save({"leaf": value, "inside": (value, [value])}, tmp_path / "c")
    assert same(varve.read(tmp_path / "c"), {"leaf": value, "inside": (value, [value])})


def test_loading_replaces_whatever_plain_values_the_destination_has(tmp_path: Path) -> None:
    state = {f"v{i}": value for i, value in enumerate(EVERYTHING)}
    varve.save(state, tmp_path / "c")
    arrays = {k for k, v in state.items() if isinstance(v, np.ndarray)}
    before: Any
    for before in (None, 7, "text", [1], {}, (1, 2)):
        target: dict[str, Any] = dict.fromkeys(state, before)
        report = varve.load(target, tmp_path / "c")
        assert (report.missing, report.unexpected, report.mismatched) == ([], [], [])
        assert [k for k in state if not same(target[k], state[k])] == []
        assert all(isinstance(target[k], np.ndarray) for k in arrays)


def test_tensors_inside_tuples_come_back_as_tensors(tmp_path: Path) -> None:
    tensors = (
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(1j).conj(),
        torch.empty(0, 2),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    )
    varve.torch.save({"v": tensors[:4]}, tmp_path / "c")
    assert same(varve.torch.read(tmp_path / "c")["v"], tensors[:4])
    back = _core.decode_value(_core.encode_value((tensors[4],), "v"))[0]
    assert back.dtype == torch.float4_e2m1fn_x2
    assert torch.equal(back.view(torch.uint8), torch.zeros(2, dtype=torch.uint8))


def test_a_dict_in_a_tuple_keeps_keys_that_only_differ_in_type(tmp_path: Path) -> None:
    value = ({"1": "str", 1: "int", "True": "text", 2.0: "float", (1,): "tuple", "(1,)": "s"},)
    varve.save({"v": value}, tmp_path / "c")
    assert same(varve.read(tmp_path / "c")["v"], value)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.binary().map(bytearray),
    st.datetimes(timezones=st.none() | st.just(dt.timezone.utc) | st.just(CET)),
    st.timedeltas(),
    st.sampled_from(range(len(NUMPY_SCALARS + TORCH))).map((NUMPY_SCALARS + TORCH).__getitem__),
)
keys = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.tuples(st.integers())
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(collections.OrderedDict),
        st.frozensets(keys),
        st.sets(keys),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(values)
def test_any_nested_value_round_trips(value: Any) -> None:
    encoded = _core.encode_value(value, "v")
    assert same(_core.decode_value(encoded), value)
    assert _core.encode_value(_core.decode_value(encoded), "v") == encoded


@settings(max_examples=100, deadline=None)
@given(values, st.data())
def test_a_truncated_value_is_an_error_and_never_a_crash(value: Any, data: st.DataObject) -> None:
    encoded = _core.encode_value((value,), "v")
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(varve.Error):
        _core.decode_value(encoded[:cut])
