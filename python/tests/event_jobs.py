"""The ranks of test_events.py."""

from __future__ import annotations

import torch

import varve.torch
from varve.torch import PerRank


def save_and_load_on_ranks(rank: int, size: int, path: str) -> list[tuple[str, int | None]]:
    """Rank 1 has far more to write than rank 0; returns each phase with the slowest rank."""
    state = {"mine": PerRank(torch.ones((32 << 20) if rank == 1 else 8))}
    report = varve.torch.save(state, path)
    return [(phase.name, phase.slowest_rank) for phase in report.phases]
