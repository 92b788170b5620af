"""Saves as Hugging Face folders straight into a bucket."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from buckets import fetch, keys_in
from hf_jobs import (
    fail_on_one_rank,
    llama,
    overwrite_and_die,
    pipeline,
    save_llama,
    save_random_states,
    save_replicas,
    whole_state,
)
from ranks import collect, run_ranks
from test_hf import assert_same, read_by_safetensors

import varve
import varve.torch


@pytest.mark.parametrize("executor", [None, "thread", "process"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_sharding_becomes_whole_tensors(
    bucket: Any, agent: str, tmp_path: Path, size: int, executor: str | None
) -> None:
    seeds = list(range(100 * size, 100 * size + 6))
    url = f"s3://{bucket.name}/run"
    run_ranks(size, save_random_states, url, seeds, executor)
    keys = keys_in(bucket)
    assert not any("varve-pieces" in key for key in keys)
    for seed in seeds:
        state = varve.torch.read(f"{url}/{seed}", flat=True)
        assert_same(state, whole_state(seed))
        assert varve.verify(f"{url}/{seed}") == []
        folder = fetch(bucket, f"run/{seed}", tmp_path)
        assert_same(read_by_safetensors(folder), whole_state(seed))
        assert varve.verify(folder) == []
    assert [entry.name for entry in varve.list_checkpoints(url)] == [str(seed) for seed in seeds]


@pytest.mark.parametrize("how", ["save", "thread", "process"])
def test_transformers_opens_a_copy_of_what_two_ranks_of_fsdp_save(
    bucket: Any, agent: str, tmp_path: Path, how: str
) -> None:
    from transformers import AutoModelForCausalLM

    loaded = run_ranks(2, save_llama, f"s3://{bucket.name}/m", how)
    original = llama()
    weights = {k: v for k, v in original.state_dict().items() if k != "lm_head.weight"}
    assert [one["loaded"] for one in loaded] == [len(weights)] * 2
    folder = fetch(bucket, "m", tmp_path)
    assert_same(read_by_safetensors(folder), weights)
    assert_same(AutoModelForCausalLM.from_pretrained(folder).state_dict(), original.state_dict())


def test_replicas_and_stages_of_a_pipeline_are_sent_once(bucket: Any) -> None:
    for job in (save_replicas, pipeline):
        path = f"s3://{bucket.name}/{job.__name__}"
        written = run_ranks(3, job, path)
        phases = [names for _bytes, names in written]
        assert not any("join" in names for names in phases), "no rank reads what another wrote"
        total = sum(varve.torch.read(path, flat=True)[f"w{i}"].nbytes for i in range(6))
        assert total <= sum(sent for sent, _names in written) <= total + 200_000
        assert max(sent for sent, _names in written) < 0.5 * total
        assert all(torch.all(varve.torch.read(path)[f"w{i}"] == i) for i in range(6))


def test_an_overwrite_keeps_the_old_folder_until_the_new_one_is_there(bucket: Any) -> None:
    path = f"s3://{bucket.name}/m"
    varve.torch.save({"a": torch.ones(3), "b": torch.ones(4)}, path, format="hf")
    with pytest.raises(varve.CheckpointExistsError):
        varve.torch.save({"a": torch.zeros(3)}, path, format="hf")
    first = keys_in(bucket)
    varve.torch.save({"a": torch.zeros(3)}, path, format="hf", overwrite=True)
    assert list(varve.torch.read(path, flat=True)) == ["a"]
    assert set(keys_in(bucket)) & set(first) == {"m/model.safetensors.index.json"}


def test_what_the_format_cannot_hold_ends_the_save_of_all_and_leaves_nothing(bucket: Any) -> None:
    told = run_ranks(2, fail_on_one_rank, f"s3://{bucket.name}/m")
    assert all('"c" is complex128' in text for text in told), told
    assert keys_in(bucket) == []


def test_a_killed_job_leaves_a_whole_folder(bucket: Any) -> None:
    draw = random.Random(4)
    path = f"s3://{bucket.name}/run/m"
    varve.torch.save({"w": torch.zeros(1000, 301)}, path, format="hf")
    for _ in range(5):
        seconds = draw.uniform(1.0, 2.0)
        collect(2, overwrite_and_die, path, seconds, dead=(0, 1))
        value = varve.torch.read(path)["w"]
        assert value.shape == (1000, 301)
        assert torch.all(value == value[0, 0])
        assert varve.verify(path) == []
        assert varve.latest(f"s3://{bucket.name}/run") == path


def test_a_manager_saves_a_step_again_after_it_went_back(bucket: Any) -> None:
    run_name = f"s3://{bucket.name}/run"
    options: Any = {"format": "hf", "hf": varve.HfOptions()}
    with varve.torch.CheckpointManager(run_name, every=1, keep=9, save_options=options) as first:
        for step in (1, 2, 3):
            first.save(step, {"w": torch.full((10,), float(step))})
    with varve.torch.CheckpointManager(run_name, every=1, keep=9, save_options=options) as second:
        state = {"w": torch.zeros(10)}
        assert second.resume(state) == 3
        assert torch.all(state["w"] == 3)
        second.save(3, {"w": torch.full((10,), 103.0)}, force=True)
    assert torch.all(varve.torch.read(f"{run_name}/step-00000003")["w"] == 103)
    assert varve.verify(f"{run_name}/step-00000003") == []
