"""How fast is a durable save of a large state, and what does it cost in CPU?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import arms
from bench.context import Context, available
from bench.measure import Sample, interleave
from bench.results import Result
from bench.state import bytes_of, make_state

RAW = "raw O_DIRECT write"


def run(context: Context) -> list[Result]:
    """Saves one state with every tool and writes the same bytes raw, in turns."""
    state = make_state(context.size, context.tensors)
    usable, skipped = available(arms.ALL)
    turns: dict[str, Callable[[], Sample]] = {RAW: partial(raw_sample, context, bytes_of(state))}
    turns |= {arm.name: partial(context.save_sample, arm, state) for arm in usable}
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    result = Result.of(
        "save",
        f"Durable save of {len(state)} fp32 tensors by one process, every arm synced.",
        bytes_of(state),
        rounds,
        skipped,
        (RAW, arms.DCP.name),
    )
    result.expect_speed(arms.VARVE.name, RAW, 0.95)
    result.expect_speed(arms.VARVE.name, arms.DCP.name, 2.0)
    result.expect_cpu(arms.VARVE.name, arms.DCP.name, 0.4)
    return [result]


def raw_sample(context: Context, size: int) -> Sample:
    """Times a raw write of `size` bytes."""
    context.quiet()
    return context.raw.write(context.directory / "raw", size)
