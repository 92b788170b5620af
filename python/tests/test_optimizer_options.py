"""Options of an optimizer's groups that a checkpoint lacks, as one of an older torch: torch adds them, or it is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import varve
import varve.torch


class Adapts(torch.optim.AdamW):
    """Changes what it is given to load, in a way that no one else knows."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


def trained(kind: Any, **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def without(optimizer: torch.optim.Optimizer, option: str) -> dict[str, Any]:
    """The state dict of an optimizer as a torch would make it that does not have the option."""
    state = optimizer.state_dict()
    del state["param_groups"][0][option]
    return state


@pytest.mark.parametrize("format", ["varve", "dcp"])
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (torch.optim.AdamW, "maximize"),
        (torch.optim.AdamW, "decoupled_weight_decay"),  # Since torch 2.7.
        (torch.optim.Adam, "decoupled_weight_decay"),
        (torch.optim.SGD, "fused"),
        (torch.optim.Adagrad, "foreach"),
    ],
)
def test_an_option_that_the_older_release_had_not_is_what_torch_makes_it(
    kind: Any, option: str, format: Any, tmp_path: Path
) -> None:
    _, old = trained(kind)
    if option not in old.param_groups[0]:
        pytest.skip(f"the {kind.__name__} of this torch has no {option} either")
    varve.torch.save({"optim": without(old, option)}, tmp_path / "c", format=format)
    by_torch, resumed = trained(kind, weight_decay=0.5)[1], trained(kind, weight_decay=0.5)[1]
    by_torch.load_state_dict(without(old, option))
    report = varve.torch.load({"optim": resumed}, tmp_path / "c")
    assert report.missing == []
    assert resumed.state_dict()["param_groups"] == by_torch.state_dict()["param_groups"]
    assert resumed.state_dict()["state"].keys() == by_torch.state_dict()["state"].keys()


@pytest.mark.parametrize(("kind", "option"), [(torch.optim.AdamW, "betas"), (Adapts, "maximize")])
def test_an_option_that_torch_does_not_add_is_missing(
    kind: Any, option: str, tmp_path: Path
) -> None:
    varve.torch.save({"optim": without(trained(kind)[1], option)}, tmp_path / "c")
    resumed = trained(kind)[1]
    with pytest.raises(varve.InvalidArgumentError, match=rf"missing.*param_groups\.0\.{option}"):
        varve.torch.load({"optim": resumed}, tmp_path / "c")
    report = varve.torch.load({"optim": resumed}, tmp_path / "c", strict=False)
    assert [name for name in report.missing if f".{option}" in name] == report.missing != []


def test_options_that_were_not_chosen_stay(tmp_path: Path) -> None:
    varve.torch.save({"optim": without(trained(torch.optim.Adam)[1], "maximize")}, tmp_path / "c")
    resumed = trained(torch.optim.Adam, maximize=True)[1]
    varve.torch.load({"optim": resumed}, tmp_path / "c", keys="optim.state")
    assert resumed.param_groups[0]["maximize"]
