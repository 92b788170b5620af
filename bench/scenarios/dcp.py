"""DCP's format and functions over the engine: how fast beside DCP itself, and beside our own format?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import arms
from bench.arms import Arm
from bench.context import Context, available, from_warm_cache
from bench.files import drop_cache, remove
from bench.measure import interleave
from bench.results import Result
from bench.state import bytes_of, make_destination, make_state

_SAVERS = (arms.VARVE, arms.VARVE_AS_DCP, arms.DROP_IN, arms.DCP)
# Each loads what it has itself written, but for the last of ours: what DCP has written.
_LOADERS = (arms.VARVE_AS_DCP, arms.DROP_IN, arms.DCP)
_OF_DCP = "varve.torch.load of DCP's"

_SMALL_BYTES = 64 << 10
_MAX_SMALL_ROUNDS = 3
# The most that the drop-in may take for an item, besides the time of the same bytes in few tensors.
_MOST_MICROSECONDS = 20.0


def run(context: Context) -> list[Result]:
    """Saves and loads `context.size` bytes in few tensors, then in tensors of 64 KiB."""
    few = f"{context.tensors} fp32 tensors"
    large = _run(context, "dcp", few, context.tensors, context.rounds)
    large[0].expect_speed(arms.DROP_IN.name, arms.DCP.name, 6.0)
    large[0].expect_speed(arms.DROP_IN.name, arms.VARVE.name, 0.85)
    large[1].expect_speed(arms.DROP_IN.name, arms.DCP.name, 6.0)
    large[1].expect_speed(arms.VARVE_AS_DCP.name, arms.DCP.name, 6.0)
    large[1].expect_speed(_OF_DCP, arms.DCP.name, 6.0)
    count = context.size // _SMALL_BYTES
    rounds = min(context.rounds, _MAX_SMALL_ROUNDS)
    small = _run(context, "dcp small", f"{count} tensors of 64 KiB", count, rounds)
    for few_tensors, items in zip(large, small, strict=True):
        items.expect_per_item(
            arms.DROP_IN.name, arms.DROP_IN.name, count, _MOST_MICROSECONDS, of=few_tensors
        )
    small[0].expect_speed(arms.DROP_IN.name, arms.DCP.name, 3.0)
    small[0].expect_speed(arms.VARVE_AS_DCP.name, arms.DCP.name, 20.0)
    small[1].expect_speed(arms.DROP_IN.name, arms.DCP.name, 3.0)
    small[1].expect_speed(arms.VARVE_AS_DCP.name, arms.DCP.name, 20.0)
    return large + small


def _run(context: Context, name: str, words: str, tensors: int, rounds: int) -> list[Result]:
    state = make_state(context.size, tensors)
    destination = make_destination(state)  # Before saves, as in `small`.
    size, baselines = bytes_of(state), (arms.VARVE.name, arms.DCP.name)
    usable, skipped = available(_SAVERS)
    saves = interleave(
        {arm.name: partial(context.save_sample, arm, state) for arm in usable},
        rounds=rounds,
        warmups=context.warmups,
    )
    saved = Result.of(f"{name} save", f"Durable save of {words}.", size, saves, skipped, baselines)

    paths = {arm.name: _written(context, arm, state) for arm in usable if arm in _LOADERS}
    pairs = [(arm.name, arm, paths[arm.name]) for arm in usable if arm in _LOADERS]
    if arms.DCP.name in paths:
        pairs.append((_OF_DCP, arms.VARVE_AS_DCP, paths[arms.DCP.name]))
    loads = interleave(
        {
            label: partial(
                from_warm_cache,
                path,
                partial(context.load_sample, arm, path, state, destination),
            )
            for label, arm, path in pairs
        },
        rounds=rounds,
        warmups=context.warmups,
    )
    for path in paths.values():
        remove(path)
    loaded = Result.of(
        f"{name} load", f"Warm load of {words}.", size, loads, skipped, (arms.DCP.name,)
    )
    return [saved, loaded]


def _written(context: Context, arm: Arm, state: dict[str, object]) -> Path:
    path = context.directory / f"dcp-{arm.name.replace(' ', '-')}"
    arm.save(state, path)
    drop_cache(path)
    return path
