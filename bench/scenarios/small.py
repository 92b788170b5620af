"""Measures an item's cost: the same bytes in tensors of 64 KiB, and in few large ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import arms, machine
from bench.arms import Arm
from bench.context import Context, available, from_warm_cache
from bench.files import drop_cache, remove
from bench.measure import Sample, interleave
from bench.results import Result
from bench.state import State, bytes_of, make_destination, make_state

_TENSOR_BYTES = 64 << 10
# DCP takes some 10 s each way for the full size.
_MAX_ROUNDS = 3
# The most microseconds for an item, besides the time of its bytes. An EPYC has 5. Other processors have
# 10: a Xeon of 2019 took twice as long.
_MOST_MICROSECONDS = 5.0 if machine.vendor() == "AuthenticAMD" else 10.0


def run(context: Context) -> list[Result]:
    """Saves, then loads warm, `context.size` bytes in tensors of 64 KiB and in few."""
    state = make_state(context.size, context.size // _TENSOR_BYTES)
    # As in training, before anything has been saved: 64 KiB taken from a heap that saves have left
    # in pieces are slower to fill, for every tool.
    destination = make_destination(state)
    large = make_state(context.size, context.tensors)
    few = f"varve, {context.tensors} tensors"
    usable, skipped = available((arms.VARVE, arms.DCP))
    cases = {arm.name: (arm, state, destination) for arm in usable}
    if arms.VARVE in usable:
        cases[few] = (arms.VARVE, large, make_destination(large))
    rounds = min(context.rounds, _MAX_ROUNDS)
    saves = interleave(
        {name: partial(context.save_sample, arm, saved) for name, (arm, saved, _) in cases.items()},
        rounds=rounds,
        warmups=context.warmups,
    )
    words = f"{len(state)} tensors of 64 KiB"
    size, baselines = bytes_of(state), (few, arms.DCP.name)
    save = Result.of("small save", f"Durable save of {words}.", size, saves, skipped, baselines)

    turns: dict[str, Callable[[], Sample]] = {
        name: partial(_load_sample, context, name, *case)
        for name, case in cases.items()
        if name in saves.samples
    }
    loads = interleave(turns, rounds=rounds, warmups=context.warmups)
    skipped |= saves.failures
    load = Result.of("small load", f"Warm load of {words}.", size, loads, skipped, baselines)
    for result in (save, load):
        result.expect_per_item(arms.VARVE.name, few, len(state), _MOST_MICROSECONDS)
    for name in cases:
        remove(_path(context, name))
    return [save, load]


def _path(context: Context, name: str) -> Path:
    return context.directory / f"small-{name.replace(' ', '-')}"


def _load_sample(context: Context, name: str, arm: Arm, state: State, destination: State) -> Sample:
    path = _path(context, name)
    if not path.exists():
        arm.save(state, path)
        drop_cache(path)
    load = partial(context.load_sample, arm, path, state, destination)
    return from_warm_cache(path, load)
