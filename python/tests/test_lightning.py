"""Lightning's checkpoints by Varve: real Trainers, in one process and on ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import programs
import pytest
import scripts
import torch
from dcp_install_jobs import by_varve
from frameworks import framework
from lightning_jobs import (
    failure_of_a_save,
    fit,
    fit_and_be_killed,
    fit_on_ranks,
    make_net,
    make_trainer,
    whole_in,
)
from ranks import collect, run_ranks

import varve
import varve.torch

lightning = framework("lightning")

from varve.integrations import _newest  # noqa: E402
from varve.integrations._contract import differences, require  # noqa: E402
from varve.integrations.lightning import (  # noqa: E402
    NEEDED,
    VarveCheckpointIO,
    VarveModelCheckpoint,
)

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of 5 epochs of 4 steps."""
    return fit(str(tmp_path_factory.mktemp("run")), 5)


def flip_a_bit(checkpoint: Path) -> None:
    data = next(checkpoint.glob("data-*.safetensors"))
    content = bytearray(data.read_bytes())
    content[-5] ^= 1
    data.write_bytes(content)


# ---- The contract: what a newer Lightning must not change unnoticed


def test_lightning_has_every_name_that_is_needed() -> None:
    assert differences(NEEDED) == []


def test_a_needed_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks = framework("lightning.pytorch.callbacks")
    monkeypatch.delattr(callbacks.ModelCheckpoint, "_link_checkpoint")
    with pytest.raises(varve.UnsupportedError, match=r"ModelCheckpoint._link_checkpoint does not"):
        require("varve.integrations.lightning", "lightning", "2.6.6", NEEDED)


def test_a_checkpoint_io_has_the_methods_that_lightning_calls() -> None:
    io = framework("lightning.pytorch.plugins.io").CheckpointIO
    methods = {"save_checkpoint", "load_checkpoint", "remove_checkpoint"}
    assert io.__abstractmethods__ == methods
    public = {name for name in vars(io) if not name.startswith("_")}
    assert public == methods | {"teardown"}


def test_the_strategies_have_the_attributes_that_are_read() -> None:
    strategies = framework("lightning.pytorch.strategies")
    assert strategies.ModelParallelStrategy()._save_distributed_checkpoint is True
    assert strategies.FSDPStrategy(state_dict_type="sharded")._state_dict_type == "sharded"


def test_without_lightning_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['lightning'] = None; import varve.integrations.lightning"
    assert 'pip install "varve[lightning]"' in programs.run(code).stderr


# ---- Training


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    asynchronous: bool, tmp_path: Path, uninterrupted: list[float]
) -> None:
    def run(epochs: int) -> list[float]:
        return fit(str(tmp_path), epochs, io=VarveCheckpointIO(asynchronous=asynchronous))

    assert run(3) == uninterrupted[:12]
    assert whole_in(tmp_path) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    assert run(5) == uninterrupted[12:]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "model_parallel"])
def test_two_ranks_killed_in_a_save_resume_as_one_with_the_same_losses(
    strategy: str, tmp_path: Path, uninterrupted: list[float]
) -> None:
    options = {"strategy": strategy, "ballast": 64}
    saving = str(tmp_path / "epoch=2.ckpt")
    job = (fit_and_be_killed, str(tmp_path), 5, saving, options)
    assert collect(2, *job, dead=(0, 1)) == {}
    assert whole_in(tmp_path) == ["epoch=0.ckpt", "epoch=1.ckpt"], "killed in the middle"
    [resumed] = run_ranks(1, fit_on_ranks, str(tmp_path), 5, options)
    assert resumed == uninterrupted[8:]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "model_parallel"])
def test_lightnings_own_checkpoints_are_resumed_from_on_two_ranks(
    strategy: str, tmp_path: Path, uninterrupted: list[float]
) -> None:
    stock = {"strategy": strategy, "stock": True}
    run_ranks(2, fit_on_ranks, str(tmp_path), 3, stock)
    path = str(tmp_path / "epoch=2.ckpt")
    ours = {"strategy": strategy, "ckpt_path": path}
    resumed = run_ranks(2, fit_on_ranks, str(tmp_path), 5, ours)
    assert resumed == [uninterrupted[12:]] * 2


@pytest.mark.slow
def test_lightnings_own_strategy_saves_by_varve_where_it_is_installed(
    tmp_path: Path, uninterrupted: list[float]
) -> None:
    options = {"strategy": "model_parallel", "stock": True, "installed": True}
    run_ranks(2, fit_on_ranks, str(tmp_path), 3, options)
    assert by_varve(str(tmp_path / "epoch=2.ckpt"))
    options["ckpt_path"] = str(tmp_path / "epoch=2.ckpt")
    assert run_ranks(2, fit_on_ranks, str(tmp_path), 4, options) == [uninterrupted[12:16]] * 2


# ---- Which checkpoint is resumed from


def test_the_newest_checkpoint_is_passed_over_if_it_is_damaged(
    tmp_path: Path, uninterrupted: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    fit(str(tmp_path), 3)
    flip_a_bit(tmp_path / "epoch=2.ckpt")
    assert fit(str(tmp_path), 5) == uninterrupted[8:]
    assert f"{tmp_path / 'epoch=2.ckpt'} is passed over" in caplog.text


@pytest.mark.slow
def test_ranks_pass_over_damaged_shards(tmp_path: Path, uninterrupted: list[float]) -> None:
    options = {"strategy": "model_parallel", "save_top_k": 3}
    run_ranks(2, fit_on_ranks, str(tmp_path), 3, options)
    flip_a_bit(tmp_path / "epoch=2.ckpt")
    next((tmp_path / "epoch=1.ckpt").glob("data-*")).unlink()
    assert run_ranks(1, fit_on_ranks, str(tmp_path), 5, options) == [uninterrupted[4:]]
    asked = {**options, "ckpt_path": str(tmp_path / "epoch=4.ckpt")}
    flip_a_bit(tmp_path / "epoch=4.ckpt")
    raised = run_ranks(2, failure_of_a_save, str(tmp_path), 5, asked)
    assert all(text.startswith("CorruptCheckpointError") for text in raised), raised


def test_a_checkpoint_without_index_is_passed_over(
    tmp_path: Path, uninterrupted: list[float]
) -> None:
    fit(str(tmp_path), 3)
    for name in ("varve.json", "manifest.bin"):
        (tmp_path / "epoch=2.ckpt" / name).unlink()
    assert fit(str(tmp_path), 5) == uninterrupted[8:]


@pytest.mark.parametrize("kept", [(), ("manifest.bin",)])
def test_checkpoints_that_have_lost_their_files_are_passed_over(
    tmp_path: Path,
    uninterrupted: list[float],
    kept: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fit(str(tmp_path), 3)

    def lose_files(name: str) -> None:
        for file in (tmp_path / name).iterdir():
            if file.name not in kept:
                file.unlink()

    lose_files("epoch=2.ckpt")
    assert len(_newest.whole_in(str(tmp_path))) == len(list(tmp_path.glob("*.ckpt"))) - 1
    assert f"{tmp_path / 'epoch=2.ckpt'} is passed over" in caplog.text
    caplog.clear()
    assert fit(str(tmp_path), 5) == uninterrupted[8:]
    assert f"{tmp_path / 'epoch=2.ckpt'} is passed over" in caplog.text
    for path in tmp_path.glob("*.ckpt"):
        lose_files(path.name)
    with pytest.raises(varve.CorruptCheckpointError, match="no checkpoint in"):
        fit(str(tmp_path), 6)


def test_nothing_is_begun_anew_over_checkpoints_that_are_all_damaged(tmp_path: Path) -> None:
    fit(str(tmp_path), 1)
    flip_a_bit(tmp_path / "epoch=0.ckpt")
    with pytest.raises(varve.CorruptCheckpointError, match="no checkpoint in"):
        fit(str(tmp_path), 2)


def test_a_path_that_is_asked_for_is_loaded_or_an_error(
    tmp_path: Path, uninterrupted: list[float]
) -> None:
    fit(str(tmp_path), 3)
    path = tmp_path / "epoch=1.ckpt"
    assert fit(str(tmp_path), 4, ckpt_path=str(path)) == uninterrupted[8:16]
    flip_a_bit(path)
    with pytest.raises(varve.CorruptCheckpointError):
        fit(str(tmp_path), 4, ckpt_path=str(path))


def test_the_best_checkpoint_is_there_when_fit_returns(tmp_path: Path) -> None:
    trainer = make_trainer(str(tmp_path), 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 8))
    trainer.fit(make_net(0), torch.utils.data.DataLoader(data, 4))
    best = trainer.checkpoint_callback.best_model_path
    assert varve.verify(best) == []
    assert set(varve.torch.read(best, "state_dict")["state_dict"]) == set(make_net(0).state_dict())


# ---- last.ckpt, removal, names


@pytest.mark.parametrize("save_last", ["link", True])
def test_last_is_the_newest(save_last: Any, tmp_path: Path) -> None:
    fit(str(tmp_path), 4, save_last=save_last)
    last = tmp_path / "last.ckpt"
    assert last.is_symlink() == (save_last == "link")
    assert varve.read(last, "global_step")["global_step"] == 16
    assert whole_in(tmp_path) == ["epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"]


def test_a_copy_that_was_last_becomes_a_link(tmp_path: Path) -> None:
    fit(str(tmp_path), 2, save_last=True)
    fit(str(tmp_path), 3, save_last="link")
    assert (tmp_path / "last.ckpt").is_symlink()
    assert varve.read(tmp_path / "last.ckpt", "global_step")["global_step"] == 12


def test_a_failed_save_is_raised_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    (tmp_path / "epoch=2.ckpt").mkdir()
    (tmp_path / "epoch=2.ckpt" / "mine").write_text("in the way")
    with pytest.raises(varve.Error, match=r"epoch=2\.ckpt"):
        fit(str(tmp_path), 5, enable_version_counter=False, save_top_k=1)
    assert "epoch=1.ckpt" in whole_in(tmp_path), "its removal was asked for"
    assert (tmp_path / "epoch=2.ckpt" / "mine").read_text() == "in the way"


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 4])
@pytest.mark.parametrize("strategy", ["ddp", "model_parallel"])
def test_a_failed_save_is_raised_on_all_ranks(strategy: str, epochs: int, tmp_path: Path) -> None:
    (tmp_path / "epoch=1.ckpt").mkdir()
    (tmp_path / "epoch=1.ckpt" / "mine").write_text("in the way")
    options = {"strategy": strategy, "enable_version_counter": False}
    raised = run_ranks(2, failure_of_a_save, str(tmp_path), epochs, options)
    assert all("epoch=1.ckpt" in text for text in raised), raised
    assert all(text.startswith("PreconditionError") for text in raised), raised


def test_a_name_that_is_being_saved_counts_as_taken(tmp_path: Path) -> None:
    fit(str(tmp_path), 1, filename="always", every_n_train_steps=1, save_top_k=-1, ballast=16)
    assert whole_in(tmp_path) == [
        "always-v1.ckpt",
        "always-v2.ckpt",
        "always-v3.ckpt",
        "always.ckpt",
    ]
    steps = {varve.read(tmp_path / n, "global_step")["global_step"] for n in whole_in(tmp_path)}
    assert steps == {1, 2, 3, 4}


def test_a_stock_model_checkpoint_works_too(tmp_path: Path) -> None:
    callbacks = framework("lightning.pytorch.callbacks")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        plugins=[VarveCheckpointIO()],
        callbacks=[callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.TensorDataset(torch.randn(8, 8))
    trainer.fit(make_net(0), torch.utils.data.DataLoader(data, 4))
    assert whole_in(tmp_path) == ["epoch=2.ckpt", "last.ckpt"]


def test_model_checkpoint_with_another_io_is_lightnings(tmp_path: Path) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[VarveModelCheckpoint(tmp_path, filename="{epoch}", save_last="link")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.TensorDataset(torch.randn(8, 8))
    trainer.fit(make_net(0), torch.utils.data.DataLoader(data, 4), ckpt_path="last")
    assert (tmp_path / "epoch=1.ckpt").is_file() and (tmp_path / "last.ckpt").is_file()


# ---- The CheckpointIO by itself


class Setting:
    """A hyperparameter of a type that Varve does not know."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting)

    __hash__ = None  # type: ignore[assignment]


def test_a_state_is_saved_as_it_was_at_the_call(tmp_path: Path) -> None:
    io = VarveCheckpointIO()
    state = {"w": torch.arange(1 << 20), "loops": {"fit": {"seen": 3}}, "none": None, "list": []}
    io.save_checkpoint(state, tmp_path / "a.ckpt")
    state["w"].zero_()
    state["loops"]["fit"]["seen"] = 4
    loaded = io.load_checkpoint(tmp_path / "a.ckpt", map_location="cpu")
    io.teardown()
    assert torch.equal(loaded["w"], torch.arange(1 << 20))
    assert loaded["loops"] == {"fit": {"seen": 3}} and loaded["none"] is None
    assert loaded["list"] == []


def test_a_checkpoint_for_slurm_is_durable_when_the_call_returns(tmp_path: Path) -> None:
    io = VarveCheckpointIO()
    io.save_checkpoint({"w": torch.ones(4 << 20)}, tmp_path / "hpc_ckpt_1.ckpt")
    assert whole_in(tmp_path) == ["hpc_ckpt_1.ckpt"]
    io.teardown()


def test_values_of_unknown_types_need_allow_pickle(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r"hparams\.setting"):
        VarveCheckpointIO().save_checkpoint({"hparams": {"setting": Setting()}}, tmp_path / "a")
    io = VarveCheckpointIO(allow_pickle=True)
    io.save_checkpoint({"hparams": {"setting": Setting()}}, tmp_path / "b")
    assert io.load_checkpoint(tmp_path / "b")["hparams"]["setting"] == Setting()
    with pytest.raises(varve.UnsupportedError):
        io.load_checkpoint(tmp_path / "b", weights_only=True)
    io.teardown()


def test_a_file_of_torch_save_is_loaded_and_not_replaced(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "old.ckpt")
    io = VarveCheckpointIO()
    assert torch.equal(io.load_checkpoint(tmp_path / "old.ckpt")["w"], torch.ones(3))
    with pytest.raises(varve.InvalidArgumentError, match="it is a file"):
        io.save_checkpoint({"w": torch.zeros(3)}, tmp_path / "old.ckpt")
    io.remove_checkpoint(tmp_path / "old.ckpt")
    io.teardown()
    assert os.listdir(tmp_path) == []


def test_arguments_that_cannot_be_honoured_are_refused(tmp_path: Path) -> None:
    io = VarveCheckpointIO()
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint({}, tmp_path / "a", storage_options={})
    varve.save({"n": 1}, tmp_path / "b")
    with pytest.raises(varve.InvalidArgumentError, match="want a device"):
        io.load_checkpoint(tmp_path / "b", map_location=lambda storage, location: storage)


def test_a_removal_and_a_save_of_one_name_keep_their_order(tmp_path: Path) -> None:
    io = VarveCheckpointIO()
    for number in range(5):
        io.save_checkpoint({"n": number}, tmp_path / "a.ckpt")
        io.remove_checkpoint(tmp_path / "a.ckpt")
    io.save_checkpoint({"n": 5}, tmp_path / "a.ckpt")
    io.teardown()
    assert varve.read(tmp_path / "a.ckpt") == {"n": 5}


# ---- The example


@pytest.mark.slow
def test_the_example_resumes_on_two_devices(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return scripts.run(
            0, ROOT / "examples" / "lightning_checkpoint_io.py", tmp_path, *arguments
        )

    assert run("2").count("epoch ") == 2
    assert "epoch 2: loss" in run("4", "2")
    assert whole_in(tmp_path)[-1] == "last.ckpt"
    assert varve.read(tmp_path / "last.ckpt", "epoch")["epoch"] == 3
