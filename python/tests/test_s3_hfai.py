"""varve.hfai straight into a bucket: parts with fixed names, and a mark that is written last."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import hfai_jobs as jobs
import hfai_original
import pytest
import torch
from buckets import fetch, keys_in
from command_line import command
from hfai_original import assert_same
from ranks import collect, errors_of_ranks, run_ranks
from test_hfai_ranks import truth_of

import varve
import varve.hfai

MARK = ".varve-uploaded"


class Custom:
    """An object that only a pickle can make."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    __hash__ = object.__hash__


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ddp_is_saved_into_a_bucket_and_both_readers_open_it(
    bucket: Any, size: int, tmp_path: Path
) -> None:
    path = f"s3://{bucket.name}/run/latest.pt"
    truth = truth_of(run_ranks(size, jobs.save_one, path))
    parts = [f"run/latest.pt/PART_{rank:03d}.pt" for rank in range(size)]
    assert keys_in(bucket) == sorted([*parts, f"run/latest.pt/{MARK}"])
    assert varve.verify(path) == []
    assert [one.state for one in varve.list_checkpoints(f"s3://{bucket.name}/run")] == ["whole"]
    copy = fetch(bucket, "run/latest.pt", tmp_path)
    for state in (varve.hfai.load(path), hfai_original.read(copy), varve.hfai.load(copy)):
        assert_same({key: state[key] for key in truth}, truth)


def test_a_checkpoint_is_replaced_only_when_that_is_asked_for(bucket: Any) -> None:
    path = f"s3://{bucket.name}/latest.pt"
    first = truth_of(run_ranks(2, jobs.save_one, path))
    told = errors_of_ranks(2, jobs.save_one, path, 1)
    assert all(
        "CheckpointExistsError" in text and 'remote_overwrite="in_place"' in text
        for text in told.values()
    ), told
    assert_same({key: varve.hfai.load(path)[key] for key in first}, first)
    second = truth_of(run_ranks(1, jobs.save_one, path, 1, "in_place"))
    assert_same({key: varve.hfai.load(path)[key] for key in second}, second)
    assert keys_in(bucket) == [f"latest.pt/{MARK}", "latest.pt/PART_000.pt"]
    with pytest.raises(varve.InvalidArgumentError, match=r"mmap=True.*is remote"):
        varve.hfai.load(path, mmap=True)


def test_try_save_into_a_bucket_asks_for_in_place_at_the_beginning(bucket: Any) -> None:
    path = f"s3://{bucket.name}/latest.pt"
    told = errors_of_ranks(2, jobs.try_saves, path)
    assert all('remote_overwrite="in_place"' in text for text in told.values()), told
    for _ in range(2):  # The second job resumes from the first one's, and replaces it.
        for outcome in run_ranks(2, jobs.try_saves, path, "in_place"):
            _start, saved, resumed, same, scheduler_is_the_same = outcome
            assert saved == [False, True]
            assert resumed == (1, 11, {"rng": 5})
            assert same and scheduler_is_the_same


def test_a_job_that_is_killed_leaves_no_mix(bucket: Any) -> None:
    draw = random.Random(8)
    path = f"s3://{bucket.name}/run/latest.pt"
    seen = set()
    for _ in range(6):
        seconds = draw.uniform(0.5, 1.5)
        collect(2, jobs.save_again_and_die, path, seconds, dead=(0, 1))
        try:
            state = varve.hfai.load(path)
        except varve.Error:
            seen.add("none")
            assert f"run/latest.pt/{MARK}" not in keys_in(bucket)
            continue
        seen.add("whole")
        model = state["model"]
        assert torch.all(model["weight"] == state["step"])
        assert torch.all(model["bias"] == state["step"])
    assert seen
    command("gc", f"s3://{bucket.name}/run")
    run_ranks(2, jobs.save_one, path, 0, "in_place")
    assert varve.verify(path) == []


def test_classes_in_a_bucket_are_made_by_torch_load_alone(bucket: Any, tmp_path: Path) -> None:
    others = {"args": Custom(), "epoch": 4}
    hfai_original.write(tmp_path, [{"w": torch.ones(2)}], [], others, 2, 4096)
    for part in ("PART_000.pt", "PART_001.pt"):
        bucket.upload_file(str(tmp_path / part), f"latest.pt/{part}")
    path = f"s3://{bucket.name}/latest.pt"
    with pytest.raises(varve.UnsupportedError, match=r"weights_only=False"):
        varve.hfai.load(path)
    assert varve.hfai.load(path, weights_only=False)["args"] == Custom()
