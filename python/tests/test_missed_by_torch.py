"""A rank that misses a call of torch's protocol, in which torch matches calls by their order alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import missed_jobs as jobs
import pytest
import torch
from ranks import run_ranks

import varve
import varve.torch


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Where three ranks saved, and the outcomes of each: rank 1 makes other calls than the two others."""
    directory = tmp_path_factory.mktemp("missed")
    return directory, run_ranks(3, jobs.miss_by_torch, str(directory))


def failed(ran: Any, case: str) -> list[dict[str, str]]:
    """Returns the calls of each rank that failed."""
    return [
        {name: text for name, text in found[case].items() if text != "done"} for found in ran[1]
    ]


def check_named(text: str, earlier: str, later: str, rank: str) -> None:
    assert "are in different calls" in text, text
    assert f"in save {earlier}" in text and f"in save {later}" in text, text
    assert f"{rank} missed save {earlier}" in text and "same order" in text, text


def test_a_save_that_one_rank_misses_fails_by_its_name_and_the_next_one_works(ran: Any) -> None:
    zero, one, two = failed(ran, "one")
    assert list(zero) == list(two) == ["step-1"] and one == {}
    for text in (zero["step-1"], two["step-1"]):
        check_named(text, "step-1", "step-2", "rank 1")
        assert text.startswith("CheckpointError of 1: save "), text
    directory = ran[0] / "one"
    assert sorted(path.name for path in directory.iterdir()) == ["step-0", "step-2", "step-3"]
    for path in directory.iterdir():
        assert varve.verify(path) == []
        assert torch.equal(varve.torch.read(path)["w"], torch.arange(8.0))
    lines = [line for line in ran[1][1]["lines"] if "missed save step-1," in line]
    assert len(lines) == 1 and "save step-2: rank 1 has missed" in lines[0], lines


def test_saves_that_all_ranks_but_one_miss_fail_on_that_one(ran: Any) -> None:
    zero, one, two = failed(ran, "first")
    assert zero == two == {}
    assert list(one) == ["step-0", "step-1"]
    check_named(one["step-0"], "step-0", "step-2", "ranks 0, 2")
    assert one["step-0"].startswith("CheckpointError of 0: ")
    assert varve.verify(ran[0] / "first" / "step-2") == []


def test_planners_that_keep_plans_hide_no_missed_call(ran: Any) -> None:
    zero, one, two = failed(ran, "cached")
    assert list(zero) == list(two) == ["step-3"] and one == {}
    check_named(zero["step-3"], "step-3", "step-4", "rank 1")
    assert varve.verify(ran[0] / "cached" / "step-4") == []


def test_a_load_never_joins_a_save(ran: Any) -> None:
    zero, one, two = failed(ran, "load")
    assert list(zero) == list(two) == ["save", "load", "step-2"]
    assert list(one) == ["load", "step-2"] or list(one) == ["load"]
    assert "ranks 0, 2 are in save step-1, rank 1 is in load" in zero["save"], zero
    assert "ranks 0, 2 are in save step-1, rank 1 is in load" in one["load"], one
    assert varve.verify(ran[0] / "load" / "step-3") == []
    assert not (ran[0] / "load" / "step-2").exists()


def test_calls_whose_order_no_number_tells_fail_on_all_ranks(ran: Any) -> None:
    for rank, calls in enumerate(failed(ran, "names")):
        assert len(calls) == 2
        text = next(iter(calls.values()))
        assert "ranks 0, 2 are in save first, rank 1 is in save second" in text, (rank, text)
        assert " missed save" not in text and text.startswith("CheckpointError of None"), text
    assert not (ran[0] / "names").exists() or list((ran[0] / "names").iterdir()) == []


def test_saves_without_collectives_are_compared_at_their_end(ran: Any) -> None:
    zero, one, _ = failed(ran, "apart")
    assert list(zero) == ["step-1"] and list(one) == ["step-2"]
    check_named(zero["step-1"], "step-1", "step-2", "rank 1")
    check_named(one["step-2"], "step-1", "step-2", "rank 1")
