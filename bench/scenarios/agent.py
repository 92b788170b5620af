"""What does it cost to let the agent write, and how fast is a load from its memory?

Three tables: the stall of the call, the write phase, and a load from the agent's memory beside a cold
load of the same bytes from the disk. The agent is one of the run's own, in a directory of its own; it
is ended with the run. Its stager has memory for two copies: one stays in the agent's hands while the
next one is staged.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import arms
from bench.context import Context, from_cold_cache
from bench.files import remove
from bench.measure import Rounds, Sample, interleave, timed
from bench.results import Result
from bench.scenarios.async_save import (
    COPY,
    SYNC,
    AsyncArm,
    ParallelCopy,
    begin_varve,
    copy_sample,
    huge_destination,
    stall_sample,
    sync_sample,
    write_sample,
)
from bench.state import State, bytes_of, make_state, require_equal, zero

THREAD = 'async_save, executor="thread"'
AGENT = 'async_save, executor="process"'
COLD = "load from the disk, cold"
MEMORY = "load from the agent's memory"


def run(context: Context) -> list[Result]:
    """Answers the three questions with one agent."""
    reason = arms.VARVE.unavailable()
    if reason is not None:
        nothing = Rounds({}, {AGENT: reason, MEMORY: reason})
        return [
            _stall_result(context, nothing),
            _write_result(context, nothing),
            _restore_result(context, nothing),
        ]
    with tempfile.TemporaryDirectory(prefix="varve-bench-agent-") as home:
        before = os.environ.get("VARVE_AGENT_DIR")
        os.environ["VARVE_AGENT_DIR"] = os.path.join(home, "agent")
        try:
            return _run(context)
        finally:
            importlib.import_module("varve.agent").stop()
            if before is None:
                del os.environ["VARVE_AGENT_DIR"]
            else:
                os.environ["VARVE_AGENT_DIR"] = before


def _run(context: Context) -> list[Result]:
    from varve.torch import Stager

    state = make_state(context.size, context.tensors)
    destination = huge_destination(state)
    one = arms.staging_budget(bytes_of(state))
    with (
        Stager(memory_budget=one) as threads,
        Stager(memory_budget=2 * one, executor="process") as agent,
    ):
        for stager, budget in ((threads, one), (agent, 2 * one)):
            stager.prepare(budget)
            stager.wait_prepared()
        by_threads = AsyncArm(THREAD, partial(begin_varve, threads), arms.VARVE.load)
        by_agent = AsyncArm(AGENT, partial(begin_varve, agent), arms.VARVE.load)
        copy = ParallelCopy(state, destination)
        stalls = _in_turns(
            context,
            {
                COPY: partial(copy_sample, context, copy, state, destination),
                THREAD: partial(stall_sample, context, by_threads, state, destination),
                AGENT: partial(stall_sample, context, by_agent, state, destination),
            },
        )
        writes = _in_turns(
            context,
            {
                SYNC: partial(sync_sample, context, state, destination),
                THREAD: partial(write_sample, context, by_threads.begin, state, destination),
                AGENT: partial(write_sample, context, by_agent.begin, state, destination),
            },
        )
        restores = _restores(context, by_agent, copy, state, destination)
    return [
        _stall_result(context, stalls),
        _write_result(context, writes),
        _restore_result(context, restores),
    ]


def _in_turns(context: Context, turns: dict[str, Callable[[], Sample]]) -> Rounds:
    return interleave(turns, rounds=context.rounds, warmups=context.warmups)


def _stall_result(context: Context, rounds: Rounds) -> Result:
    result = Result.of(
        "agent stall",
        "How long the call keeps the trainer, until the agent has the save in hand.",
        context.size,
        rounds,
        {},
        (COPY, THREAD),
    )
    result.expect_time(AGENT, COPY, 1.15)
    return result


def _write_result(context: Context, rounds: Rounds) -> Result:
    result = Result.of(
        "agent write",
        "The write phase by the agent, trainer idle, beside a synchronous save.",
        context.size,
        rounds,
        {},
        (SYNC, THREAD),
    )
    result.expect_speed(AGENT, SYNC, 0.9)
    return result


def _restores(
    context: Context, by_agent: AsyncArm, copy: ParallelCopy, state: State, destination: State
) -> Rounds:
    """One checkpoint, written by the agent and held by it; the disk's is the same bytes."""
    held = context.directory / "held"
    disk = context.directory / "disk"
    try:
        by_agent.begin(state, held).result()
        arms.VARVE.save(state, disk)
        return _in_turns(
            context,
            {
                COPY: partial(copy_sample, context, copy, state, destination),
                COLD: partial(_cold_sample, disk, state, destination),
                MEMORY: partial(_memory_sample, context, held, state, destination),
            },
        )
    finally:
        remove(held)
        remove(disk)


def _cold_sample(path: Path, state: State, destination: State) -> Sample:
    zero(destination)
    sample = from_cold_cache(path, lambda: timed(partial(arms.VARVE.load, destination, path)))
    require_equal(destination, state)
    return sample


def _memory_sample(context: Context, path: Path, state: State, destination: State) -> Sample:
    zero(destination)
    context.quiet()
    reports: list[Any] = []
    load = importlib.import_module("varve.torch").load
    sample = timed(lambda: reports.append(load(destination, path)))
    if reports[0].bytes_from_agent < bytes_of(state):
        raise AssertionError("the agent did not have it all")
    require_equal(destination, state)
    return sample


def _restore_result(context: Context, rounds: Rounds) -> Result:
    result = Result.of(
        "agent restore",
        "Load into warm tensors what the agent holds, beside the same from the disk.",
        context.size,
        rounds,
        {},
        (COLD, COPY),
    )
    result.expect_speed(MEMORY, COLD, 5.0)
    return result
