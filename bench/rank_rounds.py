"""Rounds that several ranks measure together, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.context import Context
from bench.measure import Rounds, Sample


def rounds_of_ranks(context: Context, worker: str, path: str, size: int) -> Rounds:
    """Runs the ranks of a worker, a module that prints the seconds of each arm."""
    context.quiet()
    numbers = [str(one) for one in (size, context.rounds, context.settle_seconds)]
    command = [sys.executable, "-m", worker, path, *numbers]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-500:])
    seconds = json.loads(done.stdout.strip().splitlines()[-1])
    return Rounds({arm: [Sample(one, 0.0) for one in seconds[arm]] for arm in seconds}, {})
