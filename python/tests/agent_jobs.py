"""The killed trainers of the tests of the agent."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist
from async_jobs import state_of

import varve
import varve.torch
from varve.torch import Stager, async_save, defer_save

#: Phases of a trainer, in a shared integer.
STAGING, SUBMITTED = 1, 2


def save_for_ever(directory: str, phase: Any, first: int, mebibytes: int) -> None:
    """Saves one step after the other, until it is killed."""
    with Stager(executor="process", memory_budget=8 * mebibytes << 20) as stager:
        for value in range(first, first + 1000):
            state = state_of(value, mebibytes)
            phase.value = STAGING
            handle = async_save(state, os.path.join(directory, f"step-{value}"), stager=stager)
            phase.value = SUBMITTED
            handle.result()


def keep_for_ever(directory: str, kept: Any, mebibytes: int) -> None:
    """Has the agent keep one step after the other, until it is killed; `kept` is the newest."""
    with Stager(executor="process", memory_budget=3 * mebibytes << 20) as stager:
        state = state_of(0, mebibytes)
        for value in range(1, 100_000):
            state["w"].fill_(value)
            state["step"] = value
            path = os.path.join(directory, f"step-{value}")
            defer_save(state, path, stager=stager).result()
            kept.value = value


def ranks_keep_for_ever(rank: int, size: int, directory: str, victim: int) -> None:
    """The same on several ranks, until one kills itself and the others are ended by that."""
    stager = Stager(executor="process", memory_budget=1 << 30, timeout=20.0)
    for value in range(1, 100_000):
        dies = rank == victim and value == 7
        # This takes a while to copy.
        state = {f"rank{rank}": state_of(value, 400 if dies else 10)["w"], "step": value}
        path = os.path.join(directory, f"step-{value}")
        handle = defer_save(state, path, stager=stager, staging="overlapped", timeout=20.0)
        if dies:
            os.kill(os.getpid(), 9)  # While it is staged.
        try:
            handle.wait_staged()
            dist.barrier()
        except (RuntimeError, varve.Error):
            return  # As a trainer of which a rank was lost.


def save_once_and_wait(path: str, phase: Any, value: int, mebibytes: int) -> None:
    """Submits one save, slowly written, and waits to be killed."""
    async_save(
        state_of(value, mebibytes),
        path,
        executor="process",
        max_write_bandwidth=mebibytes << 20,
    )
    phase.value = SUBMITTED
    time.sleep(600)


def ranks_submit_and_die(rank: int, size: int, directory: str) -> None:
    """All ranks save twice, and do not see the end of the second."""
    state = {"own": {f"rank{rank}": state_of(rank, 20)["w"]}, "all": state_of(7, 20)["w"]}
    async_save(state, os.path.join(directory, "1"), executor="process").result()
    handle = async_save(
        state, os.path.join(directory, "2"), executor="process", max_write_bandwidth=40 << 20
    )
    handle.wait_staged()
    dist.barrier()  # The others have submitted it too.
    os.kill(os.getpid(), 9)


def one_rank_dies_while_staging(rank: int, size: int, directory: str, victim: int) -> str:
    """One rank dies before its copy is submitted; the others see their save fail."""
    stager = Stager(executor="process", memory_budget=1 << 30, timeout=5.0)
    state = {f"rank{rank}": state_of(rank)["w"]}
    async_save(state, os.path.join(directory, "1"), stager=stager).result()
    path = os.path.join(directory, "2")
    if rank == victim:
        state = {f"rank{rank}": state_of(rank, 200)["w"]}  # Takes a while to copy.
        async_save(state, path, stager=stager, staging="overlapped", timeout=5.0)
        os.kill(os.getpid(), 9)
    return str(async_save(state, path, stager=stager, timeout=5.0).exception(120))


def load_on_ranks(rank: int, size: int, path: str) -> int:
    """Loads what two ranks have saved; how many bytes came from memory."""
    state: dict[str, Any] = {"all": state_of(0, 20)["w"]}
    if rank == 0:
        state["own"] = {f"rank{r}": state_of(0, 20)["w"] for r in range(2)}
    report = varve.torch.load(state, path)
    assert (state["all"] == 7).all()
    if rank == 0:
        assert all((state["own"][f"rank{r}"] == r).all() for r in range(2))
    return report.bytes_from_agent


def save_and_check(rank: int, size: int, directory: str, steps: int) -> bool:
    """Saves of two ranks by the agent equal what was there at the call."""
    for step in range(steps):
        state = {f"rank{rank}": state_of(step)}
        handle = async_save(state, os.path.join(directory, str(step)), executor="process")
        handle.wait_staged()
        state[f"rank{rank}"]["w"].fill_(-1)
        report = handle.result()
        assert report.attempts == 1
        if rank == 0:
            found = varve.torch.read(os.path.join(directory, str(step)))
            for other in range(size):
                assert (found[f"rank{other}"]["w"] == step).all()
        dist.barrier()
    return True
