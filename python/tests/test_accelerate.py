"""varve.integrations.accelerate with the real Accelerator, on CPU."""

from __future__ import annotations

import copy
import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch

if not os.environ.get("VARVE_REQUIRE_BUILD"):
    pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate_jobs import (
    Loop,
    die_in_the_second_save,
    load_sharded,
    resume,
    save_sharded,
    save_without_temporary_directory_on_rank_1,
    through_fsdp_functions,
    two_epochs,
)
from frameworks import forget_the_default_device
from ranks import collect, run_ranks

import varve
import varve.torch
from varve.integrations import _contract
from varve.integrations import accelerate as adapter
from varve.integrations.accelerate import VarveCheckpoints, VarveSaving

ROOT = Path(__file__).parents[2]


def assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


# ---- one process ----


@pytest.mark.parametrize("seedable", [False, True])
def test_a_loaded_loop_goes_on_with_the_same_batches_dropout_and_losses(
    tmp_path: Path, seedable: bool
) -> None:
    loop = Loop(seedable=seedable)
    loop.epoch()
    loop.checkpoints.save_state(tmp_path / "one").result()
    losses = loop.epoch()
    again = Loop(seedable=seedable)
    again.checkpoints.load_state(tmp_path / "one")
    assert again.counter.seen == 8
    assert again.schedule.get_last_lr() == [pytest.approx(0.01 * 0.9**8)]
    assert again.epoch() == losses
    assert_equal(again.weights(), loop.weights())


def test_a_folder_for_hugging_face_has_the_names_of_the_only_model(tmp_path: Path) -> None:
    loop = Loop()
    loop.epoch()
    loop.checkpoints.save_state(tmp_path / "one").result()
    varve.convert(tmp_path / "one", tmp_path / "hf", "hf")
    assert_equal(dict(varve.read(tmp_path / "hf")), loop.weights())


def test_the_optimizers_state_is_made_beside_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    loop.epoch()
    loop.checkpoints.save_state(tmp_path / "one").result()
    again = Loop()
    elsewhere = forget_the_default_device(monkeypatch)
    again.checkpoints.load_state(tmp_path / "one")
    assert [name for name in elsewhere if not name.endswith(".step")] == []
    made = again.accelerator._optimizers[0].state_dict()["state"]
    wanted = loop.accelerator._optimizers[0].state_dict()["state"]
    assert all(torch.equal(made[at]["exp_avg"], wanted[at]["exp_avg"]) for at in wanted)


def test_a_load_replaces_the_state_that_an_optimizer_has(tmp_path: Path) -> None:
    loop = Loop()
    loop.epoch()
    loop.checkpoints.save_state(tmp_path / "one").result()
    optimizer = loop.accelerator._optimizers[0]
    wanted = copy.deepcopy(optimizer.state_dict()["state"])
    loop.epoch()
    for entries in optimizer.state.values():
        entries["of_a_late_step"] = torch.ones(3)  # The checkpoint has none.
    loop.checkpoints.load_state(tmp_path / "one")
    found = optimizer.state_dict()["state"]
    assert all(found[at].keys() == wanted[at].keys() for at in wanted)
    assert all(torch.equal(found[at]["exp_avg"], wanted[at]["exp_avg"]) for at in wanted)


def test_install_makes_the_accelerators_own_methods_save_and_load(tmp_path: Path) -> None:
    loop = Loop()
    loop.checkpoints.install()
    assert loop.accelerator.save_state(tmp_path / "one") == str(tmp_path / "one")
    loop.accelerator.end_training()
    assert varve.verify(tmp_path / "one") == []
    saved = loop.weights()
    loop.epoch()
    loop.accelerator.load_state(tmp_path / "one")
    assert_equal(loop.weights(), saved)
    with pytest.raises(varve.InvalidArgumentError, match="map_location has no meaning"):
        loop.accelerator.load_state(tmp_path / "one", map_location="cpu")


def test_automatic_naming_keeps_total_limit_and_counts_on_after_a_resume(tmp_path: Path) -> None:
    loop = Loop(tmp_path, limit=2)
    for _ in range(4):
        loop.checkpoints.save_state()
    loop.checkpoints.wait()
    folder = tmp_path / "checkpoints"
    assert sorted(os.listdir(folder)) == ["checkpoint_2", "checkpoint_3"]
    (folder / "checkpoint_3" / "varve.json").unlink()
    again = Loop(tmp_path, limit=2)
    with pytest.warns(RuntimeWarning, match="checkpoint_3 is passed over"):
        assert again.checkpoints.load_state() == str(folder / "checkpoint_2")
    again.checkpoints.save_state()
    again.checkpoints.wait()
    assert varve.verify(folder / "checkpoint_3") == []


def test_without_a_whole_checkpoint_load_state_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError, match="checkpoints has no whole checkpoint"):
        Loop(tmp_path).checkpoints.load_state()


def test_files_of_save_hooks_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    loop = Loop()
    read = []

    def save(models: Any, weights: Any, folder: str) -> None:
        Path(folder, "inner").mkdir()
        Path(folder, "inner", "note.txt").write_text("hello")

    def load(models: Any, folder: str) -> None:
        read.append(Path(folder, "inner", "note.txt").read_text())

    loop.accelerator.register_save_state_pre_hook(save)
    loop.accelerator.register_load_state_pre_hook(load)
    loop.checkpoints.save_state(tmp_path / "one").result()
    assert varve.files(tmp_path / "one")["inner/note.txt"] == b"hello"
    loop.checkpoints.load_state(tmp_path / "one")
    assert read == ["hello"]


def test_a_checkpoint_with_other_objects_is_refused_before_anything_changes(tmp_path: Path) -> None:
    loop = Loop()
    loop.checkpoints.save_state(tmp_path / "one").result()
    loop.epoch()
    before = loop.weights()
    loop.accelerator.register_for_checkpointing(loop.counter)
    with pytest.raises(varve.InvalidArgumentError, match="1 objects, and the accelerator has 2"):
        loop.checkpoints.load_state(tmp_path / "one")
    assert_equal(loop.weights(), before)


@pytest.mark.parametrize("on_failure", ["raise", "log"])
def test_a_failed_save_is_raised_by_wait_or_logged(
    tmp_path: Path, on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "notes.txt").write_text("mine")
    loop = Loop(saving=VarveSaving(on_failure=on_failure))
    loop.checkpoints.save_state(tmp_path / "one")
    if on_failure == "raise":
        with pytest.raises(varve.Error, match="one"):
            loop.checkpoints.wait()
    else:
        loop.checkpoints.wait()
        assert str(tmp_path / "one") in caplog.text
    assert (tmp_path / "one" / "notes.txt").read_text() == "mine"


def test_save_on_each_node_is_refused() -> None:
    loop = Loop()
    loop.accelerator.project_configuration.save_on_each_node = True
    with pytest.raises(varve.UnsupportedError, match="one checkpoint per node"):
        VarveCheckpoints(loop.accelerator)


def test_every_public_name_and_option_is_on_the_page() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    fields = [field.name for field in dataclasses.fields(VarveSaving)]
    assert [name for name in [*adapter.__all__, *fields] if name not in page] == []


def test_every_name_that_the_adapter_needs_is_there() -> None:
    assert _contract.differences(adapter.NEEDED) == []
    assert [n for n in adapter.ATTRIBUTES if not hasattr(Loop().accelerator, n)] == []


def test_without_accelerate_the_import_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['accelerate'] = None\n"
        "try:\n    import varve.integrations.accelerate\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert 'pip install "varve[accelerate]"' in programs.output(code)


# ---- several ranks ----


def test_two_ranks_resume_with_equal_losses_and_one_rank_with_the_same_batches(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "one")
    still: dict[str, Any] = {"dropout": 0.0, "seedable": True}
    (losses, weights), _ = run_ranks(2, two_epochs, path, True, False, still)
    for same_losses, same_weights in run_ranks(2, two_epochs, path, False, True, still):
        assert same_losses == losses
        assert_equal(same_weights, weights)
    # One rank takes both ranks' batches in one: the same numbers, added in another order. Its schedule
    # would step once where that of two ranks steps twice, so the weights are compared before.
    model = varve.torch.read(path, "models.0")["models"]
    assert len(model) == 1
    ((alone, _),) = run_ranks(1, two_epochs, path, False, True, {**still, "batch": 8})
    assert alone[0] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_a_temporary_directory_that_one_rank_lacks_fails_the_save_on_all(tmp_path: Path) -> None:
    raised = run_ranks(2, save_without_temporary_directory_on_rank_1, str(tmp_path))
    assert all(
        text.startswith("UnavailableError") and "rank 1" in text and "gone" in text
        for text in raised
    ), raised
    states = {entry.name: entry.state for entry in varve.list_checkpoints(tmp_path)}
    assert states == {"one": "failed", "two": "whole"}


@pytest.mark.slow
def test_ranks_killed_in_a_save_resume_from_the_newest_good_checkpoint(tmp_path: Path) -> None:
    project = str(tmp_path / "run")
    assert collect(2, die_in_the_second_save, project, dead=(0, 1)) == {}
    whole = run_ranks(2, two_epochs, str(tmp_path / "one"), False, False, {})
    resumed = run_ranks(2, resume, project)
    for (losses, weights), (name, seen, same_losses, same_weights) in zip(
        whole, resumed, strict=True
    ):
        assert (name, seen) == ("checkpoint_0", 8)
        assert same_losses == losses
        assert_equal(same_weights, weights)
    assert varve.verify(os.path.join(project, "checkpoints", "checkpoint_1")) == []


def test_sharded_modules_are_saved_by_two_ranks_and_loaded_by_one_and_three(tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    saved = run_ranks(2, save_sharded, path)[0]
    assert len(varve.torch.open(path)["models.0.0.weight"].chunks) == 2
    for size in (1, 3):
        for loaded in run_ranks(size, load_sharded, path):
            assert_equal(loaded, saved)


def test_the_fsdp_functions_of_accelerate_write_whole_checkpoints_that_stock_opens(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "one")
    saved = run_ranks(2, through_fsdp_functions, path, True)[0]
    for loaded in run_ranks(1, through_fsdp_functions, path, False):
        assert_equal(loaded, saved)
    for loaded in run_ranks(2, through_fsdp_functions, path, False, True):
        assert_equal(loaded, saved)
