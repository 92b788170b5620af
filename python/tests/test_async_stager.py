"""The stager: memory kept from save to save, how many saves may be under way, and which yields."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from async_jobs import LONG, MIB, SLOW, Gate, assert_holds, listed, scribble, state_of

import varve
import varve.torch
from varve.torch import Stager, async_save


def test_leaving_a_stager_waits_for_its_saves(tmp_path: Path) -> None:
    gate = Gate()
    with Stager() as stager:
        handle = async_save(state_of(1), tmp_path / "a", stager=stager, progress=gate)
        assert not handle.done()
        gate.opened.set()
    assert handle.done()
    assert_holds(tmp_path / "a", 1)


def test_a_stager_may_be_closed_twice() -> None:
    stager = Stager()
    stager.close()
    stager.close()
    with stager:
        pass


def test_a_stager_closes_while_other_threads_go_on_saving(tmp_path: Path) -> None:
    stager = Stager()
    errors: list[Exception] = []

    def saves(name: str) -> None:
        try:
            while True:
                async_save(state_of(1), tmp_path / name, stager=stager, overwrite=True).result(LONG)
        except varve.InvalidArgumentError as error:
            errors.append(error)

    threads = [threading.Thread(target=saves, args=(f"{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    stager.close()
    for thread in threads:
        thread.join(LONG)
    assert [str(error) for error in errors] == ["the stager is closed"] * 4
    for number in range(4):
        if (tmp_path / f"{number}").exists():
            assert_holds(tmp_path / f"{number}", 1)


def test_drain_waits_and_the_stager_goes_on(tmp_path: Path) -> None:
    with Stager() as stager:
        for step in range(3):
            handle = async_save(state_of(step), tmp_path / f"{step}", stager=stager)
            stager.drain()
            assert handle.done() and handle.exception() is None
    assert listed(tmp_path) == ["0", "1", "2"]


def test_abort_gives_up_what_is_under_way_and_the_stager_goes_on(tmp_path: Path) -> None:
    with Stager() as stager:
        handles = [
            async_save(state_of(i, 17), tmp_path / f"{i}", stager=stager, max_write_bandwidth=SLOW)
            for i in range(2)
        ]
        stager.abort()
        assert all(handle.cancelled() for handle in handles)
        async_save(state_of(2), tmp_path / "2", stager=stager).result(LONG)
    assert listed(tmp_path) == ["2"]


def test_memory_may_be_prepared_for_a_state_or_for_a_number_of_bytes(tmp_path: Path) -> None:
    with Stager() as stager:
        for size in (state_of(1, 20), 30 * MIB):
            stager.prepare(size)
            stager.wait_prepared()
        async_save(state_of(1, 20), tmp_path / "a", stager=stager).result(LONG)
    assert_holds(tmp_path / "a", 1, 20)


def test_the_memory_budget_is_the_users_in_whole_blocks() -> None:
    with Stager(memory_budget=40 * MIB) as stager:
        assert stager.memory_budget == 40 * MIB
    with Stager(memory_budget=1) as stager:
        assert stager.memory_budget == 16 * MIB
    with Stager() as stager:
        assert stager.memory_budget > 16 * MIB


@pytest.mark.parametrize("staging", ["blocking", "overlapped"])
def test_a_state_larger_than_the_memory_is_copied_in_waves(tmp_path: Path, staging: str) -> None:
    with Stager(memory_budget=16 * MIB) as stager:
        state = state_of(1, 60)
        handle = async_save(state, tmp_path / "a", stager=stager, staging=staging)
        handle.wait_staged(LONG)
        scribble(state)
        report = handle.result(LONG)
        small = async_save(state_of(2), tmp_path / "b", stager=stager).result(LONG)
    assert report.in_waves and not small.in_waves
    assert_holds(tmp_path / "a", 1, 60)
    assert_holds(tmp_path / "b", 2)


def test_when_busy_wait_holds_the_call_until_a_save_has_ended(tmp_path: Path) -> None:
    gate = Gate()
    with Stager(max_in_flight=1) as stager:
        first = async_save(state_of(1), tmp_path / "1", stager=stager, progress=gate)
        second: list[Any] = []
        call = threading.Thread(
            target=lambda: second.append(async_save(state_of(2), tmp_path / "2", stager=stager))
        )
        call.start()
        call.join(0.1)
        assert call.is_alive() and not second
        gate.opened.set()
        call.join(LONG)
        first.result(LONG)
        second[0].result(LONG)
    assert listed(tmp_path) == ["1", "2"]


def test_when_busy_skip_leaves_the_new_save_out(tmp_path: Path) -> None:
    gate = Gate()
    with Stager(max_in_flight=1, when_busy="skip") as stager:
        async_save(state_of(1), tmp_path / "1", stager=stager, progress=gate)
        skipped = async_save(state_of(2), tmp_path / "2", stager=stager)
        assert skipped.cancelled()
        with pytest.raises(varve.CancelledError, match="skipped"):
            skipped.result()
        gate.opened.set()
        stager.drain()
        async_save(state_of(3), tmp_path / "3", stager=stager).result(LONG)
    assert listed(tmp_path) == ["1", "3"]


def test_when_busy_replace_gives_up_the_newest_that_is_not_being_written(tmp_path: Path) -> None:
    gate = Gate()
    with Stager(max_in_flight=2, when_busy="replace") as stager:
        first = async_save(state_of(1), tmp_path / "1", stager=stager, progress=gate)
        assert gate.begun.wait(LONG)
        rest = [async_save(state_of(i), tmp_path / f"{i}", stager=stager) for i in (2, 3, 4)]
        gate.opened.set()
        first.result(LONG)
        rest[2].result(LONG)
        for replaced, by in ((rest[0], 3), (rest[1], 4)):
            with pytest.raises(varve.CancelledError, match=rf"replaced by the save of .*/{by}$"):
                replaced.result(LONG)
            assert replaced.cancelled()
    assert listed(tmp_path) == ["1", "4"]
    assert_holds(tmp_path / "4", 4)


def test_saves_of_several_threads_share_a_stager(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(5):
                state = state_of(thread * 10 + i)
                handle = async_save(state, tmp_path / f"{thread}-{i}", stager=stager)
                scribble(state)
                handle.result(LONG)
        except BaseException as error:
            failures.append(error)

    with Stager(max_in_flight=3) as stager:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    for thread in range(4):
        for i in range(5):
            assert_holds(tmp_path / f"{thread}-{i}", thread * 10 + i)


def test_other_paths_are_saved_and_loaded_while_a_save_is_under_way(tmp_path: Path) -> None:
    varve.torch.save(state_of(1), tmp_path / "old")
    gate = Gate()
    handle = async_save(state_of(2), tmp_path / "new", progress=gate)
    varve.torch.save(state_of(3), tmp_path / "beside")
    found = state_of(0)
    varve.torch.load(found, tmp_path / "old")
    assert found["step"] == 1 and not handle.done()
    assert listed(tmp_path) == ["beside", "old"]
    gate.opened.set()
    handle.result(LONG)
    assert_holds(tmp_path / "new", 2)


def test_the_same_path_cannot_be_saved_while_a_save_of_it_is_under_way(tmp_path: Path) -> None:
    gate = Gate()
    handle = async_save(state_of(1), tmp_path / "a", progress=gate)
    assert gate.begun.wait(LONG)
    with pytest.raises(varve.PreconditionError):
        varve.torch.save(state_of(2), tmp_path / "a", overwrite=True)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.torch.load(state_of(0), tmp_path / "a")
    gate.opened.set()
    handle.result(LONG)
    varve.torch.save(state_of(3), tmp_path / "a", overwrite=True)
    assert_holds(tmp_path / "a", 3)


def test_a_path_is_loaded_as_it_was_while_a_save_overwrites_it(tmp_path: Path) -> None:
    varve.torch.save(state_of(1), tmp_path / "a")
    gate = Gate()
    handle = async_save(state_of(2), tmp_path / "a", overwrite=True, progress=gate)
    assert gate.begun.wait(LONG)
    assert_holds(tmp_path / "a", 1)
    gate.opened.set()
    handle.result(LONG)
    assert_holds(tmp_path / "a", 2)


def test_overwrites_of_one_path_follow_in_the_order_of_the_calls(tmp_path: Path) -> None:
    with Stager(max_in_flight=4) as stager:
        handles = [
            async_save(state_of(i), tmp_path / "a", stager=stager, overwrite=True) for i in range(8)
        ]
        for handle in handles:
            handle.result(LONG)
    assert_holds(tmp_path / "a", 7)


def test_a_tensor_written_to_before_it_was_copied_is_found_when_asked_for(tmp_path: Path) -> None:
    gate = Gate()
    with Stager(memory_budget=16 * MIB) as stager:
        # Takes all the memory: the second cannot be copied before the gate is opened.
        async_save(state_of(1, 15), tmp_path / "1", stager=stager, progress=gate)
        state = state_of(2)
        torn = async_save(
            state, tmp_path / "2", stager=stager, staging="overlapped", check_torn=True
        )
        scribble(state)
        gate.opened.set()
        with pytest.raises(varve.Error, match=r"w.*(written|changed)"):
            torn.result(LONG)
    assert listed(tmp_path) == ["1"]
