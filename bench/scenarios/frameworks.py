"""How long do the checkpoints of training frameworks keep the training, with their own code and with Varve's?"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.context import Context
from bench.files import remove
from bench.measure import Rounds, Sample, interleave
from bench.results import Result

FRAMEWORKS = ("transformers", "lightning", "accelerate", "torchtitan")
TOOLS = ("stock", "varve")

#: States of frameworks are copied several times by some: a larger one would measure the memory.
_MOST_BYTES = 512 << 20


def run(context: Context) -> list[Result]:
    """Runs each framework in processes of its own, with both tools in turns."""
    return [result for framework in FRAMEWORKS for result in _of_framework(context, framework)]


def _of_framework(context: Context, framework: str) -> list[Result]:
    size = min(context.size, _MOST_BYTES)
    skipped = {}
    if importlib.util.find_spec(framework) is None:
        skipped = {f"{framework}, {tool}": f"{framework} is not installed" for tool in TOOLS}
    totals: dict[str, list[Sample]] = {}
    sizes: dict[str, int] = {}

    def sample(tool: str) -> Sample:
        answer = _measure(context, framework, tool, size)
        name = f"{framework}, {tool}"
        totals.setdefault(name, []).append(Sample(answer["total"], 0.0))
        sizes[name] = answer["bytes"]
        return Sample(statistics.median(answer["stalls"]), 0.0)

    arms = (
        {}
        if skipped
        else {f"{framework}, {tool}": (lambda tool=tool: sample(tool)) for tool in TOOLS}
    )
    rounds = interleave(arms, rounds=min(context.rounds, 3), warmups=0)
    stock, varve = (f"{framework}, {tool}" for tool in TOOLS)
    stall = Result.of(
        f"{framework} (stall)",
        "The call that saves, at the median of three saves after the first; stock saves are synced.",
        size,
        rounds,
        skipped,
        (stock,),
    )
    stall.expect_speed(varve, stock, 1.0)
    stall.notes += [f"{name}: {written} bytes on the disk" for name, written in sizes.items()]
    total = Result.of(
        f"{framework} (total)",
        "A training of four steps of a second, with a save after each, to its end.",
        0,
        Rounds(totals, {}),
        skipped,
        (stock,),
    )
    total.expect_speed(varve, stock, 1.0)
    return [stall, total]


def _measure(context: Context, framework: str, tool: str, size: int) -> dict[str, Any]:
    path = context.directory / "frameworks"
    remove(path)
    context.quiet()
    command = [
        sys.executable,
        "-m",
        "bench.framework_worker",
        framework,
        tool,
        str(path),
        str(size),
    ]
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=900)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-500:])
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer
    finally:
        remove(path)
