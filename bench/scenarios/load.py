"""How fast does a checkpoint come back, from the page cache and from the disk?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench import arms
from bench.arms import Arm
from bench.context import Context, available, from_cold_cache, from_warm_cache
from bench.files import drop_cache, remove
from bench.measure import Sample, interleave
from bench.results import Result
from bench.state import State, bytes_of, make_destination, make_state

COPY = "mmap copy"
COPY_HALVES = "mmap copy, halves"
RAW = "raw O_DIRECT read"

_COPY_THREADS = 2
_LOADERS = (arms.VARVE, arms.DCP, arms.TORCH, arms.SAFETENSORS, arms.TORCHSNAPSHOT)


def run(context: Context) -> list[Result]:
    """Writes one checkpoint per tool, then loads them in turns, warm and then cold."""
    state = make_state(context.size, context.tensors)
    destination = make_destination(state)
    usable, skipped = available(_LOADERS)
    root = context.directory / "load"
    root.mkdir()
    raw = root / "raw"
    context.raw.write(raw, bytes_of(state), keep=True)
    loads: dict[str, tuple[Path, Callable[[], Sample]]] = {}
    for arm in usable:
        try:
            loads[arm.name] = _prepare(context, arm, root, state, destination)
        except Exception as error:
            skipped[arm.name] = f"failed: save: {type(error).__name__}: {error}"
    results = [
        _warm(context, raw, loads, state, skipped),
        _cold(context, raw, loads, state, skipped),
    ]
    remove(root)
    return results


def _prepare(
    context: Context, arm: Arm, root: Path, state: State, destination: State
) -> tuple[Path, Callable[[], Sample]]:
    path = root / arm.name.replace(" ", "-")
    arm.save(state, path)
    drop_cache(path)
    return path, partial(context.load_sample, arm, path, state, destination)


def _warm(
    context: Context,
    raw: Path,
    loads: Mapping[str, tuple[Path, Callable[[], Sample]]],
    state: State,
    skipped: dict[str, str],
) -> Result:
    copy = partial(context.raw.mmap_copy, raw, threads=_COPY_THREADS)
    half = -(-bytes_of(state) // _COPY_THREADS // 4096) * 4096
    turns: dict[str, Callable[[], Sample]] = {
        COPY: partial(from_warm_cache, raw, copy),
        COPY_HALVES: partial(from_warm_cache, raw, partial(copy, block_bytes=half)),
    }
    turns |= {name: partial(from_warm_cache, path, load) for name, (path, load) in loads.items()}
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    result = Result.of(
        "load warm",
        "Load into warm tensors, files in the page cache, values checked outside the time.",
        bytes_of(state),
        rounds,
        skipped,
        (COPY, COPY_HALVES, arms.DCP.name),
    )
    result.expect_speed(arms.VARVE.name, arms.DCP.name, 6.0)
    result.expect_speed(arms.VARVE.name, COPY, 0.9)
    return result


def _cold(
    context: Context,
    raw: Path,
    loads: Mapping[str, tuple[Path, Callable[[], Sample]]],
    state: State,
    skipped: dict[str, str],
) -> Result:
    wanted = (arms.VARVE.name, arms.DCP.name)
    turns: dict[str, Callable[[], Sample]] = {
        RAW: partial(from_cold_cache, raw, partial(context.raw.read, raw))
    }
    for name in wanted:
        if name in loads:
            path, load = loads[name]
            turns[name] = partial(from_cold_cache, path, load)
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    result = Result.of(
        "load cold",
        "Load into warm tensors, no file in the page cache.",
        bytes_of(state),
        rounds,
        {name: reason for name, reason in skipped.items() if name in wanted},
        (RAW, arms.DCP.name),
    )
    result.expect_speed(arms.VARVE.name, RAW, 0.9)
    return result
