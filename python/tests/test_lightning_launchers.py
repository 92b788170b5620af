"""Lightning's launchers of processes, and its callbacks' states, with Varve's checkpoints."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
from frameworks import framework
from lightning_jobs import fit, make_net, make_trainer, whole_in

import varve.torch

lightning = framework("lightning")

from varve.integrations.lightning import VarveCheckpointIO, VarveModelCheckpoint  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


def launched(folder: Path, *strategies: str) -> dict[str, Any]:
    """Runs lightning_launched.py; returns what it prints."""
    temporary = folder / "tmp"
    temporary.mkdir()
    script = Path(__file__).with_name("lightning_launched.py")
    said = scripts.run(0, script, folder / "run", *strategies, env={"TMPDIR": str(temporary)})
    (line,) = [line for line in said.splitlines() if line.startswith('{"weights"')]
    return dict(json.loads(line))


@pytest.mark.slow
@pytest.mark.parametrize("strategies", ["ddp_fork", "ddp_spawn", "auto ddp_notebook ddp_notebook"])
def test_a_launcher_brings_the_trained_weights_back_and_leaves_nothing(
    strategies: str, tmp_path: Path
) -> None:
    found = launched(tmp_path, *strategies.split())
    newest = checkpoint_of(tmp_path / "run", len(strategies.split()) - 1)
    trained = varve.torch.read(newest, "state_dict")["state_dict"]
    assert found["weights"] == {name: tensor.tolist() for name, tensor in trained.items()}
    assert found["best"] == newest
    assert found["threads"] == ["MainThread"]
    assert list((tmp_path / "tmp").rglob("*.ckpt")) == [], (
        "the weights that the launcher handed over"
    )


def test_a_checkpoint_io_that_has_saved_is_pickled(tmp_path: Path) -> None:
    io = VarveCheckpointIO(allow_pickle=True)
    io.save_checkpoint({"w": torch.ones(4)}, tmp_path / "a")
    copy = pickle.loads(pickle.dumps(io))
    copy.save_checkpoint({"w": torch.zeros(4)}, tmp_path / "b")
    io.teardown()
    copy.teardown()
    assert copy.allow_pickle
    assert whole_in(tmp_path) == ["a", "b"]


def test_a_save_after_teardown_is_durable_when_the_call_returns(tmp_path: Path) -> None:
    trainer = make_trainer(str(tmp_path / "run"), 1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 8))
    loader = torch.utils.data.DataLoader(data, 4)
    trainer.fit(make_net(16), loader)
    trainer.save_checkpoint(tmp_path / "final.ckpt")
    assert whole_in(tmp_path) == ["final.ckpt"]


# ---- The state of ModelCheckpoint


def checkpoint_of(folder: Path, epoch: int) -> str:
    return str(folder / f"epoch={epoch}.ckpt")


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)], ids=["ours", "theirs"])
def test_a_run_goes_on_with_the_other_model_checkpoint_and_keeps_as_many_files(
    first: bool, then: bool, tmp_path: Path
) -> None:
    """`first`, `then`: whether the class is Lightning's."""
    io = VarveCheckpointIO()
    fit(str(tmp_path), 3, ckpt_path=None, callback=kind(first), io=io)
    assert names_in(tmp_path) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    fit(str(tmp_path), 4, ckpt_path=checkpoint_of(tmp_path, 2), callback=kind(then), io=io)
    assert names_in(tmp_path) == ["epoch=2.ckpt", "epoch=3.ckpt"]


def kind(lightnings: bool) -> Any:
    callbacks = framework("lightning.pytorch.callbacks")
    return callbacks.ModelCheckpoint if lightnings else VarveModelCheckpoint


def test_files_of_torch_save_are_counted_among_those_to_keep(tmp_path: Path) -> None:
    fit(str(tmp_path), 3, ckpt_path=None, stock=True)
    assert all((tmp_path / name).is_file() for name in ["epoch=1.ckpt", "epoch=2.ckpt"])
    fit(str(tmp_path), 4, ckpt_path=checkpoint_of(tmp_path, 2))
    assert names_in(tmp_path) == ["epoch=2.ckpt", "epoch=3.ckpt"]
    assert (tmp_path / "epoch=3.ckpt").is_dir()


class Former(VarveModelCheckpoint):
    """VarveModelCheckpoint with the key that its state had at first."""

    @property
    def state_key(self) -> str:
        return str(super().state_key).replace("Former", "VarveModelCheckpoint")


@pytest.mark.parametrize("io", [VarveCheckpointIO, lambda: None], ids=["varve", "torch"])
def test_the_state_under_our_former_key_is_taken(io: Any, tmp_path: Path) -> None:
    options = {"stock": io() is None, "io": io()}
    fit(str(tmp_path), 3, ckpt_path=None, callback=Former, **options)
    last = checkpoint_of(tmp_path, 2)
    stored = varve.torch.read(last, "callbacks", allow_pickle=True)["callbacks"]
    assert [key.split("{")[0] for key in stored] == ["VarveModelCheckpoint"]
    with warnings.catch_warnings():
        if io() is not None:
            warnings.filterwarnings("error", ".*callbacks used to create the checkpoint.*")
        fit(str(tmp_path), 4, ckpt_path=last, callback=VarveModelCheckpoint, **options)
    assert names_in(tmp_path) == ["epoch=2.ckpt", "epoch=3.ckpt"]


def test_a_subclass_has_a_key_of_its_own_as_in_lightning() -> None:
    class Mine(VarveModelCheckpoint):
        pass

    assert Mine().state_key.split("{")[0].endswith("Mine")
    assert VarveModelCheckpoint().state_key == kind(True)().state_key
