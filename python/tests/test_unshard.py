"""`unshard` writes whole states that stock PyTorch opens."""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_json import difference
from olmo_local import LocalRun
from safetensors.torch import load_file
from same import same, sorted_dicts

import varve
import varve.torch

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "olmo"
SHARDED = ("legacy-world2", "local-world2", "torch-new-world2")


@pytest.mark.parametrize("case", SHARDED)
def test_torch_opens_what_was_trained(case: str, tmp_path: Path) -> None:
    report = varve.unshard(GOLDEN / case, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.yaml",
        "model.pt",
        "optim.pt",
        "train.pt",
    ]
    assert report.files == ["config.yaml"]
    assert report.left_out == []
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    model = torch.load(tmp_path / "out" / "model.pt")
    assert sorted(model) == sorted(expected["model"])
    for name, want in expected["model"].items():
        assert difference(model[name], {"type": "tensor", **want}, name) == ""
    optim = torch.load(tmp_path / "out" / "optim.pt")
    for name, entries in expected["optim"]["state"].items():
        for key, want in entries.items():
            assert difference(optim["state"][name][key], want, f"{name}.{key}") == ""
    train = torch.load(tmp_path / "out" / "train.pt", weights_only=False)
    assert difference(train, expected["train"], "train") == ""


def test_what_is_in_no_file_is_said(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(3)}, "opt": {"m": torch.ones(3), "k": 1}, "step": 3}
    varve.torch.save(state, tmp_path / "a")
    report = varve.unshard(tmp_path / "a", tmp_path / "out")
    assert report.left_out == ["opt: 1 tensor, 1 value", "step: 1 value"]
    report = varve.unshard(tmp_path / "a", tmp_path / "model", model_only=True)
    assert report.left_out == []


@pytest.mark.parametrize("case", SHARDED)
def test_the_result_is_a_checkpoint_of_its_own(case: str, tmp_path: Path) -> None:
    varve.unshard(GOLDEN / case, tmp_path / "out")
    assert varve.open(tmp_path / "out").format == "olmo-full"
    assert varve.verify(tmp_path / "out") == []
    model = varve.torch.read(tmp_path / "out", "model")["model"]
    for name, tensor in varve.torch.read(GOLDEN / case, "model")["model"].items():
        assert torch.equal(model[name], tensor), name


def test_the_result_is_whole_where_the_source_has_no_configuration(tmp_path: Path) -> None:
    varve.torch.save({"model": {"w": torch.arange(4.0)}}, tmp_path / "ck")
    for overwrite in (False, True):
        varve.unshard(tmp_path / "ck", tmp_path / "out", overwrite=overwrite)
        assert varve.verify(tmp_path / "out") == []
        names = sorted(path.name for path in (tmp_path / "out").iterdir())
        assert names == [".varve-uploaded", "model.pt"]
    assert [one.state for one in varve.list_checkpoints(tmp_path)] == ["whole", "whole"]
    varve.upload(tmp_path / "out", tmp_path / "copy")
    assert varve.diff(tmp_path / "out", tmp_path / "copy") == []


def by_olmos_rules(path: Path) -> dict[Any, Any]:
    """Reads a file of OLMo's dialect: a key is base64 of the pickle of (path, is_pickled)."""
    state: dict[Any, Any] = {}
    for key, tensor in load_file(path).items():
        keys, is_pickled = pickle.loads(base64.urlsafe_b64decode(key))
        at = state
        for step in keys[:-1]:
            at = at.setdefault(step, {})
        at[keys[-1]] = pickle.loads(tensor.numpy().data) if is_pickled else tensor
    return state


@pytest.mark.parametrize("case", [*SHARDED, "unsharded-ids"])
def test_olmos_safetensors_hold_what_its_torch_files_hold(case: str, tmp_path: Path) -> None:
    varve.unshard(GOLDEN / case, tmp_path / "torch")
    varve.unshard(GOLDEN / case, tmp_path / "out", olmo_safetensors=True)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.yaml", "model.safetensors", "optim.safetensors", "train.pt"]
    for part in ("model", "optim"):
        want = torch.load(tmp_path / "torch" / f"{part}.pt")
        found = by_olmos_rules(tmp_path / "out" / f"{part}.safetensors")
        assert same(sorted_dicts(found), sorted_dicts(want))
    found, want = varve.torch.read(tmp_path / "out"), varve.torch.read(tmp_path / "torch")
    assert same(sorted_dicts(found), sorted_dicts(want))


def test_olmos_safetensors_are_replaced_and_others_files_are_not(tmp_path: Path) -> None:
    for case in ("local-world2", "legacy-world2"):
        varve.unshard(GOLDEN / case, tmp_path / "out", olmo_safetensors=True, overwrite=True)
    varve.unshard(GOLDEN / "local-world2", tmp_path / "out", overwrite=True)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.yaml", "model.pt", "optim.pt", "train.pt"]
    (tmp_path / "mine").mkdir()
    for name in ("model.safetensors", "config.yaml"):
        (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(varve.PreconditionError, match="is not a checkpoint"):
        varve.unshard(GOLDEN / "local-world2", tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "config.yaml").read_text() == "mine"


def test_olmos_safetensors_are_a_choice_of_torch_alone(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="a choice of the target torch alone"):
        varve.unshard(GOLDEN / "local-world2", tmp_path / "out", "hf", olmo_safetensors=True)


def test_only_the_model_may_be_asked_for_and_cast(tmp_path: Path) -> None:
    varve.unshard(GOLDEN / "local-world2", tmp_path / "out", model_only=True, dtype="bf16")
    assert not (tmp_path / "out" / "optim.pt").exists()
    model = torch.load(tmp_path / "out" / "model.pt")
    floats = [tensor for tensor in model.values() if tensor.is_floating_point()]
    assert floats
    assert all(tensor.dtype is torch.bfloat16 for tensor in floats)


def test_a_cast_leaves_the_optimizer_as_it_is(tmp_path: Path) -> None:
    varve.unshard(GOLDEN / "local-world2", tmp_path / "out", dtype="bf16")
    optim = torch.load(tmp_path / "out" / "optim.pt")
    assert all(entries["step"].dtype is torch.float32 for entries in optim["state"].values())


def test_other_formats_leave_out_what_ranks_keep_for_themselves(tmp_path: Path) -> None:
    varve.unshard(GOLDEN / "local-world2", tmp_path / "out", to="varve")
    names = list(varve.open(tmp_path / "out"))
    assert any(name.startswith("train.") for name in names)
    assert not any(name.startswith("train/rank") for name in names)


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    varve.unshard(GOLDEN / "local-world2", tmp_path / "out")
    with pytest.raises(varve.CheckpointExistsError):
        varve.unshard(GOLDEN / "legacy-world2", tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    varve.unshard(GOLDEN / "legacy-world2", tmp_path / "out", overwrite=True)
    assert "rng" not in varve.torch.read(tmp_path / "out")["train"]
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_checkpoint_without_a_model_is_refused(tmp_path: Path) -> None:
    varve.torch.save({"a": torch.ones(2)}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match="holds no model"):
        varve.unshard(tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_layout_of_the_cookbook_is_a_model_and_an_optimizer(tmp_path: Path) -> None:
    training = {"model": {"a.w": torch.ones(2)}, "optimizer": {"state": {0: torch.zeros(2)}}}
    state = {"training": training, "random": varve.torch.PerRank(torch.arange(4)), "step": 3}
    varve.torch.save(state, tmp_path / "c")
    varve.convert(tmp_path / "c", tmp_path / "hf", "hf")
    assert list(varve.torch.read(tmp_path / "hf")) == ["a.w"]
    varve.unshard(tmp_path / "c", tmp_path / "out")
    assert list(torch.load(tmp_path / "out" / "model.pt")) == ["a.w"]
    assert list(torch.load(tmp_path / "out" / "optim.pt")["state"]) == [0]
    varve.torch.save({"student": training, "teacher": training}, tmp_path / "two")
    with pytest.raises(varve.InvalidArgumentError, match="holds no model"):
        varve.unshard(tmp_path / "two", tmp_path / "none")


@pytest.mark.parametrize(
    "state",
    [
        {"params": {"model": {"w": torch.ones(2)}, "lm_head": {"w": torch.ones(2)}}, "step": 1},
        {"net": {"w": torch.ones(2)}, "ema": {"module": {"w": torch.zeros(2)}, "decay": 0.99}},
    ],
)
def test_a_model_without_an_optimizer_beside_it_is_part_of_one(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    varve.torch.save(state, tmp_path / "c")
    varve.convert(tmp_path / "c", tmp_path / "hf", "hf")
    assert len(varve.torch.read(tmp_path / "hf")) == 2
    with pytest.raises(varve.InvalidArgumentError, match="holds no model"):
        varve.unshard(tmp_path / "c", tmp_path / "out")


def test_many_ranks_need_few_open_files(tmp_path: Path) -> None:
    modules = {"": {"w": torch.arange(600.0).reshape(60, 10), "b": torch.arange(7.0)}}
    made = LocalRun(modules, 100).build()
    folder = made.write(tmp_path / "step1")
    job = "import sys, varve; varve.unshard(sys.argv[1], sys.argv[2])"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    subprocess.run(
        [sys.executable, "-c", job, str(folder), str(tmp_path / "out")],
        check=True,
        preexec_fn=limit,
        env={**os.environ},
    )
    model = torch.load(tmp_path / "out" / "model.pt")
    assert all(torch.equal(model[name], tensor) for name, tensor in made.full().items())


def test_hfai_without_an_optimizer_leaves_no_trace_of_one(tmp_path: Path) -> None:
    (tmp_path / "latest.pt").mkdir()
    part = {
        "__nshards__": 1,
        "__version__": "2.0.0",
        "model": [({"w": torch.arange(3.0)}, {})],
        "optimizer": [],
        "epoch": 3,
        "seen": [],
    }
    torch.save(part, tmp_path / "latest.pt" / "PART_000.pt")
    varve.unshard(tmp_path / "latest.pt", tmp_path / "out")
    assert torch.load(tmp_path / "out" / "train.pt") == {"epoch": 3, "seen": []}
    assert not (tmp_path / "out" / "optim.pt").exists()
