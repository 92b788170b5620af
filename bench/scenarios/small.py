"""What does an item cost? The same bytes as 64 KiB tensors, where DCP pays per item."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import arms
from bench.arms import Arm
from bench.context import Context, available, from_warm_cache
from bench.files import drop_cache, remove
from bench.measure import Sample, interleave
from bench.results import Result
from bench.state import State, bytes_of, make_destination, make_state

_TENSOR_BYTES = 64 << 10
# DCP takes some 10 s each way for the full size; three rounds are enough to tell 30 x from 20 x.
_MAX_ROUNDS = 3


def run(context: Context) -> list[Result]:
    """Saves, then loads warm, `context.size` bytes in tensors of 64 KiB."""
    state = make_state(context.size, context.size // _TENSOR_BYTES)
    # As in training, before anything has been saved: 64 KiB taken from a heap that saves have left
    # in pieces are slower to fill, for every tool.
    destination = make_destination(state)
    usable, skipped = available((arms.VARVE, arms.DCP))
    rounds = min(context.rounds, _MAX_ROUNDS)
    saves = interleave(
        {arm.name: partial(context.save_sample, arm, state) for arm in usable},
        rounds=rounds,
        warmups=context.warmups,
    )
    words = f"{len(state)} tensors of 64 KiB"
    size, baselines = bytes_of(state), (arms.DCP.name,)
    save = Result.of("small save", f"Durable save of {words}.", size, saves, skipped, baselines)
    save.expect_speed(arms.VARVE.name, arms.DCP.name, 30.0)

    loads = interleave(
        {
            arm.name: partial(_load_sample, context, arm, state, destination)
            for arm in usable
            if arm.name in saves.samples
        },
        rounds=rounds,
        warmups=context.warmups,
    )
    skipped |= saves.failures
    load = Result.of("small load", f"Warm load of {words}.", size, loads, skipped, baselines)
    load.expect_speed(arms.VARVE.name, arms.DCP.name, 30.0)
    for arm in usable:
        remove(_path(context, arm))
    return [save, load]


def _path(context: Context, arm: Arm) -> Path:
    return context.directory / f"small-{arm.name}"


def _load_sample(context: Context, arm: Arm, state: State, destination: State) -> Sample:
    path = _path(context, arm)
    if not path.exists():
        arm.save(state, path)
        drop_cache(path)
    load = partial(context.load_sample, arm, path, state, destination)
    return from_warm_cache(path, load)
