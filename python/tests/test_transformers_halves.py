"""Half checkpoints in the folder of a Trainer's run, Varve's and the stock Trainer's: none is resumed from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if not os.environ.get("VARVE_REQUIRE_BUILD"):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

from transformers import Trainer, TrainerCallback
from transformers_jobs import losses_of, tiny, trainer_of

import varve
from varve.integrations import _hf_folders
from varve.integrations.transformers import VarveSaving


def with_adapter() -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    return peft.get_peft_model(tiny(0.0), config)


MODELS: dict[str, Callable[[], Any]] = {"peft": with_adapter, "whole model": lambda: tiny(0.0)}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("kept", ["manifest.bin", "nothing"])
def test_a_checkpoint_whose_data_a_purge_has_removed_is_passed_over_and_saved_again(
    kind: str, kept: str, tmp_path: Path
) -> None:
    make = MODELS[kind]
    reference = trainer_of(tmp_path / "whole", 12, model=make())
    reference.train()
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", run)
    newest = run / "checkpoint-12"
    for path in newest.iterdir():
        if path.name.startswith(("data-", "varve.json")) or path.name == "manifest.bin" != kept:
            path.unlink()
    left = os.listdir(newest)
    resumed = trainer_of(run, 12, model=make())
    with pytest.warns(RuntimeWarning, match="checkpoint-12 is passed over"):
        resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(reference)
    assert varve.verify(newest) == []
    (hidden,) = run.glob(".checkpoint-*")
    assert set(left) <= set(os.listdir(hidden))


@pytest.mark.parametrize("kind", MODELS)
def test_an_explicit_half_checkpoint_of_varve_is_refused(kind: str, tmp_path: Path) -> None:
    make = MODELS[kind]
    trainer_of(tmp_path, 4, model=make()).train()
    half = tmp_path / "checkpoint-4"
    for name in ("data-00000-of-00001.safetensors", "varve.json"):
        (half / name).unlink()
    with pytest.raises(varve.Error):
        trainer_of(tmp_path, 8, model=make()).train(resume_from_checkpoint=str(half))


@pytest.mark.parametrize(
    "lost", ["optimizer.pt", "scheduler.pt", "model.safetensors", "trainer_state.json"]
)
def test_a_half_checkpoint_of_the_stock_trainer_is_passed_over_and_saved_again(
    lost: str, tmp_path: Path
) -> None:
    reference = trainer_of(tmp_path, 8, kind=Trainer)
    reference.train()
    (tmp_path / "checkpoint-8" / lost).unlink()
    resumed = trainer_of(tmp_path, 8)
    with pytest.warns(RuntimeWarning, match=f"checkpoint-8 is passed over.*{lost}"):
        resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(reference)
    assert varve.verify(tmp_path / "checkpoint-8") == []


def test_a_stock_checkpoint_that_lacks_a_shard_of_its_index_is_passed_over(tmp_path: Path) -> None:
    trainer_of(tmp_path, 8, kind=Trainer).train()
    newest = tmp_path / "checkpoint-8"
    shard = "model-00001-of-00002.safetensors"
    (newest / "model.safetensors").unlink()
    index = newest / "model.safetensors.index.json"
    for text in (f'{{"weight_map": {{"lm_head.weight": "{shard}"}}}}', '{"weight'):
        index.write_text(text)
        with pytest.warns(RuntimeWarning, match=r"checkpoint-8 is passed over.*index\.json"):
            assert trainer_of(tmp_path, 8)._varve_newest() == str(tmp_path / "checkpoint-4")
    (newest / shard).touch()
    index.write_text(f'{{"weight_map": {{"lm_head.weight": "{shard}"}}}}')
    assert trainer_of(tmp_path, 8)._varve_newest() == str(newest)


def test_a_stock_checkpoint_of_the_model_alone_needs_no_optimizer(tmp_path: Path) -> None:
    trainer_of(tmp_path, 4, kind=Trainer, save_only_model=True).train()
    newest = str(tmp_path / "checkpoint-4")
    assert trainer_of(tmp_path, 8, save_only_model=True)._varve_newest() == newest
    with pytest.warns(RuntimeWarning, match=r"no optimizer\.pt"):
        assert trainer_of(tmp_path, 8)._varve_newest() is None


def test_a_folder_of_others_stays_where_the_caller_has_no_reason_against_it(tmp_path: Path) -> None:
    mine = tmp_path / "checkpoint-1"
    mine.mkdir()
    (mine / "notes.txt").touch()
    _hf_folders.clear_way(str(mine), [])
    _hf_folders.clear_way(str(mine), [], lambda _: None)
    assert mine.is_dir()
    for _ in range(2):
        mine.mkdir(exist_ok=True)
        (mine / "notes.txt").touch()
        _hf_folders.clear_way(str(mine), [], lambda _: "it is half")
    assert sorted(os.listdir(tmp_path)) == [
        ".checkpoint-1.passed-over-1",
        ".checkpoint-1.passed-over-2",
    ]


@pytest.mark.parametrize("rate", [0, 50_000])
def test_a_sigterm_behind_a_save_of_the_same_step_leaves_a_whole_checkpoint(
    tmp_path: Path, rate: int
) -> None:
    """The Trainer's callback puts its sentinel where that save, which is under way, is to go."""
    managers: list[Any] = []

    class Ask(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            managers[0].is_checkpoint_requested = state.global_step == 2

    trainer = trainer_of(
        tmp_path,
        4,
        saving=VarveSaving(max_write_bandwidth=rate),
        trainer={"callbacks": [Ask()]},
        save_steps=1,
        enable_jit_checkpoint=True,
    )
    callbacks = trainer.callback_handler.callbacks
    managers += [c.jit_manager for c in callbacks if hasattr(c, "jit_manager")]
    trainer.train()
    assert trainer.state.global_step == 3  # It ends the step that has begun.
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert varve.verify(tmp_path / "checkpoint-2") == []
    assert "checkpoint-is-incomplete.txt" not in os.listdir(tmp_path / "checkpoint-2")
