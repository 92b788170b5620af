"""Checkpoints in OLMo's layouts hold here what the training state held when they were written.

What each case is and how `expected.json` was made: tests/golden/olmo/README.md.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_json import difference

import varve
import varve.olmo
import varve.torch

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "olmo"
#: Of OLMo-core itself: a run's step, with the optimizer's state under flat names. See below.
CORE = "core-step10-fsdp2"
CASES = sorted(
    folder.name for folder in GOLDEN.iterdir() if folder.is_dir() and folder.name != CORE
)


def expected_of(case: str) -> Any:
    return json.loads((GOLDEN / case / "expected.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_what_was_trained(case: str) -> None:
    model = varve.torch.read(GOLDEN / case, "model")["model"]
    expected = expected_of(case)["model"]
    assert sorted(model) == sorted(expected)
    for name, want in expected.items():
        assert difference(model[name], {"type": "tensor", **want}, name) == ""


@pytest.mark.parametrize("case", CASES)
def test_the_optimizer_has_its_state_by_name(case: str) -> None:
    optim = varve.torch.read(GOLDEN / case, "optim")["optim"]
    expected = expected_of(case)["optim"]
    assert sorted(optim["state"]) == sorted(expected["state"])
    for name, entries in expected["state"].items():
        assert sorted(optim["state"][name]) == sorted(entries), name
        for key, want in entries.items():
            assert difference(optim["state"][name][key], want, f"{name}.{key}") == ""
    assert len(optim["param_groups"]) == len(expected["param_groups"])
    for found, group in zip(optim["param_groups"], expected["param_groups"], strict=True):
        assert sorted(found) == sorted(group)
        for key, want in group.items():
            assert difference(found[key], want, f"param_groups.{key}") == ""


@pytest.mark.parametrize("case", CASES)
def test_the_trainer_has_its_state_whole_and_by_rank(case: str) -> None:
    state = varve.torch.read(GOLDEN / case)
    expected = expected_of(case)
    train = dict(state["train"])
    if expected["layout"] == "olmo/torch_legacy":
        assert "rng" not in train  # It differs between ranks.
    assert difference(train, expected["train"], "train") == ""
    for rank, want in expected.get("rng_per_rank", {}).items():
        assert difference(state[f"train/rank{rank}"]["rng"], want, f"rng of {rank}") == ""
    for rank, want in expected.get("train_per_rank", {}).items():
        assert difference(state[f"train/rank{rank}"], want, f"train of {rank}") == ""


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_loads_in_part(case: str) -> None:
    whole = varve.torch.read(GOLDEN / case, "model")["model"]
    checkpoint = varve.torch.open(GOLDEN / case)
    for name, tensor in whole.items():
        if tensor.ndim == 2:
            part = checkpoint[f"model.{name}"][1:5, 2:7]
            assert torch.equal(part, tensor[1:5, 2:7]), name


@pytest.mark.parametrize("case", CASES)
def test_it_verifies_and_converts_to_the_same(case: str, tmp_path: Path) -> None:
    assert varve.verify(GOLDEN / case) == []
    varve.convert(GOLDEN / case, tmp_path / "native", to="varve")
    assert varve.diff(GOLDEN / case, tmp_path / "native") == []


@pytest.mark.parametrize("case", CASES)
def test_without_the_file_that_is_written_last_it_is_incomplete(case: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / case, tmp_path / "c")
    (tmp_path / "c" / "config.yaml").unlink()
    with pytest.raises(varve.Error, match=r"incomplete: config\.yaml"):
        varve.torch.read(tmp_path / "c")


# ---- OLMo-core: its own classes in the index ----

STEP = GOLDEN / CORE / "step10"


@pytest.mark.parametrize("path", [STEP, STEP / "model_and_optim"], ids=["step", "dcp"])
def test_a_step_of_olmo_core_holds_what_was_trained(path: Path) -> None:
    state = varve.torch.read(path)
    expected = expected_of(CORE)
    assert sorted(state["model"]) == sorted(expected["model"])
    for name, want in expected["model"].items():
        assert difference(state["model"][name], {"type": "tensor", **want}, name) == ""
    flat = {
        f"state.{name}.{key}": want
        for name, entries in expected["optim"]["state"].items()
        for key, want in entries.items()
    }
    flat.update(expected["optim"]["flat_param_groups"])
    assert sorted(state["optim"]) == sorted(flat)
    for name, want in flat.items():
        assert difference(state["optim"][name], want, name) == ""
    stored = {f"{part}.{name}" for part in ("model", "optim") for name in state[part]}
    assert stored == set(expected["dcp_keys"])


def test_a_step_of_olmo_core_has_the_trainers_states() -> None:
    state = varve.torch.read(STEP)
    expected = expected_of(CORE)
    assert difference(state["train"], expected["train"], "train") == ""
    for rank, want in expected["train_per_rank"].items():
        assert difference(state[f"train/rank{rank}"], want, f"train of {rank}") == ""


@pytest.mark.parametrize("to", ["varve", "dcp"])
@pytest.mark.parametrize("path", [STEP, STEP / "model_and_optim"], ids=["step", "dcp"])
def test_a_step_of_olmo_core_verifies_and_converts(path: Path, to: Any, tmp_path: Path) -> None:
    assert varve.verify(path) == []
    varve.convert(path, tmp_path / "converted", to=to)
    assert varve.diff(path, tmp_path / "converted") == []


def test_a_step_of_olmo_core_is_listed() -> None:
    (entry,) = varve.list_checkpoints(GOLDEN / CORE)
    assert (entry.format, entry.state, entry.step) == ("olmo-torch-new", "whole", 10)


def test_a_step_of_olmo_core_restores_a_model_and_its_optimizer() -> None:
    expected = expected_of(CORE)
    model, optimizer = model_of(expected)
    with pytest.warns(UserWarning, match="decoupled_weight_decay"):  # New in torch since.
        varve.olmo.load_fsdp_model_and_optim_state(STEP, model, optimizer)
    parameters = dict(model.named_parameters())
    for name, want in expected["model"].items():
        assert difference(parameters[name].detach(), {"type": "tensor", **want}, name) == ""
    for name, entries in expected["optim"]["state"].items():
        for key, want in entries.items():
            found = optimizer.state[parameters[name]][key]
            assert difference(found, want, f"{name}.{key}") == ""
    for found, group in zip(optimizer.param_groups, expected["optim"]["param_groups"], strict=True):
        for key, want in group.items():
            assert key == "params" or difference(found[key], want, key) == ""


def test_groups_that_olmo_core_had_otherwise_are_named() -> None:
    expected = expected_of(CORE)
    model, _ = model_of(expected)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(varve.olmo.WrongGroupsError, match=r"group 0 .*\.scale, which were"):
        varve.olmo.load_fsdp_model_and_optim_state(STEP, model, optimizer)


def model_of(expected: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Returns a model of zeros and an optimizer with the groups of the one that was saved."""
    model = torch.nn.Module()
    for name, want in expected["model"].items():
        at = model
        *above, last = name.split(".")
        for part in above:
            if part not in dict(at.named_children()):
                at.add_module(part, torch.nn.Module())
            at = at.get_submodule(part)
        at.register_parameter(last, torch.nn.Parameter(torch.zeros(want["shape"])))
    parameters = dict(model.named_parameters())
    groups = [
        [parameters[item["value"]] for item in group["params"]["items"]]
        for group in expected["optim"]["param_groups"]
    ]
    return model, torch.optim.AdamW([{"params": group} for group in groups], lr=0.5)
