"""What any layout of ranks has saved, any layout loads; with Varve's DCP and with PyTorch's."""

from __future__ import annotations

import os
from pathlib import Path

import dcp_jobs as jobs
import pytest
import rank_jobs
import torch
from ranks import run_ranks
from torch.distributed.tensor import Replicate, Shard

import varve
import varve.torch
import varve.torch.dcp as dcp

LAYOUTS: dict[int, dict[str, rank_jobs.Layout]] = {
    1: {"rows on 1": ((1,), (Shard(0),))},
    2: {"columns on 2": ((2,), (Shard(1),)), "replicated on 2": ((2,), (Replicate(),))},
    3: {"rows on 3": ((3,), (Shard(0),))},
    4: {"2x2 rows and columns": ((2, 2), (Shard(0), Shard(1)))},
}


@pytest.mark.slow
def test_every_layout_loads_every_other_and_so_does_torch(tmp_path: Path) -> None:
    for size, layouts in LAYOUTS.items():
        run_ranks(size, jobs.save_layouts, str(tmp_path), layouts)
    saved = sorted(os.listdir(tmp_path))
    assert len(saved) == 10
    for name in saved:
        assert varve.verify(tmp_path / name) == []
        found = varve.torch.read(tmp_path / name, flat=True)
        assert found["step"] == 3 and found["list.1.name"] == "x"
        torch.testing.assert_close(found["model.c"], rank_jobs.whole("c"), rtol=0, atol=0)
    for size, layouts in LAYOUTS.items():
        loads = run_ranks(size, jobs.load_layouts, str(tmp_path), layouts)
        assert loads == [15 * len(layouts)] * size


@pytest.mark.slow
def test_a_native_checkpoint_loads_through_torchs_planner(tmp_path: Path) -> None:
    run_ranks(3, rank_jobs.save_layouts, str(tmp_path), LAYOUTS[3])
    path = str(tmp_path / "rows on 3")
    for size in (1, 2):
        layout = next(iter(LAYOUTS[size].values()))
        run_ranks(size, jobs.load_model_and_step, path, layout)


@pytest.mark.slow
def test_fsdp2_with_adam_resumes_on_other_world_sizes(tmp_path: Path) -> None:
    path = str(tmp_path / "step-")
    saved = run_ranks(2, jobs.train, path)[0]
    for size in (1, 2, 3):
        assert run_ranks(size, jobs.resume, path)[0] == [saved] * 3


@pytest.mark.slow
def test_uncoordinated_ranks_make_one_checkpoint_that_any_number_loads(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.without_collectives, path, LAYOUTS[3]["rows on 3"])
    names = [(f"__{rank}.metadata", f"__{rank}_1.distcp") for rank in range(3)]
    assert sorted(os.listdir(path)) == sorted(sum(names, ()))
    assert varve.verify(path) == []
    for size in (1, 2):
        run_ranks(size, jobs.load_whole, path, next(iter(LAYOUTS[size].values())))


def test_part_of_a_checkpoint_by_uncoordinated_ranks_is_refused(tmp_path: Path) -> None:
    """DCP fills what it finds, leaves the rest as it was, and reports success."""
    path = tmp_path / "step"
    run_ranks(2, jobs.without_collectives, str(path), LAYOUTS[2]["columns on 2"])
    (path / "__1.metadata").unlink()
    loaded = {"model": {"a": torch.zeros(rank_jobs.SHAPES["a"])}}
    with pytest.raises(dcp.CheckpointError, match=r'"model\.a"'):
        dcp.load(loaded, checkpoint_id=path)
    assert not loaded["model"]["a"].any()


@pytest.mark.slow
def test_a_plan_that_a_planner_kept_from_a_save_by_torch_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    run_ranks(2, jobs.plans_cached_by_torch, path, LAYOUTS[2]["columns on 2"])
    assert varve.verify(f"{path}-varve") == []
    found = varve.torch.read(f"{path}-varve", flat=True)
    torch.testing.assert_close(found["model.c"], rank_jobs.whole("c"), rtol=0, atol=0)


def test_planners_that_keep_plans_write_into_the_save_that_is_under_way(tmp_path: Path) -> None:
    layout = LAYOUTS[2]["columns on 2"]
    run_ranks(2, jobs.cached_plans, str(tmp_path / "step"), layout)
    assert sorted(os.listdir(tmp_path)) == [f"step-{i}" for i in range(4)]


def test_a_process_group_and_a_single_rank_save_without_the_others(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.group_of_two, path)
    assert torch.equal(varve.torch.read(path)["w"], torch.ones(4))


def test_the_deprecated_functions_take_another_coordinator(tmp_path: Path) -> None:
    run_ranks(2, jobs.coordinator_one, str(tmp_path / "step"))
