"""For how long does Python stand still while a save is written behind its back?

A loop that does nothing but look at the clock, on the thread that called, from the return of the
call to the end of the save. A gap between two looks has one of three causes, and the kernel counts
which: the thread slept (a voluntary switch: the GIL was held elsewhere, or a lock of the kernel's),
it was kept from a core by other threads and processes, the writing ones among them (an involuntary
switch), or it kept its core and the core did something else (no switch: an interrupt, or the
hypervisor). Only the first is a wait for the writer. A sample is the longest such sleep, less what
the thread then waited for a core (`run_delay` in schedstat) and its own CPU time. The histograms are
of all gaps, whatever their cause.
"""

from __future__ import annotations

import itertools
import os
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from bench import arms
from bench.context import Context
from bench.files import remove
from bench.measure import Rounds, Sample, interleave
from bench.results import Result
from bench.scenarios.async_save import begin_torch, begin_varve
from bench.state import State, bytes_of, make_state

ALONE = "nothing is saved"
VARVE = "varve.torch.async_save"
TORCH = "torch async_save"

_ALONE_SECONDS = 1.0
_LOOK_CLOSER_NS = 100_000
_LOOK_EVERY_NS = 500_000
#: Upper ends of the histogram's bins, in microseconds.
_BINS = (10, 100, 1_000, 5_000, 20_000)


def run(context: Context) -> list[Result]:
    """Answers the question for both."""
    reason = arms.VARVE.unavailable()
    if reason is not None:
        return [_result(context, Rounds({}, {VARVE: reason}), {})]
    from varve.torch import Stager

    state = make_state(context.size, context.tensors)
    histograms: dict[str, list[int]] = {}
    with Stager(memory_budget=arms.staging_budget(bytes_of(state))) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        begins: dict[str, Callable[..., Future[Any]] | None] = {
            ALONE: None,
            VARVE: partial(begin_varve, stager),
        }
        if arms.DCP.unavailable() is None:
            begins[TORCH] = begin_torch
        rounds = interleave(
            {
                name: partial(_sample, context, begin, state, histograms.setdefault(name, []))
                for name, begin in begins.items()
            },
            rounds=context.rounds,
            warmups=context.warmups,
        )
    return [_result(context, rounds, histograms)]


def _sample(
    context: Context,
    begin: Callable[..., Future[Any]] | None,
    state: State,
    histogram: list[int],
) -> Sample:
    path = context.directory / "gaps"
    remove(path)
    context.quiet()
    try:
        if begin is None:
            end = time.monotonic() + _ALONE_SECONDS
            return _longest_sleep(lambda: time.monotonic() < end, histogram)
        save = begin(state, path)
        sample = _longest_sleep(lambda: not save.done(), histogram)
        save.result()
        return sample
    finally:
        remove(path)


def _longest_sleep(go_on: Callable[[], bool], histogram: list[int]) -> Sample:
    # Kept open: an open may sleep as well.
    schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    bins = [0] * (len(_BINS) + 1)

    def sleeps_until_now() -> int:  # Does not let go of the GIL.
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def awake_until_now() -> int:
        # The read lets go of the GIL, so a sleep may come with it.
        waited = int(os.pread(schedstat, 100, 0).split()[1])
        return time.thread_time_ns() + waited

    longest = 0
    awake_at_mark = awake_until_now()
    sleeps_at_mark = sleeps_until_now()
    mark = last = time.perf_counter_ns()
    cpu = time.process_time()
    going = True
    while going:
        going = go_on()  # The gap that ends it counts: then the writer has something to say.
        now = time.perf_counter_ns()
        gap = now - last
        last = now
        bins[sum(gap >= 1000 * end for end in _BINS)] += 1
        # Often enough that a short sleep is not charged with a long interrupt after it.
        if gap >= _LOOK_CLOSER_NS or now - mark >= _LOOK_EVERY_NS:
            awake = awake_until_now()
            sleeps = sleeps_until_now()
            now = time.perf_counter_ns()
            if sleeps > sleeps_at_mark:
                longest = max(longest, (now - mark) - (awake - awake_at_mark))
            mark, awake_at_mark, sleeps_at_mark = now, awake, sleeps
    os.close(schedstat)
    histogram[:] = [a + b for a, b in zip(histogram or [0] * len(bins), bins, strict=True)]
    return Sample(round(longest / 1e9, 6), round(time.process_time() - cpu, 6))


def _result(context: Context, rounds: Rounds, histograms: dict[str, list[int]]) -> Result:
    result = Result.of(
        "gaps",
        "The longest time that a Python loop sleeps while a save is written behind its back.",
        0,
        rounds,
        {},
        (),
    )
    edges = ["0", *(f"{end / 1000:g}" for end in _BINS)]
    names = [f"{low}-{high}" for low, high in itertools.pairwise(edges)]
    for name, counts in histograms.items():
        each = zip([*names, f"over {edges[-1]}"], counts, strict=True)
        text = ", ".join(f"{bin_name} ms: {count}" for bin_name, count in each)
        result.notes.append(f"gaps, {name}: {text}")
        if name in rounds.samples:
            most = ", ".join(f"{1e3 * s.seconds:.3f}" for s in rounds.samples[name])
            result.notes.append(f"longest sleeps, {name}, ms: {most}")
    result.expect_seconds(VARVE, 0.001)
    return result
