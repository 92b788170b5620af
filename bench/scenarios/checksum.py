"""What do checksums cost? The same engine with and without them, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import arms
from bench.context import Context, from_warm_cache
from bench.files import remove
from bench.measure import Rounds, Sample, interleave
from bench.results import Result
from bench.worker import Worker

KNOB = "VARVE_BENCH_DISABLE_CHECKSUMS"
ON = "checksums on"
OFF = "checksums off"

# A difference of a few percent needs more samples than a factor of two.
_ROUNDS_FACTOR = 2
# Bounds of the time of a save and of a warm load with checksums, over that without.
_SAVE_BOUND = 1.05
_LOAD_BOUND = 1.10


def run(context: Context) -> list[Result]:
    """Runs two processes that differ only in the knob; each loads what it saved itself."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        reason = arms.VARVE.unavailable()
        if reason is None:
            for name, environment in ((ON, {}), (OFF, {KNOB: "1"})):
                worker = Worker(arms.VARVE, context.size, context.tensors, environment)
                workers[name] = stack.enter_context(worker)
            reason = _why_not(context, workers)
        if reason is not None:
            empty = Rounds({}, {ON: reason, OFF: reason})
            return [_save_result(context, empty), _load_result(context, empty)]
        return _measure(context, workers)


def _why_not(context: Context, workers: dict[str, Worker]) -> str | None:
    """Tells by a damaged checkpoint whether the knob works: with it, the damage goes unseen."""
    path = context.directory / "probe"
    if not workers[ON].notices_damage(path / ON):
        return "with checksums on, a damaged byte was loaded without an error"
    if workers[OFF].notices_damage(path / OFF):
        return f"the engine does not read {KNOB}: with it set, a damaged byte is still found"
    remove(path)
    return None


def _measure(context: Context, workers: dict[str, Worker]) -> list[Result]:
    paths = {name: context.directory / name.replace(" ", "-") for name in workers}
    count = _ROUNDS_FACTOR * context.rounds
    saves: dict[str, Callable[[], Sample]] = {
        name: partial(_save, context, worker, paths[name]) for name, worker in workers.items()
    }
    saved = interleave(saves, rounds=count, warmups=context.warmups)
    loads: dict[str, Callable[[], Sample]] = {
        name: partial(from_warm_cache, paths[name], partial(workers[name].load, paths[name]))
        for name in saved.samples
    }
    loaded = interleave(loads, rounds=count, warmups=context.warmups)
    for path in paths.values():
        remove(path)
    return [_save_result(context, saved), _load_result(context, loaded)]


def _save(context: Context, worker: Worker, path: Path) -> Sample:
    remove(path)
    context.quiet()
    return worker.save(path)


def _save_result(context: Context, rounds: Rounds) -> Result:
    words = "Durable save with and without checksums."
    result = Result.of("checksum save", words, context.size, rounds, {}, (OFF,))
    result.expect_time(ON, OFF, _SAVE_BOUND)
    return result


def _load_result(context: Context, rounds: Rounds) -> Result:
    words = "Warm load with and without verifying checksums."
    result = Result.of("checksum load", words, context.size, rounds, {}, (OFF,))
    result.expect_time(ON, OFF, _LOAD_BOUND)
    return result
