"""Modules as destinations: hooks that upgrade what is stored, extra state, state dicts that lack keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations

import varve
import varve.torch


def values(module: torch.nn.Module) -> dict[str, Any]:
    return {key: item.tolist() for key, item in module.state_dict().items()}


def test_weights_of_the_old_weight_norm_are_loaded_into_parametrizations(tmp_path: Path) -> None:
    def normed(wrap: Any) -> torch.nn.Module:
        return torch.nn.Sequential(wrap(torch.nn.Linear(3, 2)), torch.nn.Linear(2, 2))

    with pytest.warns(FutureWarning, match="weight_norm"):
        old = normed(torch.nn.utils.weight_norm)
    varve.torch.save({"model": old}, tmp_path / "c")
    new = normed(parametrizations.weight_norm)
    before = new[0].parametrizations.weight.original0  # type: ignore[index,union-attr]
    report = varve.torch.load({"model": new}, tmp_path / "c", strict="exact")
    assert report.missing == []
    assert torch.equal(new(torch.eye(3)), old(torch.eye(3)))
    assert new[0].parametrizations.weight.original0 is before  # type: ignore[index,union-attr]
    under = {"old.": "new."}
    varve.torch.save({"old": old}, tmp_path / "other")
    other = normed(parametrizations.weight_norm)
    varve.torch.load({"new": other}, tmp_path / "other", rename=under)
    assert torch.equal(other(torch.eye(3)), old(torch.eye(3)))


class Fused(torch.nn.Module):
    """Has one weight where it had three, and joins what is stored of them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.zeros(6, 2))
        self.out = torch.nn.Linear(2, 2)
        self.register_load_state_dict_pre_hook(self._join)

    @staticmethod
    def _join(_module: Any, state: Any, prefix: str, *_rest: Any) -> None:
        if f"{prefix}q" in state:
            parts = [state.pop(f"{prefix}{name}") for name in "qkv"]
            state[f"{prefix}qkv"] = torch.cat(parts)


def test_a_hook_that_computes_weights_of_stored_ones_runs(tmp_path: Path) -> None:
    parts = {name: torch.full((2, 2), float(i)) for i, name in enumerate("qkv")}
    out = torch.nn.Linear(2, 2)
    model = {"layer.q": parts["q"], "layer.k": parts["k"], "layer.v": parts["v"]}
    model |= {f"layer.out.{key}": item for key, item in out.state_dict().items()}
    varve.torch.save({"model": model}, tmp_path / "c")
    module = torch.nn.ModuleDict({"layer": Fused()})
    weight = module["layer"].out.weight
    report = varve.torch.load({"model": module}, tmp_path / "c", strict="exact")
    assert report.unexpected == []
    assert torch.equal(module["layer"].qkv, torch.cat(list(parts.values())))  # type: ignore[arg-type]
    assert module["layer"].out.weight is weight
    assert torch.equal(weight, out.weight)  # type: ignore[arg-type]


def test_what_no_hook_makes_is_missing(tmp_path: Path) -> None:
    varve.torch.save({"model": {"layer.q": torch.ones(2, 2)}}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match=r"missing.*model\.layer\.qkv"):
        varve.torch.load({"model": torch.nn.ModuleDict({"layer": Fused()})}, tmp_path / "c")


class Filtered(torch.nn.Linear):
    """Saves without its bias, and does not load what it saves."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        found = super().state_dict(*args, **options)
        return {key: item for key, item in found.items() if key != "bias"}


class Forgiving(Filtered):
    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state, strict=False, assign=assign)


def test_a_module_that_does_not_load_what_it_saves_fails_before_it_is_filled(
    tmp_path: Path,
) -> None:
    varve.torch.save({"model": Filtered(2, 2), "other": torch.ones(2)}, tmp_path / "c")
    model, other = Filtered(2, 2), torch.zeros(2)
    before = model.weight.tolist()
    with pytest.raises(varve.InvalidArgumentError, match=r'"model".*Filtered lacks "bias"'):
        varve.torch.load({"model": model, "other": other}, tmp_path / "c")
    assert model.weight.tolist() == before
    assert other.tolist() == [0, 0]
    varve.torch.load({"model": Forgiving(2, 2)}, tmp_path / "c")


class Extra(torch.nn.Linear):
    """Has extra state of any kind."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("before", [None, {}, {"a": 0}, torch.zeros(0), torch.zeros(5), 3], ids=str)
@pytest.mark.parametrize(
    "saved", [None, {"a": 1, "b": {"c": torch.ones(2)}}, torch.ones(3), torch.ones(5)], ids=str
)
def test_extra_state_of_a_module_is_what_was_saved(saved: Any, before: Any, tmp_path: Path) -> None:
    module = torch.nn.Sequential(Extra(2, 2))
    module[0].extra = saved
    varve.torch.save({"model": module}, tmp_path / "c")
    target = torch.nn.Sequential(Extra(2, 2))
    target[0].extra = before
    varve.torch.load({"model": target}, tmp_path / "c", strict="exact")
    assert str(target[0].extra) == str(saved)
    assert torch.equal(target[0].weight, module[0].weight)


def test_extra_state_that_a_module_has_not_is_left_over(tmp_path: Path) -> None:
    saved = Extra(2, 2)
    saved.extra = {"a": 1}
    varve.torch.save({"model": saved}, tmp_path / "c")
    with pytest.warns(UserWarning, match='1 below "model"'):
        report = varve.torch.load({"model": torch.nn.Linear(2, 2)}, tmp_path / "c")
    assert report.unexpected == ["model._extra_state.a"]


def test_a_model_is_assigned_where_meta_is_the_default_device(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    varve.torch.save({"model": model}, tmp_path / "c")
    with torch.device("meta"):
        target = torch.nn.Linear(3, 2)
        varve.torch.load({"model": target}, tmp_path / "c", assign=True)
    assert values(target) == values(model)
    with torch.device("meta"):
        read = varve.torch.read(tmp_path / "c")
    assert read["model"]["weight"].tolist() == values(model)["weight"]
