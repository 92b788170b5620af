"""Sixty-four real processes with gloo: what a simulator of ranks cannot show of sockets, files and signals."""

from __future__ import annotations

from pathlib import Path

import rank_jobs
from ranks import errors_of_ranks, run_ranks

RANKS = 64


def test_64_ranks_save_in_both_ways_and_other_worlds_load_it(tmp_path: Path) -> None:
    run_ranks(RANKS, rank_jobs.save_many_ways, str(tmp_path))
    for size in (1, 3, RANKS):
        run_ranks(size, rank_jobs.load_many_ways, str(tmp_path), RANKS)


def test_63_ranks_learn_which_one_was_killed_in_a_save(tmp_path: Path) -> None:
    victim = 33
    errors = errors_of_ranks(
        RANKS, rank_jobs.die_in_save_and_wait, str(tmp_path / "c"), victim, dead=(victim,)
    )
    assert len(errors) == RANKS - 1
    assert all(f"rank {victim}: is lost" in error for error in errors.values()), set(
        errors.values()
    )
    assert not (tmp_path / "c").exists()
