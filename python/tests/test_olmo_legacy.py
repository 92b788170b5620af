"""OLMo's `torch_legacy` layout: shards of all ranks are put together, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import olmo_legacy
import pytest
import rank_jobs
import torch
from ranks import run_ranks
from torch.distributed.remote_device import _remote_device

import varve
import varve.torch

States = list[dict[str, Any]]


def model() -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(5)
    return {
        "a.weight": torch.randn(7, 5, generator=numbers),
        "b.weight": torch.randn(3, 4, generator=numbers).to(torch.float64),
    }


@pytest.mark.parametrize("ranks", [1, 2, 4, 9])
def test_every_world_size_loads_with_ranks_that_hold_nothing(ranks: int, tmp_path: Path) -> None:
    folder = olmo_legacy.write(tmp_path / "step1", olmo_legacy.build(model(), ranks))
    assert varve.verify(folder) == []
    state = varve.torch.read(folder)
    for name, tensor in model().items():
        assert torch.equal(state["model"][name], tensor)
        assert torch.equal(state["optim"]["state"][name]["exp_avg"], tensor * 2)
    assert state["train"] == {"global_step": 7}
    for rank in range(ranks):
        assert state[f"train/rank{rank}"] == {"global_step": 7, "rng": {"seed": rank}}


def test_replica_groups_store_equal_shards(tmp_path: Path) -> None:
    states = olmo_legacy.build(model(), 2) + olmo_legacy.build(model(), 2)
    folder = olmo_legacy.write(tmp_path / "step1", states)
    for name, tensor in model().items():
        assert torch.equal(varve.torch.read(folder)["model"][name], tensor)


def unequal_replica(states: States) -> None:
    states[3]["model"]["a.weight"].local[0, 0] += 1


def unequal_step(states: States) -> None:
    states[1]["optim"]["state"]["a.weight"]["step"] += 1


def unequal_value(states: States) -> None:
    states[2]["global_step"] = 8


def key_of_one_rank(states: States) -> None:
    states[1]["model"]["c.weight"] = states[1]["model"].pop("b.weight")


def placement_beyond_the_world(states: States) -> None:
    states[1]["model"]["a.weight"].shards[0].placement = _remote_device("rank:9/cpu")


def shard_outside(states: States) -> None:
    states[0]["model"]["a.weight"].shards[1].shard_offsets[0] = 6


BROKEN: list[tuple[Callable[[States], None], list[str]]] = [
    (unequal_replica, ["model.a.weight", "rank1.pt", "rank3.pt"]),
    (unequal_step, ["optim.state.a.weight.step", "rank0.pt", "rank1.pt"]),
    (unequal_value, ["global_step", "rank0.pt", "rank2.pt"]),
    (key_of_one_rank, ["b.weight", "rank0.pt"]),
    (placement_beyond_the_world, ["rank 9", "4 ranks", "rank1.pt"]),
    (shard_outside, ["rank0.pt", "outside"]),
]


@pytest.mark.parametrize(("harm", "named"), BROKEN, ids=[harm.__name__ for harm, _ in BROKEN])
def test_what_is_wrong_is_named(
    harm: Callable[[States], None], named: list[str], tmp_path: Path
) -> None:
    states = olmo_legacy.build(model(), 2) + olmo_legacy.build(model(), 2)
    harm(states)
    folder = olmo_legacy.write(tmp_path / "step1", states)
    with pytest.raises(varve.CorruptCheckpointError) as error:
        varve.torch.read(folder)
    for text in named:
        assert text in str(error.value)


def test_a_shard_that_no_file_holds_is_found(tmp_path: Path) -> None:
    states = olmo_legacy.build(model(), 2)
    states[1]["model"]["a.weight"].local = None
    folder = olmo_legacy.write(tmp_path / "step1", states)
    assert any("model.a.weight" in damage.tensors for damage in varve.verify(folder))
    with pytest.raises(varve.CorruptCheckpointError, match=r"a\.weight"):
        varve.unshard(folder, tmp_path / "out")


def test_a_hole_in_the_ranks_is_named(tmp_path: Path) -> None:
    folder = olmo_legacy.write(tmp_path / "step1", olmo_legacy.build(model(), 4))
    (folder / "rank2.pt").unlink()
    with pytest.raises(varve.CorruptCheckpointError, match=r"rank2\.pt is missing"):
        varve.torch.read(folder)


@pytest.mark.slow
def test_dtensors_of_one_and_two_dimensional_meshes_load(tmp_path: Path) -> None:
    run_ranks(4, rank_jobs.save_olmo_legacy_dtensors, str(tmp_path))
    (tmp_path / "config.yaml").write_text("run_name: test\n")
    assert varve.verify(tmp_path) == []
    model = varve.torch.read(tmp_path)["model"]
    assert torch.equal(model["rows"], rank_jobs.whole("a"))
    assert torch.equal(model["hybrid"], rank_jobs.whole("a"))
    assert torch.equal(model["both"], rank_jobs.whole("c"))
