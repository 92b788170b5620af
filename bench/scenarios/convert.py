"""How fast does a checkpoint become one of another format, beside a plain copy of its files?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import arms
from bench.context import Context, available, from_cold_cache
from bench.files import bytes_under, copy_synced, drop_cache, remove
from bench.measure import Sample, interleave, timed
from bench.results import Result
from bench.state import make_state

CP = "cp -r, synced"
_TARGETS = ("dcp", "varve", "safetensors", "hf", "torch")


def run(context: Context) -> list[Result]:
    """Converts a native checkpoint to each format and a DCP checkpoint to the native one."""
    _, skipped = available((arms.VARVE, arms.DCP))
    if skipped:
        return [Result("convert", "", 0, {}, skipped, ())]
    state = make_state(context.size, context.tensors)
    native, foreign = context.directory / "native", context.directory / "foreign"
    arms.VARVE.save(state, native)
    arms.DCP.save(state, foreign)
    drop_cache(native)
    drop_cache(foreign)
    turns: dict[str, Callable[[], Sample]] = {CP: partial(_sample, context, native, copy_synced)}
    turns |= {
        f"to {to}": partial(_sample, context, native, partial(_convert, to=to)) for to in _TARGETS
    }
    turns["from DCP's"] = partial(_sample, context, foreign, partial(_convert, to="varve"))
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    result = Result.of(
        "convert",
        f"Durable conversion of {len(state)} fp32 tensors, source not in the page cache.",
        bytes_under(native),
        rounds,
        {},
        (CP,),
    )
    for name in turns:
        if name != CP:
            result.expect_speed(name, CP, 0.8)
    remove(native)
    remove(foreign)
    return [result]


def _sample(context: Context, source: Path, make: Callable[[Path, Path], None]) -> Sample:
    target = context.directory / "target"
    context.quiet()
    try:
        return from_cold_cache(source, lambda: timed(lambda: make(source, target)))
    finally:
        remove(target)


def _convert(source: Path, target: Path, *, to: str) -> None:
    arms.convert(source, target, to)
