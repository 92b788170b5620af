"""Several ranks: real processes with gloo save in one layout and load in another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import rank_jobs as jobs
import torch
from ranks import errors_of_ranks, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import varve
import varve.torch

#: World size, then mesh shape and placements. Uneven and empty shards come from the shapes.
LAYOUTS: dict[str, tuple[int, jobs.Layout]] = {
    "rows on 2": (2, ((2,), (Shard(0),))),
    "rows on 4": (4, ((4,), (Shard(0),))),
    "columns on 3": (3, ((3,), (Shard(1),))),
    "replicated on 2": (2, ((2,), (Replicate(),))),
    "2x2 rows and columns": (4, ((2, 2), (Shard(0), Shard(1)))),
    "2x2 rows twice": (4, ((2, 2), (Shard(0), Shard(0)))),
    "2x2 replicated rows": (4, ((2, 2), (Replicate(), Shard(0)))),
}


def _by_size() -> dict[int, dict[str, jobs.Layout]]:
    grouped: dict[int, dict[str, jobs.Layout]] = {}
    for name, (size, layout) in LAYOUTS.items():
        grouped.setdefault(size, {})[name] = layout
    return grouped


@pytest.mark.slow
def test_any_layout_saves_and_any_layout_loads(tmp_path: Path) -> None:
    for size, layouts in _by_size().items():
        run_ranks(size, jobs.save_layouts, str(tmp_path), layouts)
    paths = [str(tmp_path / name) for name in LAYOUTS]
    for path in paths:
        assert varve.verify(path) == []
        for name, tensor in varve.torch.read(path, "model", flat=True).items():
            whole = jobs.whole(name.removeprefix("model."))
            torch.testing.assert_close(tensor, whole, rtol=0, atol=0)
    for size, layouts in _by_size().items():
        run_ranks(size, jobs.load_layouts, paths, layouts)


def test_dtensors_of_one_plain_box_are_added_without_a_call_of_python(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    by_rank = run_ranks(2, jobs.dtensors_on_their_own, path)
    assert [saved for saved, _ in by_rank] == [
        ["transposed", "two boxes"],  # Not row-major; not one box.
        ["transposed", "few", "two boxes"],  # Rank 1 has none of these few rows.
    ]
    assert all(loaded == saved for saved, loaded in by_rank)
    whole = varve.torch.read(path)
    expected = torch.arange(48.0).reshape(8, 6)
    assert all(torch.equal(whole[name], expected) for name in ("rows", "columns", "two boxes"))
    assert torch.equal(whole["transposed"], expected.t())


def test_a_partial_dtensor_is_refused_with_the_reason(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.save_partial, str(tmp_path / "x"))
    assert all('"grad"' in e and "Partial" in e and "redistribute" in e for e in errors.values())
    assert os.listdir(tmp_path) == []


def test_shards_of_tensor_parallel_shards_are_placed_as_fsdp_cuts_them(tmp_path: Path) -> None:
    """Also where nothing divides evenly: torch's own reading of such placements gives row 6 to rank 4."""
    path = str(tmp_path / "x")
    run_ranks(6, jobs.save_uneven, path)
    assert torch.equal(varve.torch.read(path)["w"], torch.arange(7.0))
    assert run_ranks(6, jobs.load_uneven, path) == [[0, 1], [4], [2, 3], [5], [], [6]]


def test_replicated_state_is_written_once_and_spread_evenly(tmp_path: Path) -> None:
    written = run_ranks(4, jobs.save_ddp, str(tmp_path / "step"))
    assert sum(written) < 8 * 64 * 1024 * 4 + 4 * 16384
    assert max(written) < 1.1 * sum(written) / 4


def test_per_rank_values_come_back_and_new_ranks_get_rank_0s(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(2, jobs.save_ddp, path)
    assert run_ranks(2, jobs.load_per_rank, path) == [0, 10]
    assert run_ranks(3, jobs.load_per_rank, path) == [0, 10, 0]
    assert run_ranks(1, jobs.load_per_rank, path) == [0]
    assert set(varve.torch.read(path, "rng/*")) == {"rng/rank0", "rng/rank1"}


def test_names_that_users_make_of_ranks_are_names_as_others(tmp_path: Path) -> None:
    """Another rank's value is given for a PerRank alone."""
    path = str(tmp_path / "step")
    run_ranks(2, jobs.save_names_of_its_own, path)
    assert run_ranks(2, jobs.load_names_of_its_own, path, "exact") == [
        ([rank, rank], [], []) for rank in range(2)
    ]
    (value, missing, unexpected), *_ = run_ranks(1, jobs.load_names_of_its_own, path, True)
    assert (value, missing, unexpected) == ([0, 0], [], ["experts.x/rank1", "rank1.w"])
    errors = errors_of_ranks(3, jobs.load_names_of_its_own, path, True)
    assert all("rank2.w" in e and "experts.x/rank2" in e for e in errors.values()), errors


@pytest.mark.slow
def test_fsdp2_with_adamw_resumes_on_other_world_sizes(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    saved = run_ranks(2, jobs.train_fsdp, path)[0]
    for size in (1, 2, 3):
        assert run_ranks(size, jobs.resume_fsdp, path)[0] == saved


def test_sharded_tensors_save(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.save_sharded_tensor, path)
    torch.testing.assert_close(varve.torch.read(path)["a"], jobs.whole("a"), rtol=0, atol=0)


def test_ranks_may_hold_different_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.pipeline_stages, path)
    assert sorted(varve.torch.read(path)["layers"]) == [0, 1, 2]


def test_a_failure_on_one_rank_is_named_on_all(tmp_path: Path) -> None:
    errors = errors_of_ranks(3, jobs.fail_on_one_rank, str(tmp_path / "x"), 1)
    assert all("rank 1" in e and '"odd"' in e and "Failing" in e for e in errors.values())
    assert os.listdir(tmp_path) == []


def test_an_object_that_fails_to_load_on_one_rank_is_told_on_all(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.fail_to_load_on_one_rank, str(tmp_path / "x"))
    wanted = (
        "rank 1: RuntimeError: the file of this rank is missing; the tensors of the destination"
    )
    assert sorted(errors) == [0, 1] and all(wanted in error for error in errors.values())


def test_ranks_that_disagree_about_a_shape_are_refused(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.disagree, str(tmp_path / "x"))
    assert all('"w"' in e and "rank 1" in e and "[4]" in e for e in errors.values())


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_killed_in_a_save_is_named_and_nothing_becomes_visible(
    victim: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "step")
    errors = errors_of_ranks(3, jobs.die_in_save, path, victim, dead=(victim,))
    assert all(f"rank {victim}" in e for e in errors.values()), errors
    assert not os.path.exists(path)
    run_ranks(2, jobs.save_ddp, path)  # The next save of the name clears up and succeeds.
    assert os.listdir(tmp_path) == ["step"]


@pytest.mark.slow
def test_ranks_with_separate_disks_are_found_out(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.separate_disks, str(tmp_path))
    assert all("rank 1" in e and "shared" in e for e in errors.values()), errors


@pytest.mark.slow
def test_saving_without_coordination_is_whole_once_all_files_are_there(tmp_path: Path) -> None:
    path = str(tmp_path / "step-4")
    first = bytes(range(16))
    run_ranks(3, jobs.save_uncoordinated, path, first, (0, 2))
    (entry,) = varve.list_checkpoints(str(tmp_path))
    assert entry.state == "incomplete" and "rank 1" in entry.detail
    with pytest.raises(varve.PreconditionError, match="rank 1"):
        varve.torch.read(path)
    run_ranks(3, jobs.save_uncoordinated, path, first, (1,))
    assert varve.list_checkpoints(str(tmp_path))[0].state == "whole"
    assert varve.verify(path) == []
    assert run_ranks(2, jobs.load_uncoordinated, path) == [0, 1]
    assert run_ranks(4, jobs.load_uncoordinated, path) == [0, 1, 2, 0]


def test_files_of_two_attempts_never_make_one_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "step-4")
    run_ranks(2, jobs.save_uncoordinated, path, b"a" * 16, (0,))
    run_ranks(2, jobs.save_uncoordinated, path, b"b" * 16, (1,))
    assert varve.list_checkpoints(str(tmp_path))[0].state == "incomplete"


def test_ranks_find_the_save_id_without_being_given_one(tmp_path: Path) -> None:
    path = str(tmp_path / "step-4")
    run_ranks(3, jobs.save_uncoordinated_by_default_id, path)
    torch.testing.assert_close(varve.torch.read(path)["a"], jobs.whole("a"), rtol=0, atol=0)


def test_saves_in_a_row_overwrite(tmp_path: Path) -> None:
    path = str(tmp_path / "latest")
    run_ranks(2, jobs.many_saves, path, 10)
    assert varve.torch.read(path)["w"][0] == 9
    assert os.listdir(tmp_path) == ["latest"]


def test_ranks_save_after_torch_distributed_was_set_up_anew(tmp_path: Path) -> None:
    run_ranks(2, jobs.save_after_a_restart, str(tmp_path))
    whole = [e.name for e in varve.list_checkpoints(str(tmp_path)) if e.state == "whole"]
    assert len(whole) == 4


def test_a_process_group_saves_without_the_other_ranks(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.save_in_own_group, path)
    torch.testing.assert_close(varve.torch.read(path)["a"], jobs.whole("a"), rtol=0, atol=0)


@pytest.mark.slow
def test_one_rank_of_a_job_saves_and_loads_alone(agent: str, tmp_path: Path) -> None:
    run_ranks(2, jobs.rank_0_saves_alone, str(tmp_path))
    for name in ("thread", "process", "call"):
        assert torch.equal(varve.torch.read(tmp_path / name)["a"], jobs.whole("a"))


@pytest.mark.usefixtures("one_rank")
def test_dtensors_of_many_meshes_and_shapes_come_back(tmp_path: Path) -> None:
    """More meshes than the engine keeps places for, and meshes that are equal but not the same."""

    def state(value: float) -> dict[str, torch.Tensor]:
        return {
            f"w{i}": DTensor.from_local(
                torch.full((2 + i % 3, 4), value + i),
                init_device_mesh("cpu", (1,)),
                [Shard(i % 2) if i % 5 else Replicate()],
            )
            for i in range(80)
        }

    varve.torch.save(state(1.0), tmp_path / "a")
    loaded = state(0.0)
    varve.torch.load(loaded, tmp_path / "a")
    for i, tensor in enumerate(loaded.values()):
        assert torch.equal(tensor.to_local(), torch.full((2 + i % 3, 4), 1.0 + i))
