"""A training run on NumPy arrays that may be killed at any moment: start it again and it goes on.

    python resume_numpy.py DIR

It saves after every step and keeps the last two checkpoints, all in one process, without torch.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import varve

STEPS = 60
KEPT = 2
ELEMENTS = 1 << 24  # 64 MiB of float32: a save takes long enough to be killed in.


def train(folder: str) -> None:
    try:
        newest = varve.latest(folder)
    except varve.CheckpointNotFoundError:
        state = {"weights": np.zeros(ELEMENTS, np.float32), "step": 0}
    else:
        state = varve.read(newest)
        print(f"resumed from {newest}", flush=True)
    while state["step"] < STEPS:
        state["step"] += 1
        gradient = np.random.default_rng(state["step"]).standard_normal(1024, np.float32)
        state["weights"].reshape(-1, 1024)[:] += gradient
        print(f"saving step {state['step']}", flush=True)
        varve.save(state, os.path.join(folder, f"step-{state['step']:08d}"))
        whole = [entry for entry in varve.list_checkpoints(folder) if entry.state == "whole"]
        for entry in whole[:-KEPT]:
            varve.remove(os.path.join(folder, entry.name))
    print(f"done: weights sum to {state['weights'].sum(dtype=np.float64):.6f}", flush=True)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    train(sys.argv[1])
