"""varve.integrations.transformers with the real Trainer, on CPU."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import scripts
import torch

if not os.environ.get("VARVE_REQUIRE_BUILD"):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

import transformers
from frameworks import forget_the_default_device
from ranks import collect, run_ranks
from transformers import AutoModelForCausalLM, EarlyStoppingCallback, Trainer, TrainerCallback
from transformers_jobs import Tokens, losses_of, tiny, train, trainer_of

import varve
import varve.torch
from varve.integrations import _contract, _hf_folders
from varve.integrations import transformers as adapter
from varve.integrations.transformers import VarveCallback, VarveSaving, VarveTrainer

transformers.logging.set_verbosity_error()

ROOT = Path(__file__).parents[2]


def checkpoints(out: Path) -> list[str]:
    """The names of the whole checkpoints in a run's folder."""
    return [e.name for e in varve.list_checkpoints(out) if e.state == "whole"]


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def flip_a_byte(checkpoint: Path) -> None:
    data = checkpoint / "data-00000-of-00001.safetensors"
    with open(data, "r+b") as file:
        file.seek(8192)
        byte = file.read(1)[0]
        file.seek(8192)
        file.write(bytes([byte ^ 1]))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of 12 steps that nothing interrupted, with checkpoints at 4, 8 and 12."""
    out = tmp_path_factory.mktemp("reference")
    trainer = trainer_of(out, 12)
    trainer.train()
    return out, trainer


# ---- what a checkpoint is ----


def test_the_folder_opens_with_from_pretrained_and_has_the_trainers_files(
    reference: tuple[Path, Any],
) -> None:
    out, trainer = reference
    newest = out / "checkpoint-12"
    assert checkpoints(out) == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]
    assert {"config.json", "generation_config.json", "training_args.bin"} <= set(
        varve.files(newest)
    )
    model, info = AutoModelForCausalLM.from_pretrained(newest, output_loading_info=True)
    assert_equal(weights_of(trainer), dict(model.state_dict()))
    assert not info["missing_keys"] and not info["mismatched_keys"]
    unexpected = {re.sub(r"\d+", "N", name) for name in info["unexpected_keys"]}
    assert unexpected == {
        "__varve__.values.rankN",
        *(f"optimizer.state.N.{name}" for name in ("exp_avg", "exp_avg_sq", "step")),
    }
    assert torch.load(newest / "training_args.bin", weights_only=False).max_steps == 12
    assert varve.verify(newest) == []


def test_the_weights_are_stored_once_and_tied_ones_under_one_name(
    reference: tuple[Path, Any],
) -> None:
    out, trainer = reference
    stored = varve.torch.open(out / "checkpoint-12")
    assert "lm_head.weight" not in stored and "transformer.wte.weight" in stored
    index = json.loads((out / "checkpoint-12" / "model.safetensors.index.json").read_text())
    model = sum(p.numel() * 4 for p in trainer.model.parameters())
    assert index["metadata"]["total_size"] == model
    assert sum(t.nbytes for t in stored.tensors.values()) < 3 * model + 4096


def test_varve_converts_the_checkpoint_to_a_folder_with_the_model_alone(
    reference: tuple[Path, Any], tmp_path: Path
) -> None:
    out, trainer = reference
    varve.convert(out / "checkpoint-12", tmp_path / "hf", "hf")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    assert_equal(weights_of(trainer), dict(model.state_dict()))


def test_the_tokenizer_is_in_the_checkpoint(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    special = {"unk_token": "[UNK]", "pad_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    trainer_of(tmp_path, 4, trainer={"processing_class": tokenizer}).train()
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint-4").get_vocab()["b"] == 1


# ---- resuming ----


def test_a_resumed_run_has_the_losses_and_weights_of_an_uninterrupted_one(
    reference: tuple[Path, Any], tmp_path: Path
) -> None:
    trainer_of(tmp_path, 8).train()
    resumed = trainer_of(tmp_path, 12)
    resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(reference[1])
    assert_equal(weights_of(resumed), weights_of(reference[1]))


def test_the_optimizers_state_is_made_beside_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_of(tmp_path, 4).train()
    resumed = trainer_of(tmp_path, 5)
    elsewhere = forget_the_default_device(monkeypatch)
    resumed.train(resume_from_checkpoint=True)
    assert [name for name in elsewhere if not name.endswith(".step")] == []


def test_damaged_and_incomplete_checkpoints_are_passed_over_with_a_warning_and_saved_again(
    reference: tuple[Path, Any], tmp_path: Path
) -> None:
    trainer_of(tmp_path, 12).train()
    (tmp_path / "checkpoint-12" / "varve.json").unlink()
    flip_a_byte(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-99").mkdir()
    resumed = trainer_of(tmp_path, 12)
    with pytest.warns(RuntimeWarning) as caught:
        resumed.train(resume_from_checkpoint=True)
    passed = [str(w.message) for w in caught if "passed over" in str(w.message)]
    assert [re.search(r"checkpoint-(\d+) is", text)[1] for text in passed] == ["99", "12", "8"]  # type: ignore[index]
    assert losses_of(resumed) == losses_of(reference[1])
    assert checkpoints(tmp_path) == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]
    assert all(varve.verify(tmp_path / name) == [] for name in checkpoints(tmp_path))


def test_without_a_good_checkpoint_the_trainer_decides(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer_of(tmp_path, 4).train(resume_from_checkpoint=True)
    trainer_of(tmp_path, 4).train()
    flip_a_byte(tmp_path / "checkpoint-4")
    with pytest.warns(RuntimeWarning, match="passed over"), pytest.raises(varve.Error):
        trainer_of(tmp_path, 8).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_the_stock_trainer_is_resumed_from(
    reference: tuple[Path, Any], tmp_path: Path
) -> None:
    trainer_of(tmp_path, 4, kind=Trainer).train()
    resumed = trainer_of(tmp_path, 12)
    resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(reference[1])
    assert checkpoints(tmp_path)[-2:] == ["checkpoint-8", "checkpoint-12"]


def test_a_second_run_replaces_the_checkpoints_of_the_first(tmp_path: Path) -> None:
    trainer_of(tmp_path, 4).train()
    other = trainer_of(tmp_path, 4, learning_rate=1e-3)
    other.train()
    stored = varve.torch.read(tmp_path / "checkpoint-4", "transformer.ln_f.weight", flat=True)
    assert torch.equal(stored["transformer.ln_f.weight"], other.model.transformer.ln_f.weight)


def test_a_relative_output_dir_is_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer_of("run", 4).train()
    resumed = trainer_of("run", 8)
    resumed.train(resume_from_checkpoint=True)
    assert checkpoints(tmp_path / "run") == ["checkpoint-4", "checkpoint-8"]
    assert resumed.state.global_step == 8


def test_save_only_model_leaves_the_optimizer_out_and_says_so_on_resume(tmp_path: Path) -> None:
    trainer_of(tmp_path, 4, save_only_model=True).train()
    _, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint-4", output_loading_info=True
    )
    assert info["unexpected_keys"] == {"__varve__.values.rank00000"}
    with pytest.warns(RuntimeWarning, match="has the model alone"):
        trainer_of(tmp_path, 5).train(resume_from_checkpoint=True)


# ---- rotation and the best model ----


def test_save_total_limit_keeps_the_newest(tmp_path: Path) -> None:
    trainer_of(tmp_path, 10, save_steps=2, save_total_limit=2).train()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-10", "checkpoint-8"]


@pytest.mark.parametrize(("limit", "left"), [(2, {"2", "8"}), (1, {"2"})])
def test_the_best_checkpoint_is_kept_and_loaded_at_the_end(
    tmp_path: Path, limit: int, left: set[str]
) -> None:
    class Worse(Trainer):
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_loss": float(self.state.global_step)}  # The first is the best.

    class WorseVarve(VarveTrainer, Worse):
        pass

    trainer = trainer_of(
        tmp_path,
        8,
        kind=WorseVarve,
        trainer={"eval_dataset": Tokens(8)},
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        save_total_limit=limit,
        metric_for_best_model="loss",
        greater_is_better=False,
        load_best_model_at_end=True,
    )
    trainer.train()
    assert {name.split("-")[1] for name in os.listdir(tmp_path)} == left
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert_equal(dict(best.state_dict()), weights_of(trainer))
    saved = json.loads(varve.files(tmp_path / "checkpoint-2")["trainer_state.json"])
    assert saved["best_model_checkpoint"] == str(tmp_path / "checkpoint-2")


def test_the_states_of_callbacks_are_saved_and_restored(tmp_path: Path) -> None:
    options = {
        "save_steps": 2,
        "eval_steps": 2,
        "eval_strategy": "steps",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "restore_callback_states_from_checkpoint": True,
    }
    stopping = {"eval_dataset": Tokens(8), "callbacks": [EarlyStoppingCallback(7, 0.25)]}
    trainer_of(tmp_path, 4, trainer=stopping, **options).train()
    stopping["callbacks"] = [EarlyStoppingCallback(1, 0.0)]
    resumed = trainer_of(tmp_path, 6, trainer=stopping, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    restored = [
        c for c in resumed.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)
    ]
    assert [c.early_stopping_patience for c in restored] == [7]


# ---- when things go wrong ----


@pytest.mark.parametrize("on_failure", ["raise", "log"])
def test_a_failed_save_is_raised_or_logged_and_removes_nothing(
    tmp_path: Path, on_failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "checkpoint-4" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    trainer = trainer_of(tmp_path, 8, saving=VarveSaving(on_failure=on_failure))
    if on_failure == "raise":
        with pytest.raises(varve.Error, match="checkpoint-4"):
            trainer.train()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            trainer.train()
        assert checkpoints(tmp_path) == ["checkpoint-8"]
        assert "checkpoint-4" in caplog.text
    assert mine.read_text() == "mine"


def test_a_temporary_directory_that_is_gone_is_a_failed_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(varve.Error, match="gone"):
        trainer_of(tmp_path / "raise", 8).train()

    class Mend(TrainerCallback):
        def on_save(self, *arguments: Any, **kwargs: Any) -> None:
            (tmp_path / "gone").mkdir(exist_ok=True)

    options = {"callbacks": [Mend()]}
    with pytest.warns(RuntimeWarning, match="gone"):
        trainer_of(tmp_path / "log", 8, saving=VarveSaving("log"), trainer=options).train()
    assert checkpoints(tmp_path / "log") == ["checkpoint-8"] and "gone" in caplog.text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"save_on_each_node": True}, "save_on_each_node=True wants one checkpoint per node"),
        ({"push_to_hub": True}, 'use hub_strategy="end"'),
    ],
)
def test_what_would_be_half_done_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda *_: None)  # It asks the hub.
    with pytest.raises(varve.UnsupportedError, match=message):
        trainer_of(tmp_path, 4, **more)


def test_what_is_damaged_makes_way_for_a_save_and_is_not_removed(tmp_path: Path) -> None:
    marked, mine, whole, broken = (tmp_path / name for name in ("c-1", "c-2", "c-3", "c-4"))
    for folder in (marked, mine):
        folder.mkdir()
        (folder / "marker.txt").touch()
    (mine / "notes.txt").touch()
    for path in (whole, broken):
        varve.torch.save({"w": torch.zeros(3)}, path)
    (broken / "manifest.bin").unlink()
    for path in (marked, mine, whole, broken):
        _hf_folders.clear_way(str(path), ["marker.txt"])
    hidden, *names = sorted(os.listdir(tmp_path))
    assert names == ["c-2", "c-3"]
    assert "varve-damaged" in hidden
    assert len(os.listdir(mine)) == 2


def test_a_sigterm_with_enable_jit_checkpoint_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    class Terminate(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = trainer_of(
        tmp_path,
        400,
        trainer={"callbacks": [Terminate()]},
        enable_jit_checkpoint=True,
        save_steps=500,
    )
    for callback in trainer.callback_handler.callbacks:
        if hasattr(callback, "jit_manager"):
            callback.jit_manager.kill_wait = 0
    trainer.train()
    step = trainer.state.global_step
    assert 3 <= step < 400
    (name,) = checkpoints(tmp_path)
    assert varve.verify(tmp_path / name) == []
    assert "checkpoint-is-incomplete.txt" not in os.listdir(tmp_path / name)
    resumed = trainer_of(tmp_path, step + 2)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == step + 2


# ---- what else there is ----


def test_callbacks_learn_when_a_checkpoint_is_durable(tmp_path: Path) -> None:
    seen = []

    class Durable(VarveCallback):
        def on_durable(self, args: Any, state: Any, *, path: str, **kwargs: Any) -> None:
            assert varve.verify(path) == []
            seen.append(os.path.basename(path))

    trainer_of(tmp_path, 8, trainer={"callbacks": [Durable()]}).train()
    assert seen == ["checkpoint-4", "checkpoint-8"]


def test_a_peft_model_saves_its_adapter_alone_and_resumes(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")

    def trainer(out: Path, steps: int) -> Any:
        return trainer_of(out, steps, model=peft.get_peft_model(tiny(0.0), config))

    whole = trainer(tmp_path / "whole", 8)
    whole.train()
    trainer(tmp_path / "run", 4).train()
    folder = tmp_path / "run" / "checkpoint-4"
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(varve.files(folder))
    assert all(name.startswith("optimizer.") for name in varve.torch.open(folder).tensors)
    resumed = trainer(tmp_path / "run", 8)
    resumed.train(resume_from_checkpoint=True)
    assert losses_of(resumed) == losses_of(whole)
    peft.PeftModel.from_pretrained(tiny(0.0), folder)


def test_every_public_name_and_option_is_on_the_page() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    fields = [field.name for field in dataclasses.fields(VarveSaving)]
    assert [name for name in [*adapter.__all__, *fields] if name not in page] == []


def test_every_name_that_the_adapter_needs_is_there(tmp_path: Path) -> None:
    assert _contract.differences(adapter.NEEDED) == []
    stock = trainer_of(tmp_path, 1, kind=Trainer)
    assert [name for name in adapter.ATTRIBUTES if not hasattr(stock, name)] == []


def test_a_name_that_is_gone_is_named_with_the_version() -> None:
    table = {"transformers.trainer:Trainer._gone": (), "transformers.trainer:Trainer._save": ("x",)}
    with pytest.raises(varve.UnsupportedError) as error:
        _contract.require("adapter", "transformers", "5.23.0", table)
    assert transformers.__version__ in str(error.value)
    assert "Trainer._gone does not exist" in str(error.value)
    assert "Trainer._save has no parameter 'x'" in str(error.value)


def test_without_transformers_the_import_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "try:\n    import varve.integrations.transformers\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert 'pip install "varve[transformers]"' in programs.output(code)


# ---- several ranks ----


@pytest.mark.slow
def test_ranks_killed_in_a_save_resume_from_the_newest_good_step_with_equal_losses(
    tmp_path: Path,
) -> None:
    whole = run_ranks(2, train, str(tmp_path / "whole"), 10, False, 0, {})
    run = str(tmp_path / "run")
    assert collect(2, train, run, 10, False, 8, {}, dead=(0, 1)) == {}
    assert checkpoints(tmp_path / "run") == ["checkpoint-4"]
    alone = tmp_path / "alone"
    subprocess.run(["cp", "-r", run, str(alone)], check=True)
    again = run_ranks(2, train, run, 10, True, 0, {})
    for (losses, weights), (same_losses, same_weights) in zip(whole, again, strict=True):
        assert losses == same_losses
        assert all(np.array_equal(weights[name], same_weights[name]) for name in weights)
    # One rank takes both ranks' batches in one: the same numbers, added in another order.
    ((losses, _),) = run_ranks(
        1, train, str(alone), 10, True, 0, {"per_device_train_batch_size": 8}
    )
    assert losses.keys() == whole[0][0].keys()
    np.testing.assert_allclose(list(losses.values()), list(whole[0][0].values()), rtol=1e-5)


def test_the_weights_are_spread_over_the_ranks_and_open_with_from_pretrained(
    tmp_path: Path,
) -> None:
    (_, weights), _ = run_ranks(2, train, str(tmp_path), 4, False, 0, {})
    index = json.loads((tmp_path / "checkpoint-4" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 2
    stored = varve.torch.open(tmp_path / "checkpoint-4")
    for name, file in index["weight_map"].items():
        assert [chunk.file for chunk in stored[name].chunks] == [file]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    for name, tensor in model.state_dict().items():
        assert np.array_equal(tensor.numpy(), weights[name])


@pytest.mark.slow
def test_the_example_trains_and_goes_on_where_it_was(tmp_path: Path) -> None:
    example = ROOT / "examples" / "hf_trainer.py"
    first = scripts.run(2, example, tmp_path, 6)
    assert "step 6 loss" in first
    more = scripts.run(0, example, tmp_path, 8)
    # The line of step 5 comes from the checkpoint.
    assert re.search(r"step 5 .*", first)[0] in more  # type: ignore[index]
    assert "step 8 loss" in more
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-6", "checkpoint-8"]
