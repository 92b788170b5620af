"""Values that ranks have for themselves, when the number of ranks changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import manager_jobs as jobs
import pytest
import torch
from ranks import run_ranks
from torch.utils.data import DistributedSampler, IterableDataset

import varve
import varve.torch

torchdata = pytest.importorskip("torchdata.stateful_dataloader", exc_type=ImportError)

SAMPLES = 96


class Samples(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def loader(rank: int, world: int, batch: int, workers: int = 0) -> Any:
    sampler = DistributedSampler(Samples(), world, rank, shuffle=True, seed=3)
    return torchdata.StatefulDataLoader(
        Samples(), batch_size=batch, sampler=sampler, num_workers=workers
    )


def taken(loaders: list[Any], batches: int) -> tuple[set[int], list[dict[str, Any]]]:
    """Takes batches from each loader; returns the samples and the loaders' states then."""
    samples: set[int] = set()
    states = []
    for one in loaders:
        walk = iter(one)
        for _ in range(batches):
            samples |= set(next(walk).tolist())
        states.append(one.state_dict())
    return samples, states


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("world", "batch"), [(1, 8), (1, 4), (4, 2), (4, 4)])
def test_data_loaders_go_on_behind_the_samples_that_were_taken(
    world: int, batch: int, workers: int
) -> None:
    before, states = taken([loader(rank, 2, 4, workers) for rank in range(2)], 5)
    assert len(before) == 40
    rest: list[int] = []
    for rank in range(world):
        one = loader(rank, world, batch, workers)
        one.load_state_dict(varve.torch.merge_dataloaders(states, rank, world))
        rest += [sample for samples in one for sample in samples.tolist()]
    assert sorted([*before, *rest]) == list(range(SAMPLES))


def test_what_cannot_be_divided_is_refused() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(100))

        def state_dict(self) -> dict[str, int]:
            return {"at": 3}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    merge = varve.torch.merge_dataloaders
    one = torchdata.StatefulDataLoader(Endless(), batch_size=2)
    next(iter(one))
    seldom = torchdata.StatefulDataLoader(
        Samples(), batch_size=2, num_workers=1, snapshot_every_n_steps=4
    )
    walk = iter(seldom)
    next(walk)
    with pytest.raises(varve.UnsupportedError, match="snapshot_every_n_steps=1"):
        merge([seldom.state_dict()], 0, 2)
    with pytest.raises(varve.UnsupportedError, match="cannot be divided"):
        merge([one.state_dict()] * 2, 0, 1)
    _, (early, _) = taken([loader(rank, 2, 4) for rank in range(2)], 1)
    _, (late, _) = taken([loader(rank, 2, 4) for rank in range(2)], 2)
    with pytest.raises(varve.InvalidArgumentError, match=r"of samples: \[4, 8\]"):
        merge([early, late], 0, 1)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_merge_gets_the_values_of_all_ranks_only_where_their_number_has_changed(
    tmp_path: Path, world: int
) -> None:
    path = str(tmp_path / "step-1")
    run_ranks(2, jobs.save_own, path)
    merged = run_ranks(world, jobs.load_merged, path)
    if world == 2:
        assert merged == [({"seen": 0}, [0]), ({"seen": 10}, [0, 1])]
    else:
        assert merged == [
            ({"seen": 10, "rank": rank, "world": world}, [0, 0, 1]) for rank in range(world)
        ]
