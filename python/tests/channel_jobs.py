"""The ranks of test_channel.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rank_jobs import checkpointable

import varve.torch
import varve.torch.dcp as dcp
from varve.torch import _coordinator

LONG = 300.0


def state_of(rank: int, size: int) -> dict[str, Any]:
    return {"a": checkpointable(torch.arange(60.0).reshape(10, 6), rank, size), "step": 3}


def _save(state: Any, path: str, group: Any, timeout: float) -> None:
    varve.torch.save(state, path, process_group=group, timeout=timeout)


def _async_save(state: Any, path: str, group: Any, timeout: float) -> None:
    varve.torch.async_save(state, path, process_group=group, timeout=timeout).result(LONG)


def _load(state: Any, path: str, group: Any, timeout: float) -> None:
    varve.torch.load(state, os.path.dirname(path) + "/before", process_group=group, timeout=timeout)


def _dcp_save(state: Any, path: str, group: Any, timeout: float) -> None:
    dcp.save({"w": torch.ones(3)}, checkpoint_id=path, process_group=group)


def _dcp_async_save(state: Any, path: str, group: Any, timeout: float) -> None:
    dcp.async_save({"w": torch.ones(3)}, checkpoint_id=path, process_group=group).result(LONG)


VERBS: dict[str, Callable[[Any, str, Any, float], None]] = {
    "save": _save,
    "async_save": _async_save,
    "load": _load,
    "dcp.save": _dcp_save,
    "dcp.async_save": _dcp_async_save,
}


def save_with_uneven_groups(rank: int, size: int, directory: str, verb: str, sub: bool) -> None:
    """Ranks belong to different numbers of process groups; with `sub`, one of these saves first."""
    state = state_of(rank, size)
    if verb == "load":
        varve.torch.save(state, f"{directory}/before", coordinate=False, save_id=b"x" * 16)
        dist.barrier()
    group = dist.new_group([0, 3])
    if sub and rank in (0, 3):
        part = state_of((0, 3).index(rank), 2) if verb != "load" else state
        if verb != "load":
            VERBS[verb](part, f"{directory}/part", group, LONG)
        else:
            varve.torch.load({"step": 0}, f"{directory}/before", process_group=group, strict=False)
    VERBS[verb](state, f"{directory}/all", None, LONG)


def come_late(rank: int, size: int, directory: str, verb: str, victim: int, warm: bool) -> str:
    """One rank does not come; returns the error that the others get, and after how long."""
    state = state_of(rank, size)
    varve.torch.save(state, f"{directory}/before", coordinate=False, save_id=b"x" * 16)
    dist.barrier()
    if warm and verb == "async_save":
        varve.torch.async_save(state, f"{directory}/first").result(LONG)
    elif warm:
        varve.torch.save(state, f"{directory}/first")
    told = ""
    start = time.monotonic()
    if rank != victim:
        try:
            VERBS[verb](state, f"{directory}/late", None, 2.0)
        except varve.UnavailableError as error:
            told = str(error)
    seconds = time.monotonic() - start
    assert seconds < 12, f"{seconds:g} s for a time limit of 2 s"
    dist.barrier()
    return told


def be_late_and_go_on(rank: int, size: int, directory: str) -> list[str]:
    """A rank comes to a save that the others have given up; the next save has all of them."""
    state = state_of(rank, size)
    told = []
    for step in range(3):
        if rank == 1 and step == 1:
            time.sleep(3)
        try:
            varve.torch.save(state, f"{directory}/{step}", timeout=1.5 if step == 1 else LONG)
            told.append("saved")
        except varve.UnavailableError as error:
            told.append(str(error))
    return told


def make_different_calls(rank: int, size: int, path: str) -> None:
    state = state_of(rank, size)
    if rank == 1:
        varve.torch.load(state, path + "-other", timeout=LONG)
    else:
        varve.torch.save(state, path, timeout=LONG)


def save_in_two_threads(rank: int, size: int, directory: str) -> list[str]:
    """Both threads of all ranks save; the second waits for the first."""
    outcomes = ["", ""]

    def run(number: int) -> None:
        try:
            varve.torch.save(state_of(rank, size), f"{directory}/{number}", timeout=LONG)
            outcomes[number] = "saved"
        except varve.Error as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.3)  # The same one first on all ranks, as a rule.
    for thread in threads:
        thread.join()
    dist.barrier()
    return outcomes


def log_waiting(rank: int, size: int, directory: str) -> list[str]:
    """What a rank logs that waits for one that comes late, and for one that is still writing."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    _coordinator.FIRST_NOTICE = 0.7
    logging.getLogger("varve").addHandler(Keep())
    if rank == 2:
        time.sleep(2.5)
    varve.torch.save(state_of(rank, size), f"{directory}/late")
    dist.barrier()

    def slowly(done: int, total: int) -> None:
        if rank == 1:
            time.sleep(2.5)

    state = {"w": varve.torch.PerRank(torch.ones(1 << 16))}
    varve.torch.save(state, f"{directory}/slow", progress=slowly)
    dist.barrier()
    return lines


def interrupt_while_waiting(rank: int, size: int, path: str, victim: int) -> tuple[str, float]:
    """A rank that waits for one that never comes gets Ctrl-C."""
    if rank == size - 1:
        dist.barrier()
        return "", 0.0
    if rank == victim:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    told = ""
    start = time.monotonic()
    try:
        varve.torch.save(state_of(rank, size), path, timeout=LONG)
    except KeyboardInterrupt:
        told = "KeyboardInterrupt"
    except varve.UnavailableError as error:
        told = str(error)
    seconds = time.monotonic() - start
    dist.barrier()
    return told, seconds


def fail_and_drop(rank: int, size: int, directory: str, how: str) -> tuple[list[str], list[str]]:
    """A background save fails; what is logged, and what the next call warns of."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("varve").addHandler(Keep())
    state = state_of(rank, size)
    varve.torch.save(state, f"{directory}/taken")
    handle = varve.torch.async_save(state, f"{directory}/taken", on_failure=how)
    handle.exception(LONG)
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            varve.torch.async_save(state, f"{directory}/next", on_failure=how).result(LONG)
        except varve.Error as error:
            lines.append(f"raised: {error}")
    return lines, [str(warning.message) for warning in caught]


def save_in_a_signal_handler(rank: int, size: int, path: str) -> str:
    """A handler that saves while its thread is in a save."""

    def handler(*_: Any) -> None:
        varve.torch.save(state_of(rank, size), path + "-again", timeout=LONG)

    signal.signal(signal.SIGUSR1, handler)

    def slowly(done: int, total: int) -> None:
        time.sleep(1.0)

    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        varve.torch.save(state_of(rank, size), path, timeout=LONG, progress=slowly)
    except varve.PreconditionError as error:
        return str(error)
    return "saved"
