"""When the saves of adapters are overlapped, and that the optimizers' next step waits for them then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from async_jobs import LONG
from frameworks import framework

import varve
import varve.torch
from varve.integrations import _staging
from varve.integrations._staging import choose

BLOCKING = {"staging": "blocking"}


@pytest.fixture
def on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors count as those of a CUDA device."""
    monkeypatch.setattr(_staging, "on_device", lambda tensor: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of the calls of async_save."""
    seen: list[dict[str, Any]] = []
    save = varve.torch.async_save

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return save(*args, **options)

    monkeypatch.setattr(varve.torch, "async_save", noted)
    return seen


def trained(model: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer of a model, after one step."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return optimizer


# ---- The choice ----


def test_a_save_of_tensors_on_the_cpu_is_blocking() -> None:
    model = torch.nn.Linear(3, 3)
    state = {"model": model, "optimizer": trained(model)}
    assert choose(None, state, state["optimizer"]) == (state, BLOCKING)


def test_a_save_of_weights_and_moments_on_a_device_is_overlapped(on_devices: None) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = trained(model)
    state = {"model": dict(model.state_dict()), "optimizers": [optimizer], "n": 1}
    assert choose(None, state, [optimizer])[1] == {"staging": "overlapped", "guard": [optimizer]}


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)),
        torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3)),
    ],
    ids=["BatchNorm", "spectral_norm"],
)
def test_a_model_whose_buffers_a_forward_pass_writes_to_is_saved_blocking(
    model: torch.nn.Module, on_devices: None
) -> None:
    assert choose(None, {"model": model}, trained(model))[1] == BLOCKING


def test_a_tensor_that_no_optimizer_holds_makes_a_save_blocking(on_devices: None) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = trained(model)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    assert choose(None, {"model": model, "average": average}, optimizer)[1] == BLOCKING
    assert choose(None, {"model": torch.nn.Linear(3, 3)}, optimizer)[1] == BLOCKING


def test_an_optimizer_that_writes_outside_of_its_step_makes_a_save_blocking(
    on_devices: None,
) -> None:
    class ScheduleFree(torch.optim.SGD):
        def eval(self) -> None:
            pass

    model = torch.nn.Linear(3, 3)
    assert choose(None, {"model": model}, ScheduleFree(model.parameters(), 0.1))[1] == BLOCKING


def test_single_numbers_that_no_optimizer_holds_are_copied_in_the_call(on_devices: None) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = trained(model)
    score = torch.tensor(1.0)
    state, staging = choose(None, {"model": model, "best": {"score": score}}, optimizer)
    score.fill_(2)
    assert state["best"]["score"] == 1 and staging["staging"] == "overlapped"
    assert state["model"]["weight"].data_ptr() == model.weight.data_ptr()


def test_what_is_asked_for_is_done_unless_no_optimizer_is_known(on_devices: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = trained(model)
    state = {"model": model}
    assert choose("overlapped", state, optimizer)[1]["guard"] == [optimizer]
    assert choose("blocking", state, optimizer) == (state, BLOCKING)
    assert choose("overlapped", state, [])[1] == BLOCKING


def test_a_state_that_cannot_be_walked_is_left_to_the_save(on_devices: None) -> None:
    model = torch.nn.Linear(3, 3)
    state = {"a.b": model.weight, "a": {"b": model.weight}}
    assert choose(None, state, trained(model)) == (state, BLOCKING)


# ---- The adapters, with the real frameworks ----


def test_accelerates_state_is_saved_as_it_was_at_the_call(
    on_devices: None, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    framework("accelerate")
    from accelerate_jobs import Loop
    from test_guard import HeldBack

    from varve.integrations.accelerate import VarveSaving

    held = HeldBack(tmp_path)
    loop = Loop(saving=VarveSaving(stager=held.stager))
    loop.epoch()
    weights = loop.weights()
    handle = loop.checkpoints.save_state(tmp_path / "one")
    assert calls[-1]["staging"] == "overlapped"
    assert calls[-1]["guard"] == [loop.optimizer.optimizer]
    assert not handle.staging_completion.done()
    held.gate.opened.set()
    loop.epoch()
    handle.result(LONG)
    held.stager.close()
    stored = varve.torch.read(tmp_path / "one")["models"][0]
    assert all((stored[name].numpy() == value).all() for name, value in weights.items())


@pytest.mark.parametrize("asked", [None, "blocking"])
def test_a_trainers_saves_are_overlapped_unless_it_asks_for_blocking(
    asked: Any, on_devices: None, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    framework("transformers")
    framework("accelerate")
    from transformers_jobs import losses_of, trainer_of

    from varve.integrations.transformers import VarveSaving

    trainer = trainer_of(tmp_path, 6, saving=VarveSaving(staging=asked))
    trainer.train()
    again = trainer_of(tmp_path, 6, saving=VarveSaving(staging=asked))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert {call["staging"] for call in calls} == {asked or "overlapped"}
    losses = losses_of(trainer)
    assert losses_of(again)[6] == losses[6]


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
@pytest.mark.parametrize("stock", [False, True], ids=["VarveModelCheckpoint", "ModelCheckpoint"])
def test_lightnings_saves_are_overlapped_where_the_optimizers_are_known(
    stock: bool,
    on_devices: None,
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    framework("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning_jobs import fit, whole_in

    if stock:
        monkeypatch.setattr("varve.integrations.lightning.VarveModelCheckpoint", ModelCheckpoint)
    whole = fit(str(tmp_path / "whole"), 3, ckpt_path=None)
    run = str(tmp_path / "run")
    first = fit(run, 2, ckpt_path=None)
    # From the older one: training went on after it was asked for.
    assert fit(run, 3, ckpt_path=f"{run}/{whole_in(run)[0]}") == whole[len(first) // 2 :]
    assert {call["staging"] for call in calls} == {"blocking" if stock else "overlapped"}
    assert {len(call.get("guard", [])) for call in calls} == {0 if stock else 1}


@pytest.mark.parametrize(
    ("options", "staging"),
    [
        ({"async_mode": "async"}, "overlapped"),
        ({"async_mode": "async", "staging": "blocking"}, "blocking"),
        ({"async_mode": "async_with_pinned_mem"}, "overlapped"),
    ],
)
def test_torchtitans_saves_are_overlapped_unless_it_asks_for_blocking(
    options: Any, staging: str, on_devices: None, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    framework("torchtitan")
    from titan_jobs import train

    whole = train(0, 1, str(tmp_path / "whole"), 12, enable=False)
    train(0, 1, str(tmp_path), 7, **options)
    varve.remove(tmp_path / "checkpoint" / "step-7")  # The last, which is saved in the call.
    resumed = train(0, 1, str(tmp_path), 12, **options)
    assert calls and {call["staging"] for call in calls} == {staging}
    assert resumed == {step: whole[step] for step in range(6, 13)}


def test_a_staging_that_there_is_not_is_refused() -> None:
    with pytest.raises(varve.InvalidArgumentError, match="staging='eager'"):
        _staging.checked("eager")
