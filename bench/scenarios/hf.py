"""How fast do two ranks write a folder of whole-tensor safetensors files?"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from bench.context import Context
from bench.files import remove
from bench.measure import Rounds, Sample
from bench.results import Result

NATIVE, HF, GATHERED = "varve", "varve, hf", "gather and save_file"

#: The baseline holds the whole state in one rank's memory.
_MOST_BYTES = 2 << 30


def run(context: Context) -> list[Result]:
    """Runs the ranks in processes of their own; they take turns with the arms."""
    size = min(context.size, _MOST_BYTES)
    arms = (NATIVE, HF, GATHERED)
    if importlib.util.find_spec("safetensors") is None:
        return [Result("hf", "", 0, {}, dict.fromkeys(arms, "safetensors is not installed"), ())]
    path = context.directory / "hf"
    remove(path)
    context.quiet()
    numbers = [str(one) for one in (size, context.rounds, context.settle_seconds)]
    command = [sys.executable, "-m", "bench.hf_worker", str(path), *numbers]
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=1800)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-500:])
    finally:
        remove(path)
    seconds = json.loads(done.stdout.strip().splitlines()[-1])
    rounds = Rounds({arm: [Sample(one, 0.0) for one in seconds[arm]] for arm in arms}, {})
    result = Result.of(
        "hf",
        "Durable save of 16 bf16 tensors, sharded by rows over two ranks, every arm synced.",
        size,
        rounds,
        {},
        (NATIVE, GATHERED),
    )
    result.expect_speed(HF, NATIVE, 0.9)
    result.expect_speed(HF, GATHERED, 2.0)
    return [result]
