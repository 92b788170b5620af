"""The benchmark that each change is held against runs, all arms of it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import raw
from bench.context import Context
from bench.scenarios import quick


def test_the_quick_run_measures_each_of_its_ratios(tmp_path: Path) -> None:
    results = quick.run(
        Context(
            directory=tmp_path,
            size=4 << 20,
            tensors=4,
            rounds=1,
            warmups=0,
            settle_seconds=0.0,
            raw=raw.RawIo(raw.build(tmp_path)),
        )
    )
    assert [result.name for result in results] == ["quick save", "quick load", "quick stall"]
    for result in results:
        assert not result.skipped
        assert all(verdict.value is not None for verdict in result.verdicts), result.verdicts
    assert sum(len(result.verdicts) for result in results) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["raw_io"]
