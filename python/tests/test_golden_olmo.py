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
import varve.torch

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "olmo"
CASES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


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
