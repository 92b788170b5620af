"""OLMo's, hfai's and torch's ways with tensors of devices: all copies are the engine's, through registered memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cuda_stand_in import run_job


def run(job: str, *arguments: object) -> dict[str, Any]:
    return run_job("cuda_adapter_jobs.py", job, *arguments)


@pytest.mark.slow
def test_olmos_rank_files_have_the_tensors_of_devices_as_ones_of_the_cpu(tmp_path: Path) -> None:
    out = run("rank_files", tmp_path)
    assert out.pop("part-bytes") < 8 * 1000 + 4096
    assert out.pop("legacy-optim") == [True] * 4
    assert out.pop("pageable") == 0
    assert out == dict.fromkeys(("legacy", "local", "local-optim", "part", "apart"), True)


@pytest.mark.slow
def test_shards_and_states_pass_between_devices_and_the_host_through_registered_memory(
    tmp_path: Path,
) -> None:
    out = run("shards", tmp_path)
    assert out.pop("pageable") == 0
    assert out.pop("others") == "cuda:1"
    assert out.pop("step") is None
    assert all(out.values()), out


@pytest.mark.slow
def test_hfai_saves_from_devices_and_states_are_read_straight_onto_one(tmp_path: Path) -> None:
    out = run("hfai", tmp_path)
    assert out.pop("device_bytes") == out.pop("sum")
    assert out.pop("pageable_bytes") == 0
    assert out.pop("pageable") == 0
    assert all(out.values()), out
