"""Options of a save that differ between ranks: an error that names them, on all ranks, before any write."""

from __future__ import annotations

from pathlib import Path

import option_jobs as jobs
from ranks import run_ranks

import varve


def test_options_that_differ_are_named_on_all_ranks_and_the_next_save_works(tmp_path: Path) -> None:
    for rank, (found, seconds) in enumerate(run_ranks(3, jobs.differ, str(tmp_path))):
        assert seconds < 25, "a rank has waited for its time limit"
        for name, text in found.items():
            if name.endswith("-next"):
                assert text == "done", (rank, name, text)
                continue
            option = name.split("-")[1]
            assert text.startswith("InvalidArgumentError: save ") and name in text, (rank, text)
            assert f"ranks differ in {option} (" in text and "same arguments" in text, (rank, text)
            assert "on ranks 0, 2" in text and "on rank 1" in text, (rank, text)
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    saved = {name for name in found if name.endswith("-next")}
    assert names - saved == {f"{verb}-upload_to-0-next-copy" for verb in ("save", "async_save")}
    assert saved <= names
    for name in names:
        assert varve.verify(tmp_path / name) == []
    hidden = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert all(name.endswith((".varve-failed", "varve-lock")) for name in hidden), (
        "no pending upload"
    )
