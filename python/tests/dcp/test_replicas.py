"""Replicas that differ are warned of on the coordinator; what is written stays the planner's choice."""

from __future__ import annotations

from pathlib import Path

import dcp_replica_jobs as jobs
import pytest
from ranks import run_ranks

import varve


@pytest.mark.parametrize("kind", ["sync", "async", "deprecated"])
def test_diverged_replicas_are_warned_of_once_on_rank_0(tmp_path: Path, kind: str) -> None:
    first, second = run_ranks(2, jobs.replicas, str(tmp_path), kind)
    assert first["equal"] == [] and first["sharded"] == []
    assert not any(second.values()), "rank 0 warns, for all"
    if kind == "deprecated":
        return
    (text,) = first["diverged"]
    assert "buffers.b0" in text
    assert "and 3 more" in text, "thirteen differ, ten are named"
    assert "small" not in text and "own0" not in text
    assert "of the lowest of these ranks" in text and "key of its own" in text


def test_planners_that_resolve_as_torchs_does_are_compared(tmp_path: Path) -> None:
    first, _ = run_ranks(2, jobs.replicas, str(tmp_path), "sync")
    assert len(first["planner"]) == 1
    assert first["casting"] == [], "what it resolves may cost, or differ between two calls"
    assert first["alone"] == [], "without collectives each rank's value is stored"
    assert varve.verify(tmp_path / "diverged") == []


def test_of_many_ranks_all_are_compared(tmp_path: Path) -> None:
    first, *others = run_ranks(3, jobs.replicas, str(tmp_path), "sync")
    assert len(first["diverged"]) == 1
    assert not any(any(other.values()) for other in others)
