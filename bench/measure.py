"""Time one action, and repeat several of them in turns."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One timing.

    `cpu_seconds` is user plus system time of every thread of the process that did the work. Work of
    the kernel's own threads (write-back of dirty pages) is not counted.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int | None = None
    """Most memory the process has had resident, where it did nothing else."""


@dataclass(frozen=True)
class Rounds:
    """The samples of each arm in order, and for each arm that raised, its reason."""

    samples: dict[str, list[Sample]]
    failures: dict[str, str]


def timed(action: Callable[[], object]) -> Sample:
    """Runs `action` once; returns its wall time and the CPU time of this process meanwhile."""
    cpu_before = _cpu_seconds()
    wall_before = time.perf_counter()
    action()
    wall_after = time.perf_counter()
    # Microseconds are what the clocks are good for, and keep the recorded lines short.
    return Sample(round(wall_after - wall_before, 6), round(_cpu_seconds() - cpu_before, 6))


def interleave(arms: Mapping[str, Callable[[], Sample]], *, rounds: int, warmups: int) -> Rounds:
    """Takes one sample of every arm, then again, `rounds` times.

    Turns, because a shared machine drifts: each arm meets the same weather. The arm that starts
    moves on by one every round and every second round runs backwards, so that none always has the
    same place or follows the same neighbour. `warmups` rounds come first and are thrown away. An
    arm that raises is dropped and its reason kept; the others go on.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    failures: dict[str, str] = {}
    names = list(arms)
    for turn in range(-warmups, rounds):
        shift = turn % len(names) if names else 0
        order = names[shift:] + names[:shift]
        for name in order if turn % 2 == 0 else reversed(order):
            if name in failures:
                continue
            try:
                sample = arms[name]()
            except Exception as error:
                failures[name] = f"failed: {type(error).__name__}: {error}"
                samples.pop(name)
                print(f"  {name}: {failures[name]}", file=sys.stderr, flush=True)
                continue
            if turn >= 0:
                samples[name].append(sample)
            label = f"round {turn + 1}/{rounds}" if turn >= 0 else "warm-up"
            print(f"  {label}  {name}: {sample.seconds:.3f} s", file=sys.stderr, flush=True)
    return Rounds(samples, failures)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
