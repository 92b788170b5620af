"""Asynchronous saves in one process: what is in them, what the handle and the stager do."""

from __future__ import annotations

import concurrent.futures
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from async_jobs import LONG, MIB, SLOW, Gate, assert_holds, listed, scribble, state_of
from rank_jobs import Failing

import varve
import varve.torch
from varve.torch import AsyncSaveReport, SaveHandle, Stager, async_save

# ---- Staging ----


def test_what_changes_after_a_blocking_call_is_saved_as_it_was_at_the_call(tmp_path: Path) -> None:
    state = state_of(1)
    handle = async_save(state, tmp_path / "a")
    scribble(state)
    handle.result(LONG)
    assert_holds(tmp_path / "a", 1)


def test_what_changes_after_wait_staged_is_saved_as_it_was_at_the_call(tmp_path: Path) -> None:
    state = state_of(1)
    handle = async_save(state, tmp_path / "a", staging="overlapped")
    handle.wait_staged(LONG)
    scribble(state)
    handle.result(LONG)
    assert_holds(tmp_path / "a", 1)


def test_plain_values_of_an_overlapped_save_may_change_right_after_the_call(tmp_path: Path) -> None:
    state = state_of(1)
    with held_back(tmp_path) as (stager, gate):
        handle = async_save(state, tmp_path / "a", stager=stager, staging="overlapped")
        state["step"] = 2
        state["history"].clear()
        del state["nested"]
        gate.opened.set()
        handle.result(LONG)
    assert_holds(tmp_path / "a", 1)


class held_back:
    """A stager whose memory is all taken by a save, which ends when the gate is opened."""

    def __init__(self, directory: Path) -> None:
        self.stager = Stager(memory_budget=16 * MIB)
        self.gate = Gate()
        self.first = async_save(
            state_of(0, 15), directory / "first", stager=self.stager, progress=self.gate
        )
        assert self.gate.begun.wait(LONG)

    def __enter__(self) -> tuple[Stager, Gate]:
        return self.stager, self.gate

    def __exit__(self, *_: Any) -> None:
        self.gate.opened.set()
        self.stager.close()


def test_an_overlapped_call_returns_before_the_copy_is_made(tmp_path: Path) -> None:
    with held_back(tmp_path) as (stager, gate):
        handle = async_save(state_of(1), tmp_path / "a", stager=stager, staging="overlapped")
        assert not handle.staging_completion.done()
        with pytest.raises(concurrent.futures.TimeoutError):
            handle.wait_staged(timeout=0.01)
        gate.opened.set()
        handle.wait_staged(LONG)
        handle.result(LONG)
    assert_holds(tmp_path / "a", 1)


def test_wait_staged_before_holds_up_the_next_step_of_the_optimizer_and_only_that(
    tmp_path: Path,
) -> None:
    weight = torch.nn.Parameter(torch.full((100,), 8.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(100)
    with held_back(tmp_path) as (stager, gate):
        handle = async_save({"w": weight}, tmp_path / "a", stager=stager, staging="overlapped")
        handle.wait_staged_before(optimizer)
        step = threading.Thread(target=optimizer.step)
        step.start()
        step.join(0.1)
        assert step.is_alive() and weight[0] == 8
        gate.opened.set()
        step.join(LONG)
        assert weight[0] == 7
        handle.result(LONG)
    assert varve.torch.read(tmp_path / "a")["w"].tolist() == [8.0] * 100
    with held_back(tmp_path / "again") as (stager, _):
        async_save({"w": weight}, tmp_path / "b", stager=stager, staging="overlapped")
        optimizer.step()
        assert weight[0] == 6


# ---- The handle ----


def test_the_handle_is_a_future_of_the_report(tmp_path: Path) -> None:
    handle = async_save(state_of(1), tmp_path / "a")
    assert isinstance(handle, concurrent.futures.Future)
    assert concurrent.futures.wait([handle], LONG).done == {handle}
    report = handle.result()
    assert isinstance(report, AsyncSaveReport)
    assert report.bytes_written > MIB and report.attempts == 1 and not report.in_waves
    assert report.staging_seconds > 0
    assert handle.exception() is None and not handle.cancelled() and handle.done()


def test_the_handle_has_the_two_futures_of_torchs_response(tmp_path: Path) -> None:
    gate = Gate()
    handle = async_save(state_of(1), tmp_path / "a", progress=gate)
    assert handle.staging_completion.done() and handle.staging_completion.result() is None
    assert handle.upload_completion is handle and not handle.upload_completion.done()
    gate.opened.set()
    assert isinstance(handle.upload_completion.result(LONG), AsyncSaveReport)


def test_a_result_that_is_not_there_in_time_is_a_timeout(tmp_path: Path) -> None:
    gate = Gate()
    handle = async_save(state_of(1), tmp_path / "a", progress=gate)
    with pytest.raises(concurrent.futures.TimeoutError):
        handle.result(timeout=0.01)
    gate.opened.set()
    handle.result(LONG)


def test_on_done_is_called_once_with_the_handle(tmp_path: Path) -> None:
    calls: list[SaveHandle] = []
    called = threading.Event()

    def on_done(handle: SaveHandle) -> None:
        calls.append(handle)
        called.set()

    handle = async_save(state_of(1), tmp_path / "a", on_done=on_done)
    assert called.wait(LONG)
    assert calls == [handle] and handle.done()
    called.clear()
    failed = async_save(state_of(1), tmp_path / "a", on_done=on_done)
    assert called.wait(LONG)
    assert calls == [handle, failed] and failed.exception() is not None


def test_an_on_done_that_raises_harms_no_save(tmp_path: Path) -> None:
    def on_done(_: SaveHandle) -> None:
        raise RuntimeError("not good")

    async_save(state_of(1), tmp_path / "a", on_done=on_done).result(LONG)
    async_save(state_of(2), tmp_path / "b").result(LONG)
    assert listed(tmp_path) == ["a", "b"]


def test_a_cancelled_save_ends_as_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    handle = async_save(state_of(1, 17), tmp_path / "a", max_write_bandwidth=SLOW)
    assert handle.cancel()
    with pytest.raises(varve.CancelledError, match=r"/a: cancelled"):
        handle.result(LONG)
    assert handle.cancelled() and os.listdir(tmp_path) == []


def test_a_save_that_has_ended_cannot_be_cancelled(tmp_path: Path) -> None:
    handle = async_save(state_of(1), tmp_path / "a")
    handle.result(LONG)
    assert not handle.cancel() and not handle.cancelled()
    assert_holds(tmp_path / "a", 1)


def test_a_save_is_given_up_at_its_deadline(tmp_path: Path) -> None:
    handle = async_save(state_of(1, 17), tmp_path / "a", max_write_bandwidth=SLOW, deadline=0.2)
    with pytest.raises(varve.CancelledError, match="deadline of 200 ms"):
        handle.result(LONG)
    assert os.listdir(tmp_path) == []
    async_save(state_of(2), tmp_path / "a", deadline=LONG).result(LONG)
    assert_holds(tmp_path / "a", 2)


def test_a_taken_name_is_the_handles_error(tmp_path: Path) -> None:
    async_save(state_of(1), tmp_path / "a").result(LONG)
    second = async_save(state_of(2), tmp_path / "a")
    with pytest.raises(varve.CheckpointExistsError):
        second.result(LONG)
    assert not second.cancelled()
    assert_holds(tmp_path / "a", 1)


def test_a_value_that_cannot_be_stored_is_the_handles_error(tmp_path: Path) -> None:
    handle = async_save({**state_of(1), "odd": Failing()}, tmp_path / "a")
    with pytest.raises(varve.InvalidArgumentError, match="odd") as caught:
        handle.result(LONG)
    assert caught.value.__cause__ is not None, "the traceback of what refused it"
    with pytest.raises(varve.InvalidArgumentError, match="odd"):
        handle.wait_staged(LONG)
    (listed,) = varve.list_checkpoints(str(tmp_path))
    assert (listed.name, listed.state) == ("a", "failed")
    assert "odd" in listed.detail


def test_a_state_dict_that_raises_is_the_handles_error(tmp_path: Path) -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise KeyError("weights")

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    handle = async_save({"model": Broken()}, tmp_path / "a")
    with pytest.raises(varve.InvalidArgumentError, match="KeyError: 'weights'") as caught:
        handle.result(LONG)
    assert isinstance(caught.value.__cause__, KeyError)


def test_saves_that_need_pickles_are_refused_unless_allowed(tmp_path: Path) -> None:
    state = {"odd": re.compile("a")}
    refused = async_save(state, tmp_path / "a")
    with pytest.raises(varve.InvalidArgumentError, match="odd"):
        refused.result(LONG)
    async_save(state, tmp_path / "a", allow_pickle=True).result(LONG)
    assert varve.torch.read(tmp_path / "a", allow_pickle=True) == state


def test_torch_opens_what_is_saved_in_its_format(tmp_path: Path) -> None:
    state = {"w": torch.arange(1000.0), "step": 3}
    handle = async_save(state, tmp_path / "a", format="dcp")
    state["w"].zero_()
    handle.result(LONG)
    found = {"w": torch.zeros(1000), "step": 0}
    dcp.load(found, checkpoint_id=tmp_path / "a")
    assert torch.equal(found["w"], torch.arange(1000.0)) and found["step"] == 3


# ---- Arguments that make no sense ----


@pytest.mark.parametrize(
    "arguments",
    [
        {"staging": "later"},
        {"format": "zip"},
        {"coordinate": False, "save_id": b"short"},
        {"max_write_bandwidth": -1},
        {"retries": "often"},
        {"deadline": -1},
        {"deadline": float("nan")},
        {"timeout": -1},
        {"overwrite": "yes"},
        {"check_torn": "yes"},
        {"progress": 1},
        {"on_done": "later"},
        {"executor": "elsewhere"},
    ],
)
def test_a_call_that_makes_no_sense_raises_at_once(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(varve.InvalidArgumentError):
        async_save(state_of(1), tmp_path / "a", **arguments)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"when_busy": "never"},
        {"when_busy": None},
        {"at_exit": "shrug"},
        {"max_in_flight": 0},
        {"copy_threads": -1},
        {"memory_budget": -1},
        {"memory_budget": 1.5},
    ],
)
def test_a_stager_that_makes_no_sense_raises_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=next(iter(arguments))):
        Stager(**arguments)


def test_a_closed_stager_is_refused_at_once(tmp_path: Path) -> None:
    stager = Stager()
    stager.close()
    for use in (
        lambda: async_save(state_of(1), tmp_path / "a", stager=stager),
        lambda: stager.prepare(1),
        stager.wait_prepared,
        stager.drain,
        stager.abort,
        lambda: stager.memory_budget,
    ):
        with pytest.raises(varve.InvalidArgumentError, match="closed"):
            use()


def test_a_time_without_end_is_one(tmp_path: Path) -> None:
    for_ever = float("inf")
    async_save(state_of(1), tmp_path / "a", timeout=for_ever, deadline=for_ever).result(LONG)
    assert_holds(tmp_path / "a", 1)


def test_a_path_that_cannot_be_one_is_refused_at_once() -> None:
    with pytest.raises(varve.InvalidArgumentError, match="NUL"):
        async_save(state_of(1), "a\0b")
