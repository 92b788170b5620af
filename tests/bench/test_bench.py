"""What bench/ computes from timings, and what it says of the machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import compare, limits, machine, raw
from bench.measure import Rounds, Sample
from bench.results import Result

GIB = 1 << 30


def result_of(seconds: Mapping[str, list[float]], name: str = "save") -> Result:
    samples = {arm: [Sample(each, each / 2) for each in times] for arm, times in seconds.items()}
    return Result.of(name, "How fast?", GIB, Rounds(samples, {}), {}, ())


# ---- verdicts ----


def test_a_speed_is_a_ratio_of_medians_and_has_the_range_of_its_rounds() -> None:
    result = result_of({"ours": [1.0, 2.0, 4.0], "raw": [2.0, 2.0, 2.0]})
    result.expect_speed("ours", "raw", 0.95)
    (verdict,) = result.verdicts
    assert (verdict.value, verdict.lowest, verdict.highest) == (1.0, 0.5, 2.0)
    assert verdict.met and verdict.rises


def test_a_time_is_met_at_its_bound_and_missed_above() -> None:
    result = result_of({"ours": [1.1], "memcpy": [1.0]})
    result.expect_time("ours", "memcpy", 1.1)
    result.expect_time("ours", "memcpy", 1.09)
    assert [verdict.met for verdict in result.verdicts] == [True, False]
    assert not result.verdicts[0].rises


def test_an_item_costs_what_is_left_of_its_time_without_that_of_the_bytes() -> None:
    result = result_of({"items": [1.5, 1.4, 1.6], "few": [0.5, 0.5, 0.5]})
    result.expect_per_item("items", "few", 100_000, 5.0)
    (verdict,) = result.verdicts
    assert verdict.value == pytest.approx(10.0) and verdict.met is False
    assert (verdict.lowest, verdict.highest) == (pytest.approx(9.0), pytest.approx(11.0))


def test_the_bytes_of_items_may_be_of_another_result_of_the_run() -> None:
    few = result_of({"drop-in": [0.5]}, "dcp save")
    items = result_of({"drop-in": [1.5]}, "dcp small save")
    items.expect_per_item("drop-in", "drop-in", 100_000, 20.0, of=few)
    (verdict,) = items.verdicts
    assert verdict.value == pytest.approx(10.0) and verdict.met
    assert verdict.claim == "drop-in takes <= 20 us an item over drop-in (dcp save)"


def test_core_seconds_are_compared_with_those_of_a_competitor() -> None:
    result = result_of({"ours": [1.0, 1.0], "DCP": [4.0, 2.0]})
    result.expect_cpu("ours", "DCP", 0.4)
    assert result.verdicts[0].value == pytest.approx(1 / 3) and result.verdicts[0].met


def test_the_fastest_round_of_each_spreads_to_the_median_of_the_other() -> None:
    result = result_of({"ours": [4.0, 1.0, 2.0], "raw": [1.5, 3.0, 1.0]})
    result.fastest = True
    result.expect_speed("ours", "raw", 0.95)
    (verdict,) = result.verdicts
    assert (verdict.value, verdict.lowest, verdict.highest) == (1.0, 0.5, 1.5)
    assert "fastest by median round 0.500 to 1.500" in result.to_markdown("AMD EPYC, 2 cores")


def test_a_target_whose_arm_did_not_run_is_not_met() -> None:
    result = result_of({"ours": [1.0]})
    result.expect_speed("ours", "DCP", 6.0)
    result.expect_time("ours", "DCP", 6.0)
    result.expect_cpu("ours", "DCP", 6.0)
    result.expect_per_item("ours", "DCP", 100, 6.0)
    result.expect_peak("ours", 1e9)
    assert [(verdict.value, verdict.met) for verdict in result.verdicts] == [(None, None)] * 5


def test_the_heading_of_a_table_names_the_processor() -> None:
    text = result_of({"ours": [1.0]}).to_markdown("AMD EPYC (family 25 model 17), 2 cores")
    assert text.startswith("### save: AMD EPYC (family 25 model 17), 2 cores\n")


# ---- against an earlier run ----


def record_of(ours: list[float], cpu: str = "AMD EPYC") -> dict[str, Any]:
    result = result_of({"ours": ours, "raw": [1.0] * len(ours)})
    result.expect_speed("ours", "raw", 0.95)
    return {
        "schema": compare.SCHEMA,
        "commit": "0123456789ab",
        "time": "2026-01-01T00:00:00+00:00",
        "settings": {"size": GIB},
        "machine": {"cpu": cpu, "cores": 2},
        "results": [json.loads(json.dumps(result.to_json()))],
    }


def test_a_ratio_that_is_worse_than_the_rounds_spread_has_slipped() -> None:
    words, slipped = compare.compare(record_of([1.0, 1.1, 0.9]), record_of([1.3, 1.4, 1.5]))
    assert slipped == ["save: speed of ours / raw"]
    assert "SLIPPED: save: speed of ours / raw: 1.000 (0.909 to 1.111), now 0.714" in words


def test_a_ratio_that_is_worse_within_the_spread_is_held() -> None:
    words, slipped = compare.compare(record_of([1.0, 1.3, 0.9]), record_of([1.2, 1.25, 1.3]))
    assert slipped == [] and "held: save" in words


def test_a_ratio_that_is_better_has_not_slipped() -> None:
    _, slipped = compare.compare(record_of([1.3, 1.4, 1.5]), record_of([1.0, 1.1, 0.9]))
    assert slipped == []


def test_of_ratios_that_shall_fall_the_higher_one_has_slipped() -> None:
    low = {"rises": False, "value": 1.0, "lowest": 0.9, "highest": 1.1}
    high = {"rises": False, "value": 1.5, "lowest": 1.4, "highest": 1.6}
    assert compare.has_slipped(low, high) and not compare.has_slipped(high, low)


def test_another_processor_is_named() -> None:
    words, _ = compare.compare(record_of([1.0]), record_of([1.0], cpu="Intel Xeon"))
    assert "machine.cpu: AMD EPYC, now Intel Xeon" in words


def test_the_last_run_of_a_file_is_the_one_compared_with(tmp_path: Path) -> None:
    lines = [record_of([2.0]), record_of([1.0])]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compare.last_record(history) == lines[1]


def test_a_file_of_an_older_bench_is_refused(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text('{"schema": 1}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl: schema 1, 2 needed"):
        compare.last_record(history)


# ---- the machine ----

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx2 vpclmulqdq
"""


def test_a_processor_without_a_number_is_told_by_family_and_model() -> None:
    assert machine.processor(EPYC) == "AMD EPYC (family 25 model 17 stepping 1, vpclmulqdq)"
    older = EPYC.replace(" vpclmulqdq", "")
    assert machine.processor(older).endswith("stepping 1, no vpclmulqdq)")


def test_a_processor_of_another_kind_has_a_name_too() -> None:
    assert machine.processor("processor\t: 0\nFeatures\t: fp\n") == os.uname().machine


def test_limits_are_measured_with_one_thread_and_with_all(tmp_path: Path) -> None:
    program = raw.RawIo(raw.build(tmp_path))
    found = {limit.name: limit for limit in program.limits(tmp_path, 32 << 20, 2)}
    assert {"memcpy", "pread"} <= set(found)
    cores = len(os.sched_getaffinity(0))
    for limit in found.values():
        assert set(limit.gb_per_s) == {1, cores} and min(limit.gb_per_s.values()) > 0.05
    assert [path.name for path in tmp_path.iterdir()] == ["raw_io"]


def test_the_table_of_limits_says_what_was_left_out() -> None:
    text = limits.to_markdown([raw.Limit("memcpy", {1: 4.7, 2: 8.7})], "AMD EPYC, 2 cores")
    assert text.startswith("### limits: AMD EPYC, 2 cores\n")
    assert "| memcpy |     4.70 |      8.70 |" in text
    assert "not measured: CRC-32C and XXH3; raw_io was built without ISA-L and xxHash" in text


def test_raw_io_is_built_without_checksums_where_a_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "_CHECKSUMS", ["-DRAW_IO_CHECKSUMS", "-lno-such-library"])
    found = raw.RawIo(raw.build(tmp_path)).limits(tmp_path, 16 << 20, 1)
    names = [limit.name for limit in found]
    assert "memcpy" in names and "CRC-32C" not in names
