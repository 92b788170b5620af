"""Containers: names equal torch's, structure is stored, destinations need not look the same."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same import same
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import varve
import varve.torch
from varve._tree import Flattener
from varve.torch._tensors import TorchArrays


def names(state: Any) -> list[str]:
    arrays = TorchArrays()
    flat = Flattener(0, arrays.is_tensor, arrays.origin)
    flat.flatten(state)
    return sorted(name for name, _ in flat.tensors + flat.objects)


def tensor(value: float = 1.0) -> torch.Tensor:
    return torch.full((3,), float(value))


leaves = st.one_of(st.none(), st.integers(), st.text(), st.builds(tensor), st.just((1, tensor())))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=4) | st.integers() | st.booleans(), inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=4).map(collections.OrderedDict),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=15,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=4), trees, max_size=5))
def test_names_equal_those_of_torch_for_any_nesting(state: dict[str, Any]) -> None:
    try:
        expected = sorted(flatten_state_dict(state)[0])
    except ValueError:
        with pytest.raises(varve.InvalidArgumentError, match="both get the name"):
            names(state)
    else:
        assert names(state) == expected


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": tensor(), "a": {"b": tensor()}},
        {"a": {1: tensor(), "1": tensor()}},
        {"a": {"0": 1}, "a.0": 2},
        {"a": [tensor()], "a.0": 3},
        {"a": {(1,): 1, "(1,)": 2}},
        {"t": varve.PerRank(1), "t/rank0": 2},
    ],
)
def test_two_entries_with_one_name_are_refused(state: Any, tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="both get the name"):
        varve.torch.save(state, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


NESTED: dict[Any, Any] = {
    "z": [tensor(1), {"k": tensor(2), 3: [[tensor(3)], []]}, 4, None],
    "plain": [1, [2, 3]],
    "empty": {"list": [], "dict": {}, "nested": [{}, []], "od": collections.OrderedDict()},
    "a": collections.OrderedDict([("second", tensor(5)), ("first", 6)]),
    "d": collections.defaultdict(dict, {0: {"x": tensor(7)}}),
    0: {True: tensor(8), 2.5: 9, (1, "t"): tensor(10)},
}


def test_read_rebuilds_the_same_containers_in_the_same_order(tmp_path: Path) -> None:
    varve.torch.save(NESTED, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")
    assert same(back, NESTED)
    assert back["d"].default_factory is dict


def test_flat_read_uses_the_names_torch_gives(tmp_path: Path) -> None:
    varve.torch.save(NESTED, tmp_path / "c")
    flat = varve.torch.read(tmp_path / "c", flat=True)
    expected = flatten_state_dict(NESTED)[0]
    assert list(flat) == list(expected)
    assert all(same(flat[name], value) for name, value in expected.items())


@pytest.mark.parametrize("state", [{}, {"a": {}}, {"a": []}, {"a": {"b": [{}, []]}}])
def test_states_without_any_tensor_round_trip(state: Any, tmp_path: Path) -> None:
    varve.torch.save(state, tmp_path / "c")
    assert same(varve.torch.read(tmp_path / "c"), state)
    varve.torch.load(state, tmp_path / "c")
    assert varve.verify(tmp_path / "c") == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("z.0", ["z.0"]),
        ("z.1", ["z.1.k", "z.1.3.0.0", "z.1.3.1"]),
        ("*.k", ["z.1.k"]),
        (["a.first", "plain"], ["plain", "a.first"]),
        ("[ad].*", ["a.second", "a.first", "d.0.x"]),
        ("*", None),
    ],
)
def test_read_takes_names_prefixes_and_globs(keys: Any, expected: Any, tmp_path: Path) -> None:
    varve.torch.save(NESTED, tmp_path / "c")
    everything = varve.torch.read(tmp_path / "c", flat=True)
    flat = varve.torch.read(tmp_path / "c", keys, flat=True)
    assert list(flat) == (list(everything) if expected is None else expected)


def test_read_of_some_keys_keeps_the_containers_around_them(tmp_path: Path) -> None:
    varve.torch.save(NESTED, tmp_path / "c")
    part = varve.torch.read(tmp_path / "c", ["z.0", "a.first", "0.(1, 't')"])
    expected = {
        "z": {"0": tensor(1)},
        "a": collections.OrderedDict(first=6),
        0: {(1, "t"): tensor(10)},
    }
    assert same(part, expected)


def test_reading_a_name_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    varve.torch.save({"a": 1}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match="nothing in the checkpoint is named b, c"):
        varve.torch.read(tmp_path / "c", ["b", "c"])


def test_a_key_of_any_text_names_its_tensor(tmp_path: Path) -> None:
    state = {"": tensor(), "a/b\0c": tensor(2), "emoji 🦥": {"": 1}, "..": tensor(3)}
    varve.torch.save(state, tmp_path / "c")
    assert same(varve.torch.read(tmp_path / "c"), state)


def test_a_name_that_is_not_valid_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="surrogate"):
        varve.torch.save({"\ud800": tensor()}, tmp_path / "c")


def test_per_rank_values_are_stored_under_their_rank(tmp_path: Path) -> None:
    state = {"rng": varve.PerRank({"seed": 1, "t": tensor()}), "x": varve.PerRank(5)}
    varve.torch.save(state, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c", flat=True)
    assert sorted(back) == ["rng/rank0.seed", "rng/rank0.t", "x/rank0"]
    target: dict[str, Any] = {
        "rng": varve.PerRank({"seed": 0, "t": tensor(0)}),
        "x": varve.PerRank(None),
    }
    held = target["rng"].value["t"]
    varve.torch.load(target, tmp_path / "c")
    assert (target["rng"].value["seed"], target["x"].value) == (1, 5)
    assert torch.equal(held, tensor())


def test_tied_and_overlapping_tensors_load_into_the_memory_they_share(tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    varve.torch.save({"a": weight, "b": weight, "row": weight[1]}, tmp_path / "c")
    shared = torch.zeros(3, 4)
    varve.torch.load({"a": shared, "b": shared, "row": shared[1]}, tmp_path / "c")
    assert torch.equal(shared, weight)


def test_parameters_are_filled_in_place_and_keep_requiring_gradients(tmp_path: Path) -> None:
    varve.torch.save({"p": torch.nn.Parameter(tensor(3))}, tmp_path / "c")
    parameter = torch.nn.Parameter(tensor(0))
    state = {"p": parameter}
    varve.torch.load(state, tmp_path / "c")
    assert state["p"] is parameter
    assert parameter.requires_grad
    assert torch.equal(parameter, tensor(3))
    assert not varve.torch.read(tmp_path / "c")["p"].requires_grad


class Computed:
    """A state that exists only in what `state_dict` returns."""

    def state_dict(self) -> dict[str, Any]:
        return {f"w{i}": torch.full((1000,), i) for i in range(200)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_tensors_that_state_dict_has_made_live_until_they_are_saved(tmp_path: Path) -> None:
    varve.torch.save({"model": Computed()}, tmp_path / "a")
    varve.torch.async_save({"model": Computed()}, tmp_path / "b", staging="overlapped").result()
    for name in ("a", "b"):
        found = varve.torch.read(tmp_path / name)["model"]
        assert same(found, Computed().state_dict())


class Swapping:
    """Gives a tensor another memory when it is asked for its state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:
        self.tensor.data = torch.zeros(1)
        self.over = [torch.full((1 << 20,), 9.0) for _ in range(4)]
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_a_tensor_whose_memory_is_swapped_meanwhile_is_saved_as_it_was_taken(
    tmp_path: Path,
) -> None:
    weight = torch.full((1 << 20,), 3.0)
    varve.torch.save({"a": weight, "b": Swapping(weight)}, tmp_path / "c")
    assert varve.torch.read(tmp_path / "c")["a"].unique().tolist() == [3.0]
