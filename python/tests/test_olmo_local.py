"""OLMo's `local` layout: every way of cutting loads, and whatever is wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from olmo_local import LocalRun

import varve
import varve.torch


def modules() -> dict[str, dict[str, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(3)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers)

    return {
        "": {"wte.weight": tensor(7, 5), "scale": tensor(3)},
        "blocks.0": {"a.weight": tensor(4, 3, 2), "a.bias": tensor(4), "gate": tensor(1)},
    }


def run(world_size: int, copies: int = 1, old: bool = False) -> LocalRun:
    return LocalRun(modules(), world_size, copies, old).build()


def assert_holds(folder: Path, made: LocalRun) -> None:
    state = varve.torch.read(folder)
    for name, tensor in made.full().items():
        assert torch.equal(state["model"][name], tensor), name
        entries = state["optim"]["state"][name]
        assert torch.equal(entries["exp_avg"], made.moment(name)), name
        assert entries["step"] == 3
    assert state["train"]["step"] == 7


@pytest.mark.parametrize("old", [False, True], ids=["torch-2.1", "torch-2.0"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 11, 64])
def test_every_world_size_of_both_generations_loads(
    world_size: int, old: bool, tmp_path: Path
) -> None:
    made = run(world_size, old=old)
    folder = made.write(tmp_path / "step1")
    assert varve.verify(folder) == []
    assert_holds(folder, made)


@pytest.mark.parametrize(("world_size", "copies"), [(2, 2), (1, 3)], ids=["hybrid", "no-shard"])
def test_equal_replicas_load(world_size: int, copies: int, tmp_path: Path) -> None:
    made = run(world_size, copies)
    folder = made.write(tmp_path / "step1")
    assert varve.verify(folder) == []
    assert_holds(folder, made)


def test_real_nans_load(tmp_path: Path) -> None:
    made = run(2)
    for name in ("model/rank0.pt", "model/rank1.pt"):
        made.files[name]["modules"][1]["handles"][0]["flat_param.data"][:1] = torch.nan
    state = varve.torch.read(made.write(tmp_path / "step1"), "model")
    assert torch.isnan(state["model"]["blocks.0.a.weight"]).any()


def handle(made: LocalRun, rank: int, module: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = made.files[f"model/rank{rank}.pt"]["modules"][module]["handles"][0]
    return found


def unequal_replica(made: LocalRun) -> None:
    handle(made, 2)["flat_param.data"][4] += 1


def unequal_moment(made: LocalRun) -> None:
    made.files["optim/rank3.pt"]["state"][0]["exp_avg"][1] += 1


def unequal_step(made: LocalRun) -> None:
    made.files["optim/rank1.pt"]["state"][0]["step"] += 1


def unequal_groups(made: LocalRun) -> None:
    made.files["optim/rank1.pt"]["param_groups"][0]["lr"] = 0.2


def dirty_padding(made: LocalRun) -> None:
    handle(made, 1, 1)["flat_param.data"][-1] = 42


def other_parameters(made: LocalRun) -> None:
    handle(made, 1)["flat_param._fqns"][0] = "wpe.weight"


def piece_outside(made: LocalRun) -> None:
    info = list(handle(made, 1)["flat_param._shard_param_infos"])
    info[0] = info[0]._replace(intra_param_start_idx=30, intra_param_end_idx=35, numel_in_shard=6)
    handle(made, 1)["flat_param._shard_param_infos"] = tuple(info)


def moment_of_other_size(made: LocalRun) -> None:
    state = made.files["optim/rank1.pt"]["state"][0]
    state["exp_avg"] = torch.cat([state["exp_avg"], torch.zeros(1)])


def missing_model(made: LocalRun) -> None:
    del made.files["model/rank3.pt"]


def stale_model(made: LocalRun) -> None:
    made.files["model/rank4.pt"] = made.files["model/rank3.pt"]


def unknown_id(made: LocalRun) -> None:
    made.files["optim/rank0.pt"]["state"][77] = {}


BROKEN: list[tuple[Callable[[LocalRun], None], list[str]]] = [
    (unequal_replica, ["wte.weight", "elements [0, 19)", "model/rank0.pt", "model/rank2.pt"]),
    (unequal_moment, ["wte.weight.exp_avg", "optim/rank1.pt", "optim/rank3.pt"]),
    (unequal_step, ["wte.weight.step", "optim/rank0.pt", "optim/rank1.pt"]),
    (unequal_groups, ["param_groups", "optim/rank1.pt"]),
    (dirty_padding, ["padding", "blocks.0", "model/rank1.pt"]),
    (other_parameters, ["wpe.weight", "wte.weight", "model/rank1.pt"]),
    (piece_outside, ["wte.weight", "model/rank1.pt", "[30, 36)"]),
    (moment_of_other_size, ["wte.weight", "exp_avg", "optim/rank1.pt"]),
    (missing_model, ["model/rank3.pt", "missing", "4 ranks"]),
    (stale_model, ["model/rank4.pt", "another save"]),
    (unknown_id, ["77", "optim/rank0.pt"]),
]


@pytest.mark.parametrize(("harm", "named"), BROKEN, ids=[harm.__name__ for harm, _ in BROKEN])
def test_what_is_wrong_is_named_by_every_command(
    harm: Callable[[LocalRun], None], named: list[str], tmp_path: Path
) -> None:
    made = run(2, 2)
    harm(made)
    folder = made.write(tmp_path / "step1")
    (damage,) = varve.verify(folder)
    for text in named:
        assert text in damage.problem
    for command in (
        lambda: varve.torch.read(folder),
        lambda: varve.convert(folder, tmp_path / "out", to="varve"),
    ):
        with pytest.raises(varve.CorruptCheckpointError) as error:
            command()
        for text in named:
            assert text in str(error.value)
    assert not (tmp_path / "out").exists()


def test_elements_that_no_rank_stores_are_found(tmp_path: Path) -> None:
    made = run(2)
    info = list(handle(made, 1)["flat_param._shard_param_infos"])
    at = next(i for i, shard in enumerate(info) if shard.in_shard)
    info[at] = type(info[at])(False, None, None, None, None)
    handle(made, 1)["flat_param._shard_param_infos"] = tuple(info)
    made.files["optim/rank1.pt"]["state"].pop(at)
    name = list(made.full())[at]
    folder = made.write(tmp_path / "step1")
    assert any(f"model.{name}" in damage.tensors for damage in varve.verify(folder))
    with pytest.raises(varve.CorruptCheckpointError, match=name):
        varve.torch.read(folder, "model")
    with pytest.raises(varve.CorruptCheckpointError, match=name):
        varve.convert(folder, tmp_path / "out", to="varve")
