"""Keys of loads and reads: which name of an entry chooses it, and what is said of one that chooses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import varve
import varve.torch


def test_a_key_that_is_misspelt_is_named_with_what_it_may_mean(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.torch.save({"model": {"weight": torch.ones(3)}, "optim": {"state": {}}}, path)
    model = {"weight": torch.zeros(3)}
    for keys in ("model.wieght", ["model.weight", "model.wieght"], ["model", "modle.*"]):
        with pytest.raises(varve.InvalidArgumentError, match=r"is named mod.*"):
            varve.torch.load({"model": model}, path, keys=keys)
    with pytest.raises(varve.InvalidArgumentError, match=r"is it model\.weight\?"):
        varve.torch.load({"model": model}, path, keys="model.wieght")
    with pytest.raises(varve.InvalidArgumentError, match=r"is it model\.weight\?"):
        varve.torch.read(path, ["model.weight", "model.wieght"])
    assert torch.equal(model["weight"], torch.zeros(3))
    varve.torch.load({"model": model, "optim": {"state": {}}}, path, keys=["model", "optim.state"])
    assert torch.equal(model["weight"], torch.ones(3))
    assert varve.torch.load({"model": model}, path, keys=["x", "model"], strict=False).loaded == 1
    with pytest.warns(UserWarning, match="nothing was loaded"):
        varve.torch.load({"other": torch.ones(1)}, path, keys="model")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("modle", "is it model?"),
        ("model.layer", "is it model.layers?"),
        ("model.layers.0.v", "is it model.layers.0.w?"),
        ("modle.*", "is it model.*?"),
        ("model.x*", "at the top are model, step"),
        ("layers.1", "is it model.layers.1?"),
        ("layers.1.w", "is it model.layers.1.w?"),
        ("nothing", "at the top are model, step"),
    ],
)
def test_a_load_and_a_read_answer_a_key_that_chooses_nothing_alike(
    key: str, meant: str, tmp_path: Path
) -> None:
    """No CheckpointNotFoundError, which a program takes for a run that begins."""
    state = {"model": {"layers": [{"w": torch.ones(2)}, {"w": torch.ones(2)}]}, "step": 3}
    varve.torch.save(state, tmp_path / "a")
    calls = (
        lambda: varve.torch.load(state, tmp_path / "a", keys=key),
        lambda: varve.torch.read(tmp_path / "a", key),
        lambda: varve.read(tmp_path / "a", key),
    )
    for call in calls:
        with pytest.raises(varve.InvalidArgumentError) as caught:
            call()
        assert f"is named {key}; {meant}" in str(caught.value)


@pytest.mark.parametrize("keys", ["train", "train/rank0", "tr*", ["train.seen", "train.rng"]])
def test_the_value_of_each_rank_is_chosen_by_its_name(
    keys: str | list[str], tmp_path: Path
) -> None:
    saved = {"w": torch.ones(1), "train": varve.torch.PerRank({"seen": 3, "rng": torch.ones(2)})}
    varve.torch.save(saved, tmp_path / "step-1")
    state = {"w": torch.zeros(1), "train": varve.torch.PerRank({"seen": 0, "rng": torch.zeros(2)})}
    assert varve.torch.load(state, tmp_path / "step-1", keys=keys).loaded == 2
    assert state["train"].value["seen"] == 3 and state["w"] == 0
    assert set(varve.torch.read(tmp_path / "step-1", keys)) == {"train/rank0"}


def test_a_key_may_name_a_tied_tensor_that_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.torch.save({"embed": torch.ones(3)}, path)
    weight = torch.zeros(3)
    state = {"embed": weight, "lm_head": weight}
    assert varve.torch.load(state, path, keys=["embed", "lm_head"]).loaded == 1
    assert torch.equal(weight, torch.ones(3))


def test_keys_are_names_of_the_destination_where_names_change(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    varve.torch.save({"embed": {"w": torch.ones(3)}}, path)
    state = {"net": {"w": torch.zeros(3)}}
    with pytest.raises(varve.InvalidArgumentError, match="is named embed"):
        varve.torch.load(state, path, keys=["net", "embed"], rename={"embed.": "net."})
    assert varve.torch.load(state, path, keys="net", rename={"embed.": "net."}).loaded == 1


def test_no_keys_and_keys_of_empty_containers_are_no_reason_to_warn(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "step-1"
    varve.torch.save({"w": torch.ones(3), "e": {}}, path)
    for keys in ([], ["e"]):
        assert varve.torch.load({"w": torch.zeros(3), "e": {}}, path, keys=keys).loaded == 0
    assert not recwarn.list


@pytest.mark.parametrize(
    "rename",
    [
        {"old.optim.": "optim."},
        {"old.": ""},
        {"old.optim.state.": "optim.state.", "old.optim.param": "optim.param"},
        lambda name: None if "step" in name else name.removeprefix("old."),
    ],
)
def test_keys_that_are_numbers_stay_such_under_other_names(rename: Any, tmp_path: Path) -> None:
    """An optimizer takes "0" for the state of no parameter of its own."""
    state = {0: {"exp_avg": torch.ones(2), "step": 1}, 12: {"exp_avg": torch.zeros(2), "step": 1}}
    optim = {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 12]}]}
    varve.torch.save({"old": {"optim": optim, "1": 2}}, tmp_path / "step")
    found: dict[str, Any] = {"optim": {}}
    varve.torch.load(found, tmp_path / "step", rename=rename, strict=False)
    assert list(found["optim"]["state"]) == [0, 12]
    assert torch.equal(found["optim"]["state"][0]["exp_avg"], torch.ones(2))


def test_keys_of_the_outermost_dict_stay_numbers_below_another_name(tmp_path: Path) -> None:
    varve.torch.save({0: {"a": torch.ones(1)}, "b": {1: 2, None: 3}}, tmp_path / "step")
    found: dict[str, Any] = {"new": {}}
    varve.torch.load(found, tmp_path / "step", rename=lambda name: f"new.{name}")
    assert found["new"] == {0: {"a": torch.ones(1)}, "b": {1: 2, None: 3}}
