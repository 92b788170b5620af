"""Is the first save of a process, the one that meets cold buffers, as fast as the tenth?"""

from __future__ import annotations

import sys

from bench import arms
from bench.arms import Arm
from bench.context import Context, available
from bench.files import remove
from bench.measure import Rounds, Sample
from bench.results import Result
from bench.worker import Worker

_SAVES = 10
_REPORTED = (1, 2, 10)


def run(context: Context) -> list[Result]:
    """Starts a fresh process per repetition and tool, and lets it save ten times."""
    usable, skipped = available((arms.VARVE, arms.DCP))
    samples: dict[str, list[Sample]] = {}
    failures: dict[str, str] = {}
    for repetition in range(context.rounds):
        for arm in usable:
            if arm.name in failures:
                continue
            try:
                series = _series(context, arm)
            except Exception as error:
                failures[arm.name] = f"failed: {type(error).__name__}: {error}"
                continue
            for ordinal in _REPORTED:
                samples.setdefault(_label(arm, ordinal), []).append(series[ordinal - 1])
            words = " ".join(f"{sample.seconds:.3f}" for sample in series)
            progress = f"  repetition {repetition + 1}/{context.rounds}  {arm.name}: {words} s"
            print(progress, file=sys.stderr, flush=True)
    result = Result.of(
        "first save",
        f"Saves 1, 2 and {_SAVES} of a fresh process, the imports done, the state warm.",
        context.size,
        Rounds(samples, failures),
        skipped,
        (_label(arms.VARVE, _SAVES), _label(arms.DCP, _SAVES)),
    )
    result.expect_speed(_label(arms.VARVE, 1), _label(arms.VARVE, _SAVES), 0.8)
    return [result]


def _label(arm: Arm, ordinal: int) -> str:
    return f"{arm.name} #{ordinal}"


def _series(context: Context, arm: Arm) -> list[Sample]:
    path = context.directory / "first-save"
    series: list[Sample] = []
    with Worker(arm, context.size, context.tensors) as worker:
        for _ in range(_SAVES):
            context.quiet()
            try:
                series.append(worker.save(path))
            finally:
                remove(path)
    return series
