"""Loads of a part by several ranks: what they want together, and failures of one that all learn."""

from __future__ import annotations

import os
from pathlib import Path

import load_jobs as jobs
import pytest
import torch
from ranks import errors_of_ranks, run_ranks
from storage_jobs import registered

import varve.torch


@pytest.fixture
def step(tmp_path: Path) -> str:
    varve.torch.save({"model": jobs.network(), "step": 5}, tmp_path / "step")
    return str(tmp_path / "step")


def test_sharded_modules_are_destinations_on_the_meta_device_too(step: str) -> None:
    run_ranks(2, jobs.load_sharded, step)


def test_a_rank_outside_of_a_dtensors_mesh_is_not_told_that_it_wants_nothing(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "c")
    varve.torch.save({"w": torch.ones(4), "rest": torch.ones(1)}, path)
    assert run_ranks(3, jobs.load_beside_a_mesh, path) == [(0, []), (1, []), (1, [])]


def test_ranks_that_each_want_a_part_want_the_whole_together(step: str) -> None:
    assert run_ranks(2, jobs.load_stages, step) == [["step"], ["step"]]


def test_a_rank_that_wants_nothing_is_no_reason_to_warn(step: str) -> None:
    run_ranks(2, jobs.load_nothing_on_one_rank, step)


def test_a_bad_argument_of_one_rank_fails_all_and_names_the_rank(step: str) -> None:
    errors = errors_of_ranks(2, jobs.load_with_a_bad_argument_on_one_rank, step)
    assert all("rank 1" in error and "keys=3" in error for error in errors.values())
    assert len(errors) == 2


@pytest.mark.parametrize(
    ("call", "option"),
    [("load", "strict=3"), ("save", "overwrite='yes'"), ("async_save", "retries='many'")],
)
def test_an_option_that_one_rank_gives_wrongly_fails_all(call: str, option: str, step: str) -> None:
    errors = errors_of_ranks(2, jobs.call_with_a_bad_option_on_one_rank, step, call)
    assert option in errors[1]
    assert "rank 1" in errors[0] and option in errors[0]


def test_ranks_that_differ_in_strict_all_fail(step: str) -> None:
    errors = errors_of_ranks(2, jobs.load_strictly_on_one_rank, step)
    assert len(errors) == 2
    assert all("strict (False on rank 0, True on rank 1)" in each for each in errors.values())


def test_a_destination_of_one_rank_that_cannot_be_filled_fails_all(step: str) -> None:
    errors = errors_of_ranks(2, jobs.load_into_shared_memory_on_one_rank, step)
    assert len(errors) == 2
    assert all("rank 1" in error and "share memory" in error for error in errors.values())


#: Bytes of the wanted tensor, and what a little that others of the process read may add.
_ALL = 64 << 20
_MORE = 8 << 20


@pytest.fixture
def cold(tmp_path: Path) -> str:
    """A checkpoint past the page cache, of a tensor that is wanted and a larger one that is not."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.write(bytes(_MORE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = jobs.bytes_from_disk()
    probe.read_bytes()
    if jobs.bytes_from_disk() < before + _MORE:
        pytest.skip(f"/proc/self/io does not count what is read from {tmp_path}")
    path = str(tmp_path / "step")
    varve.torch.save({"w": jobs.numbered(), "unwanted": torch.ones(2 * _ALL >> 2)}, path)
    return path


@pytest.mark.parametrize("by", ["varve.torch.load", "varve.torch.dcp", "torch"])
@pytest.mark.parametrize("layout", ["plain", "replicated", "columns", "rows"])
def test_ranks_of_a_node_read_what_they_all_need_once_from_the_disk(
    by: str, layout: str, cold: str
) -> None:
    by_rank = run_ranks(3, jobs.load_and_count, cold, layout, by, True)
    assert _ALL <= sum(read for read, _ in by_rank) <= _ALL + _MORE
    if by == "varve.torch.load":
        assert sum(asked for _, asked in by_rank) <= _ALL + _MORE


@pytest.mark.parametrize("by", ["varve.torch.load", "varve.torch.dcp"])
@pytest.mark.parametrize("layout", ["plain", "columns"])
def test_ranks_of_two_nodes_do_so_too(by: str, layout: str, cold: str) -> None:
    by_rank = run_ranks(4, jobs.load_as_of_two_nodes, cold, layout, by)
    assert _ALL <= sum(read for read, _ in by_rank) <= _ALL + _MORE
    if by == "varve.torch.load":
        # The two nodes have one page cache here, and no rank counts what it finds in that.
        assert _ALL // 2 <= sum(asked for _, asked in by_rank) <= _ALL * 1.5


@pytest.mark.parametrize("by", ["varve.torch.load", "varve.torch.dcp"])
def test_ranks_ask_an_object_store_once_for_what_they_all_need(by: str, tmp_path: Path) -> None:
    registered("obstore", str(tmp_path))
    varve.torch.save({"w": jobs.numbered()}, "own://run/step")
    asked = run_ranks(3, jobs.load_from_a_store_and_count, str(tmp_path), by, True)
    assert _ALL <= sum(asked) <= _ALL * 1.05
    assert max(asked) <= _ALL / 2


def test_ranks_that_do_not_share_ask_an_object_store_each(tmp_path: Path) -> None:
    registered("obstore", str(tmp_path))
    varve.torch.save({"w": jobs.numbered()}, "own://run/step")
    by = "varve.torch.load"
    asked = run_ranks(2, jobs.load_from_a_store_and_count, str(tmp_path), by, False)
    assert min(asked) >= _ALL


def test_ranks_that_do_not_share_each_read_for_themselves(cold: str) -> None:
    by_rank = run_ranks(3, jobs.load_and_count, cold, "replicated", "varve.torch.load", False)
    assert all(read >= _ALL and asked >= _ALL for read, asked in by_rank)


def test_an_error_tells_each_rank_of_its_own_destination(tmp_path: Path) -> None:
    path = tmp_path / "step"
    varve.torch.save({"0": torch.ones(1 << 20), "1": torch.ones(1 << 20)}, path)
    [data] = path.glob("*.safetensors")
    with data.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)  # In the last tensor.
        file.write(b"damage")
    of_0, of_1 = run_ranks(2, jobs.load_a_tensor_each, str(path))
    damage = "rank 1: " + str(data)
    assert damage in of_0 and damage in of_1
    assert of_0.endswith("; this rank has read all of its tensors")
    assert of_1.endswith('; the destination is partly written: tensor "1"')
    assert "partly written" not in of_0


def test_a_plan_of_entries_that_are_not_stored_is_still_made(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    varve.torch.save({"w": torch.ones(4)}, path)
    assert run_ranks(2, jobs.load_with_an_entry_of_the_readers_own, path) == [7.0, 7.0]
