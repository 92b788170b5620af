"""Ranks find each other, name missing ranks, and are interrupted: real processes over sockets."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import channel_jobs as jobs
import pytest
import torch.distributed as dist
from ranks import errors_of_ranks, run_ranks

import varve
from varve.torch import _coordinator


@pytest.mark.parametrize("sub", [False, True])
@pytest.mark.parametrize("verb", jobs.VERBS)
def test_ranks_in_different_numbers_of_groups_save_and_load(
    verb: str, sub: bool, tmp_path: Path
) -> None:
    run_ranks(4, jobs.save_with_uneven_groups, str(tmp_path), verb, sub)
    if verb != "load":
        assert varve.verify(tmp_path / "all") == []


# Warm: the ranks have met before, and the deadline falls into an exchange.
@pytest.mark.parametrize(
    ("verb", "warm"),
    [("save", False), ("save", True), ("load", False), ("load", True), ("async_save", True)],
)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_does_not_come_is_named_within_the_time_limit(
    verb: str, victim: int, warm: bool, tmp_path: Path
) -> None:
    told = run_ranks(3, jobs.come_late, str(tmp_path), verb, victim, warm)
    others = [text for rank, text in enumerate(told) if rank != victim]
    assert all(f"rank {victim}" in text and "deadline" in text for text in others), told


@pytest.mark.slow
def test_a_late_rank_is_told_and_the_next_call_has_all_ranks(tmp_path: Path) -> None:
    told = run_ranks(3, jobs.be_late_and_go_on, str(tmp_path))
    assert [[text == "saved" for text in texts] for texts in told] == [[True, False, True]] * 3, (
        told
    )
    assert all("rank 1: did not come" in texts[1] for texts in told), told
    assert all("every rank of the process group has to make this call" in t[1] for t in told), told


def test_ranks_that_make_different_calls_are_told_which(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.make_different_calls, str(tmp_path / "step"))
    assert "rank 1: calls load step-other while rank 0 calls save step" in errors[0], errors


def test_two_threads_of_a_rank_save_one_after_the_other(tmp_path: Path) -> None:
    assert run_ranks(2, jobs.save_in_two_threads, str(tmp_path)) == [["saved", "saved"]] * 2


def test_a_signal_handler_that_saves_within_a_save_is_refused_and_does_not_hang(
    tmp_path: Path,
) -> None:
    told = run_ranks(2, jobs.save_in_a_signal_handler, str(tmp_path / "step"))
    assert all("set a flag" in text for text in told), told


@pytest.mark.slow
def test_a_rank_that_waits_logs_for_whom(tmp_path: Path) -> None:
    lines = run_ranks(3, jobs.log_waiting, str(tmp_path))
    assert "save late: rank 0 has waited 1 s for " in lines[0][0], lines
    assert any(
        "rank 2 (not there yet)" in line and "every rank of the process group" in line
        for line in lines[0]
    ), lines
    assert any("save slow" in line and "rank 1 (still w" in line for line in lines[0]), lines
    assert any("save late: rank 1 has waited" in line for line in lines[1]), lines


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_reaches_a_rank_that_waits_and_the_others_are_told(
    victim: int, tmp_path: Path
) -> None:
    told = run_ranks(3, jobs.interrupt_while_waiting, str(tmp_path / "step"), victim)
    assert told[victim][0] == "KeyboardInterrupt"
    assert f"rank {victim}" in told[1 - victim][0] and "interrupted (Ctrl-C)" in told[1 - victim][0]
    assert all(seconds < 10 for _, seconds in told), told
    assert os.listdir(tmp_path) == []


def test_a_failed_background_save_is_logged_once_and_the_next_call_warns(tmp_path: Path) -> None:
    (lines0, warned0), (lines1, warned1) = run_ranks(2, jobs.fail_and_drop, str(tmp_path), "log")
    assert (
        len(lines0) == 1 and "a background save has failed: CheckpointExistsError" in lines0[0]
    ), lines0
    assert lines1 == []
    assert all("background save has failed" in "".join(warned) for warned in (warned0, warned1))
    assert varve.verify(tmp_path / "next") == []


def test_a_failed_background_save_is_raised_by_the_next_call_on_all_ranks(tmp_path: Path) -> None:
    outcomes = run_ranks(2, jobs.fail_and_drop, str(tmp_path), "raise")
    for lines, _ in outcomes:
        assert any(
            line.startswith("raised: ") and "background save has failed" in line for line in lines
        ), lines
    assert not (tmp_path / "next").exists()


def test_a_store_takes_the_keys_of_4096_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    # TCPStore refuses keys of more than 8 KiB; the numbers of 4,096 ranks alone are 20 KiB.
    store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=30))
    monkeypatch.setattr(_coordinator, "job_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    group = _coordinator._Group(tuple(range(4096)))
    before = store.num_keys()
    group.channel.enter("x", 30.0, 30.0, group.key, _coordinator._look_up, _coordinator._publish)
    assert store.num_keys() == before + 1
    published = _coordinator._look_up(group.key)
    assert published is not None and len(published) < 1024
    group.channel.hang_up()
