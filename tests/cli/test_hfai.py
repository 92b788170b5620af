"""Every verb on checkpoints that hfai.checkpoint 2.0.0 has written (tests/golden/hfai)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import varve

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hfai"
GOOD = ["world1", "world4", "world4-two-models"]
BROKEN = sorted(path.name for path in GOLDEN.iterdir() if path.name.startswith("broken"))


@pytest.mark.parametrize("case", GOOD)
def test_good_sets_are_shown_verified_and_written_in_every_format(run, run_json, tmp_path, case):
    path, truth = GOLDEN / case, json.loads((GOLDEN / case / "expected.json").read_text())
    assert run_json("inspect", path)["format"] == "hfai"
    assert "clean" in run("verify", path).stdout
    for target in ("varve", "dcp", "torch"):
        run("convert", path, tmp_path / target, "--to", target)
        assert "different: 0" in run("diff", path, tmp_path / target).stdout
    run("export", path, tmp_path / "model.safetensors", "--include", "model.*")
    names = {f"model.{i}.{name}" for i, model in enumerate(truth["model"]) for name in model}
    assert set(varve.open(tmp_path / "model.safetensors").tensors) == names


def test_ls_shows_worlds_and_what_is_wrong(run):
    text = run("ls", GOLDEN).stdout
    for line in text.splitlines()[1:]:
        states = ("whole",) if line.split()[0] in GOOD else ("damaged: ", "incomplete: ")
        assert line.split()[1] == "hfai" and any(state in line for state in states), line


@pytest.mark.parametrize("case", BROKEN)
def test_verify_finds_what_is_missing_stale_or_overlaps(binary, case):
    done = subprocess.run([binary, "verify", GOLDEN / case], capture_output=True, text=True)
    assert done.returncode in (1, 2)
    for name in json.loads((GOLDEN / case / "expected.json").read_text())["must_name"]:
        assert name in done.stdout + done.stderr


def test_unshard_writes_model_optimizer_and_the_callers_entries(run, tmp_path):
    run("unshard", GOLDEN / "world4", tmp_path / "out", "--to", "torch")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".varve-uploaded",
        "model.pt",
        "optim.pt",
        "train.pt",
    ]
    assert varve.read(tmp_path / "out" / "train.pt") == {"epoch": 3, "step": 17, "note": "…"}
    assert "state.0.exp_avg" in varve.open(tmp_path / "out" / "optim.pt").tensors


def test_a_directory_called_pt_is_a_checkpoint_and_can_be_removed(run, tmp_path):
    shutil.copytree(GOLDEN / "world4", tmp_path / "latest.pt")
    assert "hfai" in run("ls", tmp_path).stdout
    run("rm", tmp_path / "latest.pt")
    assert list(tmp_path.iterdir()) == []
