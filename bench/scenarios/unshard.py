"""How fast do 1024 ranks' files become whole states, beside a plain copy and beside the original's ways?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench import unshard_arms
from bench.context import Context, from_cold_cache
from bench.files import bytes_under, copy_synced, drop_cache, remove
from bench.machine import available_memory_bytes
from bench.make_olmo import make
from bench.measure import Sample, interleave, timed
from bench.results import Result

RANKS = 1024
#: Legacy pickles list all shards of every tensor, of which there are two for each parameter.
PARAMETERS = {"local": 1000, "legacy": 16}
MAX_BYTES = 1_200_000_000
#: Arm and its name in the tables.
ARMS = {
    "varve": "varve unshard",
    "cp": "cp -r, synced",
    "threads": "torch.load in threads",
    "processes": "a process per rank",
}


#: Ranks whose torch.load is timed where an arm that loads all of them is left out.
RANKS_TIMED = 4
#: The longest that such an arm may take, by the ranks timed, in a round.
MOST_SECONDS = 300


def run(context: Context) -> list[Result]:
    """Unshards generated checkpoints of both layouts; `--size` is the size of each."""
    return [_run(context, layout) for layout in ("local", "legacy")]


def _run(context: Context, layout: str) -> Result:
    source = context.directory / layout
    make(source, layout, RANKS, context.size, PARAMETERS[layout])
    drop_cache(source)
    left_out = _reason_to_leave_out(context, layout, source)
    arms = ["varve", "cp"] if left_out else list(ARMS)
    turns = {ARMS[arm]: partial(_sample, context, layout, source, arm) for arm in arms}
    rounds = interleave(turns, rounds=context.rounds, warmups=0)
    result = Result.of(
        f"unshard {layout}",
        f"Durable unshard of {RANKS} ranks, source not in the page cache, each arm in a fresh process.",
        bytes_under(source),
        rounds,
        {name: left_out for arm, name in ARMS.items() if arm not in arms},
        (ARMS["cp"], ARMS["threads"], ARMS["processes"]),
    )
    result.expect_speed(ARMS["varve"], ARMS["cp"], 0.8)
    for arm, name in ARMS.items():
        peaks = [sample.peak_bytes or 0 for sample in result.samples.get(name, [])]
        if peaks and arm != "cp":
            limit = f" (target at most {MAX_BYTES >> 20} MiB)" if arm == "varve" else ""
            result.notes.append(f"{name}: at most {max(peaks) >> 20} MiB resident{limit}")
    remove(source)
    return result


def _reason_to_leave_out(context: Context, layout: str, source: Path) -> str:
    """Says why torch cannot load all ranks here; nothing where it can."""
    needed = 3 * context.size  # Pieces, whole tensors, and the file that is written.
    if needed > available_memory_bytes():
        return f"they hold every rank in memory, about {needed >> 30} GiB"
    program = [sys.executable, unshard_arms.__file__, "load", layout, str(source)]
    none, some = (_process([*program, str(ranks)]).seconds for ranks in (0, RANKS_TIMED))
    seconds = (some - none) * RANKS / RANKS_TIMED / (os.cpu_count() or 1)
    if seconds > MOST_SECONDS:
        return (
            f"torch.load takes {(some - none) / RANKS_TIMED:.1f} s a rank, {seconds:.0f} s for all"
        )
    return ""


def _sample(context: Context, layout: str, source: Path, arm: str) -> Sample:
    target = context.directory / "target"
    context.quiet()
    try:
        return from_cold_cache(source, partial(_run_arm, arm, layout, str(source), str(target)))
    finally:
        remove(target)


def _run_arm(arm: str, layout: str, source: str, target: str) -> Sample:
    if arm == "cp":
        return timed(lambda: copy_synced(Path(source), Path(target)))
    if arm == "varve":
        program = "import sys, varve; varve.unshard(*sys.argv[1:])"
        return _process([sys.executable, "-c", program, source, target])
    return _process([sys.executable, unshard_arms.__file__, arm, layout, source, target])


def _process(command: list[str]) -> Sample:
    """Runs a process to its end; its memory is that of the largest process of its tree."""
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"it ended with {process.returncode}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Sample(round(seconds, 6), round(cpu_seconds, 6), usage.ru_maxrss << 10)
