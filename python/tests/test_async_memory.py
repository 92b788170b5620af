"""What a long run of asynchronous saves leaves in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import async_jobs
import pytest
from ranks import run_ranks

SAVES = 2000
#: Found once in the ranks' channel: 7 KB a save, 11 MiB in what is measured here.
MOST_GROWTH = 3 << 20


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the system has one: thousands of syncs are not what is tested."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="varve-test-", dir=shared))
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
def test_two_thousand_saves_of_two_ranks_leave_memory_as_it_was(in_memory: Path) -> None:
    measured = run_ranks(2, async_jobs.resident_after_many, str(in_memory / "ck"), SAVES)
    growth = [after - warm for warm, after in measured]
    assert max(growth) < MOST_GROWTH, f"{[g >> 10 for g in growth]} KiB in {SAVES * 4 // 5} saves"
