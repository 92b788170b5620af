"""A rank that misses a call of the drop-in for torch's functions, which match calls by their order alone."""

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


def check_named(text: str, earlier: str, later: str) -> None:
    assert f"calls {later} while" in text and f"calls {earlier}, which" in text, text
    assert (
        " missed; all ranks must make the same calls, of the same names, in the same order" in text
    ), text


def test_a_save_that_one_rank_misses_fails_by_its_name_and_the_next_one_works(ran: Any) -> None:
    zero, one, two = failed(ran, "one")
    assert list(zero) == list(two) == ["step-1"] and one == {}
    for text in (zero["step-1"], two["step-1"]):
        check_named(text, "save step-1", "save step-2")
        assert text.startswith("CheckpointError of 1: save ") and "rank 1: " in text, text
    directory = ran[0] / "one"
    assert sorted(path.name for path in directory.iterdir()) == ["step-0", "step-2", "step-3"]
    for path in directory.iterdir():
        assert varve.verify(path) == []
        assert torch.equal(varve.torch.read(path)["w"], torch.arange(8.0))
    lines = [line for line in ran[1][1]["lines"] if "missed save step-1," in line]
    assert lines and "save step-2: rank 1 has missed" in lines[0], lines


def test_saves_that_all_ranks_but_one_miss_fail_on_that_one(ran: Any) -> None:
    zero, one, two = failed(ran, "first")
    assert zero == two == {}
    assert list(one) == ["step-0", "step-1"]
    check_named(one["step-0"], "save step-0", "save step-2")
    assert one["step-0"].startswith("CheckpointError of 0: ")
    assert varve.verify(ran[0] / "first" / "step-2") == []


def test_planners_that_keep_plans_hide_no_missed_call(ran: Any) -> None:
    zero, one, two = failed(ran, "cached")
    assert list(zero) == list(two) == ["step-3"] and one == {}
    check_named(zero["step-3"], "save step-3", "save step-4")
    assert varve.verify(ran[0] / "cached" / "step-4") == []


def test_a_load_never_joins_a_save(ran: Any) -> None:
    zero, one, two = failed(ran, "load")
    assert list(zero) == list(two) == ["save"] and one == {}
    check_named(zero["save"], "save step-1", "load")
    assert not (ran[0] / "load" / "step-1").exists()
    for step in ("step-2", "step-3"):
        assert varve.verify(ran[0] / "load" / step) == []


def test_a_call_is_missed_by_its_name_where_names_have_no_numbers(ran: Any) -> None:
    zero, one, two = failed(ran, "names")
    assert list(zero) == list(two) == ["first"] and one == {}
    check_named(zero["first"], "save first", "save second")
    assert sorted(path.name for path in (ran[0] / "names").iterdir()) == ["second", "third"]


def test_saves_without_collectives_are_compared_too(ran: Any) -> None:
    zero, one, two = failed(ran, "apart")
    assert list(zero) == list(two) == ["step-1"] and one == {}
    check_named(zero["step-1"], "save step-1", "save step-2")
    assert varve.verify(ran[0] / "apart" / "step-2") == []
