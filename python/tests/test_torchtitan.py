"""torchtitan's checkpoint manager over Varve: the real package's contract, states and configs, on CPU."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from pathlib import Path
from typing import Any

import programs
import pytest
import scripts
import torch
from dcp_install_jobs import by_varve
from frameworks import framework
from ranks import collect, errors_of_ranks, run_ranks
from titan_jobs import (
    Adapter,
    ComputingAdapter,
    Training,
    load,
    train,
    train_and_be_killed,
    train_with,
)

import varve
import varve.torch.dcp

framework("torchtitan")
base = framework("torchtitan.components.checkpointer.base")


from varve.integrations.torchtitan import VarveCheckpointManager  # noqa: E402

ROOT = Path(__file__).parents[2]
ASYNC = ["disabled", "async", "async_with_pinned_mem"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that saves nothing."""
    return train(0, 1, str(tmp_path_factory.mktemp("run")), 20, enable=False)


def steps_in(folder: Path) -> list[str]:
    return [e.name for e in varve.list_checkpoints(folder / "checkpoint") if e.state == "whole"]


def flip_a_bit(checkpoint: Path) -> None:
    """Damages the data so that only a load notices."""
    data = next(checkpoint.glob("data-*.safetensors"))
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)


# ---- The contract: what a newer torchtitan must not change unnoticed


def test_the_manager_has_the_methods_that_torchtitan_calls() -> None:
    hooks = {"_wait_for_saving", "_load", "_save", "_maybe_wait_for_staging", "_close"}
    assert base.BaseCheckpointManager.__abstractmethods__ == hooks
    assert not inspect.isabstract(VarveCheckpointManager)
    for hook in hooks:
        ours = inspect.signature(getattr(VarveCheckpointManager, hook)).parameters
        theirs = inspect.signature(getattr(base.BaseCheckpointManager, hook)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [
            (p.name, p.default) for p in theirs.values()
        ], hook


def test_every_option_of_torchtitan_is_one_that_the_manager_knows() -> None:
    known = {
        "enable",
        "folder",
        "interval",
        "initial_load_path",
        "initial_load_model_only",
        "initial_load_in_hf",
        "initial_load_in_hf_quantized",
        "last_save_model_only",
        "last_save_in_hf",
        "export_dtype",
        "keep_latest_k",
        "load_step",  # The Trainer gives it to load().
        "exclude_from_loading",
        "enable_first_step_checkpoint",
        "create_seed_checkpoint",  # The Trainer saves step 0.
        "load_only",
        "async_mode",  # CheckpointManager's alone.
    }
    stock = framework("torchtitan.components.checkpointer").CheckpointManager
    assert {field.name for field in dataclasses.fields(stock.Config)} == known
    ours = {field.name for field in dataclasses.fields(VarveCheckpointManager.Config)}
    assert ours - known == {"executor", "keep_every", "staging", "timeout"} and known <= ours


def test_the_manager_is_built_with_what_the_trainer_gives() -> None:
    stock = framework("torchtitan.components.checkpointer").CheckpointManager
    ours = inspect.signature(VarveCheckpointManager.__init__).parameters
    theirs = inspect.signature(stock.__init__).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_without_torchtitan_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['torchtitan'] = None; import varve.integrations.torchtitan"
    assert 'pip install "varve[torchtitan]"' in programs.run(code).stderr


# ---- Saving and resuming


@pytest.mark.parametrize("mode", ASYNC)
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    mode: Any, tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    train(0, 1, str(tmp_path), 10, async_mode=mode)
    assert steps_in(tmp_path) == ["step-5", "step-10"]
    resumed = train(0, 1, str(tmp_path), 20, async_mode=mode)
    assert resumed == {step: uninterrupted[step] for step in range(11, 21)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ASYNC)
def test_two_ranks_killed_in_a_save_resume_as_one_with_the_same_losses(
    mode: Any, tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    options = {"async_mode": mode, "ballast": 64}
    saving = str(tmp_path / "checkpoint" / "step-10")
    job = (train_and_be_killed, str(tmp_path), 20, saving, options)
    assert collect(2, *job, dead=(0, 1)) == {}
    assert steps_in(tmp_path) == ["step-5"], "step 10 was killed in the middle"
    resumed = train(0, 1, str(tmp_path), 20, **options)
    assert resumed == {step: uninterrupted[step] for step in range(6, 21)}


@pytest.mark.slow
def test_a_run_of_one_rank_resumes_on_four(tmp_path: Path, uninterrupted: dict[int, float]) -> None:
    train(0, 1, str(tmp_path), 5, async_mode="async")
    resumed = run_ranks(4, train_with, str(tmp_path), 12, {"async_mode": "async"})
    expected = {step: uninterrupted[step] for step in range(6, 13)}
    assert resumed == [expected] * 4
    assert steps_in(tmp_path) == ["step-5", "step-10", "step-12"]


def test_damaged_and_incomplete_steps_are_passed_over_with_a_warning(
    tmp_path: Path, uninterrupted: dict[int, float], caplog: pytest.LogCaptureFixture
) -> None:
    train(0, 1, str(tmp_path), 20)
    folder = tmp_path / "checkpoint"
    flip_a_bit(folder / "step-20")
    next((folder / "step-15").glob("data-*")).unlink()
    os.mkdir(folder / "step-99")  # Of torchtitan's own, before its index was written.
    (folder / "step-99" / "__0_0.distcp").write_bytes(b"half")
    resumed = train(0, 1, str(tmp_path), 20)
    assert resumed == {step: uninterrupted[step] for step in range(11, 21)}
    for name in ("step-20", "step-15", "step-99"):
        assert f"{folder / name} is passed over" in caplog.text
    assert steps_in(tmp_path)[-2:] == ["step-15", "step-20"], "replaced by whole ones"


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path) -> None:
    train(0, 1, str(tmp_path), 10)
    with pytest.raises(varve.InvalidArgumentError, match=r"ballast\.tensor"):
        Training(str(tmp_path), ballast=1).manager.load()


def test_the_state_may_change_when_staging_has_been_waited_for(tmp_path: Path) -> None:
    training = Training(str(tmp_path), ballast=256, async_mode="async_with_pinned_mem")
    training.manager.save(5)
    training.manager.maybe_wait_for_staging()
    training.manager.states["ballast"].tensor.zero_()
    training.manager.close()
    saved = varve.torch.read(tmp_path / "checkpoint" / "step-5", "ballast")["ballast"]["tensor"]
    assert torch.equal(saved, torch.arange(256 << 18, dtype=torch.float32))


def test_nothing_is_begun_anew_over_checkpoints_that_are_all_damaged(tmp_path: Path) -> None:
    train(0, 1, str(tmp_path), 5)
    flip_a_bit(tmp_path / "checkpoint" / "step-5")
    with pytest.raises(varve.PreconditionError, match="none of them can be resumed from"):
        Training(str(tmp_path)).manager.load()


@pytest.mark.parametrize("kept", [(), ("manifest.bin",)])
def test_nothing_is_begun_anew_over_steps_that_have_lost_their_files(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    train(0, 1, str(tmp_path), 5)
    step = tmp_path / "checkpoint" / "step-5"
    for file in step.iterdir():
        if file.name not in kept:
            file.unlink()
    with pytest.raises(varve.CorruptCheckpointError, match=r"no step in .* is whole; step-5"):
        Training(str(tmp_path)).manager.load()


def test_a_step_that_is_asked_for_is_loaded_or_an_error(
    tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    train(0, 1, str(tmp_path), 15)
    training = Training(str(tmp_path))
    assert training.manager.load(step=5)
    assert training.run(7) == {step: uninterrupted[step] for step in (6, 7)}
    with pytest.raises(FileNotFoundError, match="step-8"):
        training.manager.load(step=8)
    flip_a_bit(tmp_path / "checkpoint" / "step-15")
    with pytest.raises(varve.CorruptCheckpointError):
        training.manager.load(step=15)


def test_a_fresh_run_loads_nothing_and_a_disabled_manager_does_nothing(tmp_path: Path) -> None:
    assert not Training(str(tmp_path)).manager.load()
    disabled = Training(str(tmp_path), enable=False).manager
    assert not disabled.load() and not disabled.save(5)
    disabled.maybe_wait_for_saving()
    disabled.maybe_wait_for_staging()
    disabled.close()
    assert os.listdir(tmp_path) == []


def test_torchtitans_own_checkpoints_are_resumed_from_and_the_other_way(
    tmp_path: Path, uninterrupted: dict[int, float], one_rank: None
) -> None:
    Training(str(tmp_path), stock=True).run(10)
    assert train(0, 1, str(tmp_path), 15) == {s: uninterrupted[s] for s in range(11, 16)}
    back = tmp_path / "back" / "checkpoint" / "step-15"
    varve.convert(tmp_path / "checkpoint" / "step-15", back, "dcp")
    stock = Training(str(tmp_path / "back"), stock=True)
    assert stock.manager.load()
    assert stock.run(20) == {step: uninterrupted[step] for step in range(16, 21)}


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_torchtitans_own_manager_saves_by_varve_where_it_is_installed(
    mode: str, tmp_path: Path, uninterrupted: dict[int, float], one_rank: None
) -> None:
    with varve.torch.dcp.installed():
        Training(str(tmp_path), stock=True, async_mode=mode).run(10)
        assert by_varve(str(tmp_path / "checkpoint" / "step-10"))
        assert varve.verify(tmp_path / "checkpoint" / "step-5") == []
        training = Training(str(tmp_path), stock=True, async_mode=mode)
        training.manager.load()
        assert training.run(12) == {step: uninterrupted[step] for step in (11, 12)}


# ---- Policies


def test_the_steps_that_are_saved_are_torchtitans(tmp_path: Path) -> None:
    train(0, 1, str(tmp_path), 7, enable_first_step_checkpoint=True)
    assert steps_in(tmp_path) == ["step-1", "step-5", "step-7"]
    train(0, 1, str(tmp_path), 12, load_only=True)
    assert steps_in(tmp_path) == ["step-1", "step-5", "step-7"]


@pytest.mark.parametrize("mode", ASYNC)
def test_the_latest_k_are_kept_and_other_things_stay(mode: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    varve.save({"mine": 1}, folder / "step-2-of-mine")
    varve.save({"mine": 1}, folder / "step-900")  # A later step, of another run.
    training = Training(str(tmp_path), keep_latest_k=2, async_mode=mode, interval=2)
    training.run(11)
    training.manager.close()
    assert set(steps_in(tmp_path)) == {
        "step-2-of-mine",
        "step-8",
        "step-10",
        "step-11",
        "step-900",
    }


def test_a_failed_save_reaches_the_user_and_removes_nothing(tmp_path: Path) -> None:
    training = Training(str(tmp_path), keep_latest_k=2, async_mode="async", interval=1)
    training.run(3)
    training.manager.close()
    kept = steps_in(tmp_path)
    folder = tmp_path / "checkpoint"
    (folder / "step-4").write_text("in the way")
    training.manager.save(4)
    with pytest.raises(varve.Error, match="step-4"):
        training.manager.save(5)
    training.manager.save(4)
    with pytest.raises(varve.Error, match="step-4"):
        training.manager.close()
    assert steps_in(tmp_path) == kept


def test_states_that_are_excluded_keep_their_values(tmp_path: Path) -> None:
    train(0, 1, str(tmp_path), 5)
    training = Training(str(tmp_path), exclude_from_loading=["train_state", "lr_scheduler"])
    training.manager.load()
    assert training.progress.step == 0
    with pytest.raises(ValueError, match="there is no state no_such"):
        Training(str(tmp_path), exclude_from_loading=["no_such"]).manager.load()


def test_a_final_checkpoint_of_the_model_alone_is_not_resumed_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(0, 1, str(tmp_path), 8, last_save_model_only=True, export_dtype="bfloat16")
    stored = varve.torch.open(tmp_path / "checkpoint" / "step-8")
    assert {t.dtype for t in stored.tensors.values()} == {torch.bfloat16}
    training = Training(str(tmp_path))
    assert training.manager.load() and training.progress.step == 5
    assert "step-8 is passed over" in caplog.text


def test_initial_weights_are_loaded_once_and_cast(tmp_path: Path) -> None:
    trained = Training(str(tmp_path / "a"), last_save_model_only=True, export_dtype="bfloat16")
    trained.run(3)
    path = str(tmp_path / "a" / "checkpoint" / "step-3")
    options = {"initial_load_path": path, "initial_load_model_only": True}
    training = Training(str(tmp_path / "b"), **options)
    assert training.manager.load() and training.progress.step == 0
    for ours, theirs in zip(training.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    training.run(5)
    again = Training(str(tmp_path / "b"), **options)
    assert again.manager.load() and again.progress.step == 5, "the folder goes before"


@pytest.mark.parametrize("adapter", [Adapter, ComputingAdapter])
def test_the_last_save_in_hugging_faces_format_is_whole_and_is_loaded(
    adapter: type[Adapter], tmp_path: Path
) -> None:
    options = {"last_save_in_hf": True, "last_save_model_only": True, "sd_adapter": Adapter()}
    trained = Training(str(tmp_path / "a"), **options)
    trained.run(3)
    folder = tmp_path / "a" / "checkpoint"
    assert os.listdir(folder) == ["step-3"], "nothing half made is left"
    index = json.loads((folder / "step-3" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {f"model.{n}" for n in trained.model.state_dict()}
    training = Training(
        str(tmp_path / "b"),
        initial_load_in_hf=True,
        initial_load_model_only=True,
        initial_load_path=str(folder / "step-3"),
        sd_adapter=adapter(),
    )
    assert training.manager.load()
    for ours, theirs in zip(training.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_ranks_export_their_shards_to_hugging_faces_format(
    tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    options = {"last_save_in_hf": True, "last_save_model_only": True, "sd_adapter": Adapter()}
    losses = run_ranks(2, train_with, str(tmp_path), 8, {"keep_latest_k": 2, **options})
    assert losses == [{step: uninterrupted[step] for step in range(1, 9)}] * 2
    whole = Training(str(tmp_path / "whole"))
    whole.run(8)
    exported = varve.torch.read(tmp_path / "checkpoint" / "step-8", flat=True)
    expected = Adapter().to_hf(whole.model.state_dict())
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_what_rank_0_finds_wrong_all_ranks_raise(tmp_path: Path) -> None:
    train(0, 1, str(tmp_path), 5)
    (tmp_path / "checkpoint" / "step-5" / "varve.json").write_bytes(b"damaged")
    raised = errors_of_ranks(2, load, str(tmp_path))
    assert set(raised) == {0, 1}
    assert all("no step in" in text for text in raised.values()), raised


def test_a_seed_checkpoint_gives_the_weights_and_no_more(tmp_path: Path) -> None:
    seed = Training(str(tmp_path))
    torch.nn.init.ones_(seed.model[1].weight)
    seed.manager.save(0, last_step=True)
    training = Training(str(tmp_path))
    assert training.manager.load() and training.progress.step == 0
    assert torch.equal(training.model[1].weight, torch.ones(32, 32))


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="async_mode='later'"):
        Training(str(tmp_path), async_mode="later")
    with pytest.raises(ValueError, match="keep_every=-1"):
        Training(str(tmp_path), keep_every=-1)
    with pytest.raises(varve.InvalidArgumentError, match="hdfs://bucket"):
        Training(str(tmp_path), folder="hdfs://bucket/run")
    with pytest.raises(ValueError, match="sd_adapter"):
        Training(str(tmp_path), last_save_in_hf=True, last_save_model_only=True)
    with pytest.raises(ValueError, match=r"last_save_in_hf.*s3://b/run"):  # By torchtitan.
        Training(
            str(tmp_path), folder="s3://b/run", last_save_in_hf=True, last_save_model_only=True
        )


def test_steps_that_are_multiples_of_keep_every_stay(tmp_path: Path) -> None:
    training = Training(str(tmp_path), keep_latest_k=2, keep_every=4, interval=1)
    for step in range(1, 8):
        training.manager.save(step)
    training.manager.close()
    assert steps_in(tmp_path) == ["step-4", "step-6", "step-7"]


# ---- An object store


def test_an_object_store_holds_the_steps_and_the_newest_good_one_is_resumed_from(
    bucket: Any,
) -> None:
    folder = f"s3://{bucket.name}/titan"
    options = {"folder": folder, "keep_latest_k": 2, "interval": 1, "async_mode": "async"}
    training = Training("unused", **options)
    for step in range(1, 5):
        training.progress.step = step
        training.manager.save(step)
    training.manager.close()
    whole = [one.name for one in varve.list_checkpoints(folder) if one.state == "whole"]
    assert whole == ["step-3", "step-4"]
    (data,) = [
        one
        for one in bucket.objects.filter(Prefix="titan/step-4/")
        if one.key.endswith(".safetensors")
    ]
    content = data.get()["Body"].read()
    bucket.put_object(Key=data.key, Body=content[:-5] + b"\xff" * 5)
    again = Training("unused", **options)
    assert again.manager.load() and again.progress.step == 3
    with pytest.raises(varve.CheckpointNotFoundError, match="step-9"):
        again.manager.load(9)
    again.manager.close()


# ---- The example


@pytest.mark.slow
def test_the_example_resumes_on_another_number_of_ranks(
    tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    def losses(ranks: int, steps: int) -> list[str]:
        said = scripts.run(ranks, ROOT / "examples" / "torchtitan_dcp.py", tmp_path, steps)
        return [line for line in said.splitlines() if line.startswith("step ")]

    # The net and the data are those of titan_jobs.py.
    expected = [f"step {step}: loss {loss:.6f}" for step, loss in uninterrupted.items()]
    assert losses(2, 7) == expected[:7]
    assert losses(1, 14) == expected[7:14]
