"""Ctrl-C on one of several ranks: real processes with gloo."""

from __future__ import annotations

from pathlib import Path

import interrupt_jobs as jobs
from ranks import run_ranks

import varve


def test_a_rank_that_is_interrupted_is_named_on_the_others_and_the_next_save_works(
    tmp_path: Path,
) -> None:
    for rank, found in enumerate(run_ranks(3, jobs.interrupt, str(tmp_path))):
        assert len(found) == 19
        for case, (who, ended, then) in found.items():
            assert then == "done", (case, rank, then)
            if rank == who:
                assert ended == "KeyboardInterrupt", (case, rank, ended)
                continue
            if ended == "done" and case.startswith("read"):
                continue  # It had read all, and has said so.
            if case.startswith("plan of dcp"):
                assert f"rank {who}: KeyboardInterrupt" in ended, (case, rank, ended)
                continue
            kind = ended.partition(" ")[0]
            assert kind in ("UnavailableError", "CancelledError"), (case, rank, ended)
            assert f" of {who}: " in ended, (case, rank, ended)
            told = (": ", " ", " (coordinator): ", ": has left this call before rank 0 came: ")
            assert any(f"rank {who}{one}was interrupted" in ended for one in told), (
                case,
                rank,
                ended,
            )
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {"whole", "of-dcp", *(f"next-{number}" for number in range(19))}
    assert varve.verify(tmp_path / "next-18") == []
