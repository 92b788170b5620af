"""Directories in which there are files of several formats: each command takes the same one."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path

import numpy as np

import varve
from varve import _core

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
INDEX = "model.safetensors.index.json"


def test_ls_takes_an_index_of_dcp_before_a_folder_of_olmos_name(run_json, folder):
    path = folder / "step1"
    shutil.copytree(GOLDEN / "dcp" / "2.14.1" / "single", path)
    (path / "model_and_optim").mkdir()
    (found,) = run_json("ls", folder)
    assert (found["format"], found["state"]) == ("dcp", "whole")


def test_ls_takes_safetensors_for_varves_own_by_the_numbers_in_their_names_only(run_json, folder):
    (folder / "step1").mkdir()
    shutil.copy(
        GOLDEN / "olmo" / "unsharded-safetensors" / "model.safetensors",
        folder / "step1" / "data-train.safetensors",
    )
    (found,) = run_json("ls", folder)
    assert (found["format"], found["state"]) == ("safetensors", "whole")


def test_rm_takes_olmos_state_before_a_model_that_was_exported_beside_it(run_json, folder):
    path = folder / "step1"
    shutil.copytree(GOLDEN / "olmo" / "torch-new-world2", path)
    (path / "expected.json").unlink()
    (path / INDEX).write_text('{"weight_map": {}}')
    assert run_json("ls", folder)[0]["format"] == "olmo-torch-new"
    assert run_json("rm", path, "--dry-run")["others"] == [INDEX]


def test_rm_takes_the_trainers_state_of_older_checkpoints_of_olmo(run_json, folder):
    path = folder / "step1-unsharded"
    shutil.copytree(GOLDEN / "olmo" / "unsharded-ids", path)
    (path / "expected.json").unlink()
    (path / "train.pt").rename(path / "other.pt")
    assert run_json("rm", path, "--dry-run")["others"] == []


def test_rm_takes_what_olmo_core_has_finished(run_json, folder):
    path = folder / "step10"
    shutil.copytree(GOLDEN / "olmo" / "core-step10-fsdp2" / "step10", path)
    assert run_json("ls", folder)[0]["state"] == "whole"
    assert run_json("rm", path, "--dry-run")["others"] == []


def test_convert_names_the_classes_that_a_file_of_torch_does_not_keep(run, folder):
    varve.save({"w": np.ones(2), "seen": deque([1])}, folder / "a")
    told = run("convert", folder / "a", folder / "b.pt", "--to", "torch")
    line = 'left out the class collections.deque of 1 entry, "seen": '
    assert line + "the target has inner tensors or plain values" in told.stdout


def test_a_conversion_of_a_step_is_no_step_of_its_run(run, run_json, folder):
    """The note of a later attempt would go before all steps of the run that the target is in."""
    note = _core.manage.step_note(100, 7, None, 0, {"loss": 1.0})
    files = {"varve-step.json": note, "config.json": b"{}"}
    varve.save({"w": np.ones(4)}, folder / "step-100", files=files)
    for target in ("varve", "dcp", "hf"):
        done = run_json("convert", folder / "step-100", folder / target, "--to", target)
        assert done["files"] == ["config.json"]
        assert not (folder / target / "varve-step.json").exists()
    (folder / "run").mkdir()
    (folder / "varve").rename(folder / "run" / "step-100")
    (step,) = varve.steps(folder / "run")
    assert (step.attempt, step.metrics) == (0, {})
