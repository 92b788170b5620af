"""Attacks on saves in the background: signals, forks, exits and states that cannot be taken."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from async_jobs import LONG

import varve
import varve.torch
from varve.torch import Stager, async_save


class Raising:
    """An object whose state cannot be had."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def state_dict(self) -> dict[str, Any]:
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # A new one, without frames of before.
        return {"n": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("what", [object(), Raising(RuntimeError("no state"))])
def test_a_state_that_cannot_be_taken_is_kept_until_the_next_call_at_most(
    tmp_path: Path, what: Any, executor: Any
) -> None:
    def fail() -> weakref.ref[torch.Tensor]:
        tensor = torch.ones(1000)
        handle = async_save({"w": tensor, "x": what}, tmp_path / "c", executor=executor)
        assert isinstance(handle.exception(LONG), varve.Error)
        return weakref.ref(tensor)

    seen = [fail() for _ in range(3)]
    gc.collect()
    assert [tensor() for tensor in seen[:2]] == [None, None]


def test_ctrl_c_in_a_short_call_leaves_no_checkpoint(tmp_path: Path) -> None:
    state = {"w": torch.zeros(20_000_000)}
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    try:
        with Stager(memory_budget=256 << 20) as stager:
            async_save(state, tmp_path / "first", stager=stager).result(LONG)
            for i in range(12):
                path = tmp_path / f"c{i}"
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.001 * (i % 6))
                    handle = async_save(state, path, stager=stager, max_write_bandwidth=20 << 20)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    handle.cancel()
                except KeyboardInterrupt as raised:
                    stager.drain()
                    call = raised.__traceback__.tb_next if raised.__traceback__ else None
                    # Between its last step and the caller's line nothing can be cancelled.
                    if call is not None and call.tb_next is not None:
                        interrupted += 1
                        assert not path.exists()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0


AT_EXIT = """
import atexit, sys

def late():
    varve.torch.async_save({"w": torch.ones(1000)}, sys.argv[1])

atexit.register(late)
import torch
import varve.torch
"""


def test_a_save_that_the_end_of_the_interpreter_would_lose_is_refused(tmp_path: Path) -> None:
    done = programs.run(AT_EXIT, tmp_path / "c")
    assert "PreconditionError: the interpreter ends" in done.stderr
    assert list(tmp_path.iterdir()) == []


FINAL = """
import atexit, sys
import torch
import varve.torch

def late():
    varve.torch.async_save({"w": torch.ones(1000)}, sys.argv[1])

atexit.register(late)
varve.torch.async_save({"w": torch.ones(1000)}, sys.argv[1] + "-first").result()
"""


def test_a_function_that_was_registered_after_the_import_saves_at_the_end(tmp_path: Path) -> None:
    programs.output(FINAL, tmp_path / "c")
    assert varve.verify(tmp_path / "c") == []


def test_an_interrupted_save_leaves_no_note_of_an_upload(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        async_save({"x": Raising(KeyboardInterrupt())}, tmp_path / "c", upload_to=tmp_path / "to")
    assert list(tmp_path.iterdir()) == []


def test_a_step_whose_first_save_was_interrupted_is_removed_by_the_rules(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "to"
    part = Raising(KeyboardInterrupt())
    with varve.torch.CheckpointManager(
        run, every=1, keep=varve.Keep(last=2), upload_to=to
    ) as manager:
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, {"x": part})
        part.error = None
        for step in range(1, 6):
            manager.save(step, {"x": part})
    assert [step.step for step in varve.steps(run)] == [4, 5]
    assert [name for name in os.listdir(run) if name.endswith("varve-upload")] == []


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_forked_child_neither_ends_nor_awaits_a_save_of_its_parent(
    tmp_path: Path, executor: Any
) -> None:
    state = {"w": torch.ones(1_000_000)}
    handle = async_save(state, tmp_path / "c", executor=executor, max_write_bandwidth=1_000_000)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if not handle.cancel():
                handle.result(10)
        except varve.PreconditionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    handle.result(LONG)
    assert varve.verify(tmp_path / "c") == []
    child = os.fork()
    if child == 0:  # The save has ended before the fork: its report is the child's too.
        code = 1
        try:
            code = 0 if handle.result(10).seconds >= 0 else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
