"""Running a function on several ranks: real processes with gloo, or threads with mailboxes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import queue
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from varve._core import Coordinator

_context = multiprocessing.get_context("forkserver")
# Importing torch, frameworks and jobs takes seconds; the fork server does it once for all ranks.
_context.set_forkserver_preload(["ranks_preload"])


@functools.cache
def fork_context() -> Any:
    """Returns the context of processes that start with torch, varve and the jobs imported.

    A test file never sets what the fork server imports: the list is the whole session's.
    """
    # This folder on the server's path: Python 3.11 does not give it the path of this process.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return _context


def process_of(function: Callable[..., Any], *args: Any) -> Any:
    """Returns a process of `fork_context` for `function(*args)`, with the environment of this one."""
    return fork_context().Process(target=_as_child, args=(dict(os.environ), function, *args))


def _as_child(environment: dict[str, str], function: Callable[..., Any], *args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*args)


def _main(rank: int, size: int, store: str, results: Any, function: Any, args: Any) -> None:
    import torch
    import torch.distributed as dist

    import varve.torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    # A rank whose function sends nothing could otherwise end while others still connect to it.
    dist.barrier()
    try:
        outcome: Any = ("ok", function(rank, size, *args))
    except Exception as error:
        outcome = ("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    # What the end of the interpreter would do.
    varve.torch._stager.end_all()
    results.put((rank, outcome))
    results.close()
    results.join_thread()
    # Gloo's threads may abort an interpreter that shuts down in order (pytorch issue 190489).
    os._exit(0)


def run_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs `function(rank, size, *args)` in `size` processes; returns results by rank.

    A rank has the environment of this process, and its exception fails the test. `function` must
    live in a module *_jobs of this folder.
    """
    outcomes = collect(size, function, *args)
    for rank, outcome in outcomes.items():
        if outcome[0] == "error":
            raise AssertionError(f"rank {rank} failed:\n{outcome[2]}")
    return [outcomes[rank][1] for rank in range(size)]


def errors_of_ranks(
    size: int, function: Callable[..., Any], *args: Any, dead: tuple[int, ...] = ()
) -> dict[int, str]:
    """Runs a function that is meant to fail; "Type: message" by rank, dead ranks left out."""
    outcomes = collect(size, function, *args, dead=dead)
    fine = [rank for rank, outcome in outcomes.items() if outcome[0] == "ok"]
    assert not fine, f"ranks {fine} did not fail"
    return {rank: outcome[1] for rank, outcome in outcomes.items()}


def collect(
    size: int, function: Callable[..., Any], *args: Any, dead: tuple[int, ...] = ()
) -> dict[int, Any]:
    """The raw outcomes by rank."""
    results = fork_context().Queue()
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        processes = [
            process_of(_main, rank, size, store, results, function, args) for rank in range(size)
        ]
        for process in processes:
            process.start()
        outcomes: dict[int, Any] = {}
        try:
            while len(outcomes) < size - len(dead):
                rank, outcome = results.get(timeout=600)
                outcomes[rank] = outcome
        except queue.Empty:
            missing = sorted(set(range(size)) - set(outcomes))
            raise AssertionError(f"ranks {missing} gave no result; got {outcomes}") from None
        finally:
            for process in processes:
                process.join(timeout=60)
                if process.is_alive():
                    process.kill()
    return outcomes


def run_threads(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """Runs `function(coordinator)` on `size` threads that are each other's ranks."""
    ranks = Coordinator.of_threads(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ranks[rank])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
