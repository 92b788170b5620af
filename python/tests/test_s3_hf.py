"""Hugging Face folders that `convert` makes in a bucket, and transformers as the reader of a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from buckets import fetch, keys_in
from command_line import command

import varve
import varve.torch


def model_of(seed: int) -> Any:
    """A small language model, with the configuration that makes it one."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=100,
        )
    )


def save_native(model: Any, path: str) -> None:
    files = {"config.json": json.dumps(model.config.to_dict(), sort_keys=True).encode()}
    varve.torch.save(model.state_dict(), path, files=files, overwrite=True)


def test_transformers_opens_a_copy_and_an_overwrite_replaces_it(
    bucket: Any, tmp_path: Path
) -> None:
    native, made = (f"s3://{bucket.name}/{name}" for name in ("native", "made"))
    for seed in (1, 2):
        model = model_of(seed)
        save_native(model, native)
        options = ["--to", "hf", "--shard-size", "30000", "--overwrite"]
        assert "already holds" not in command("convert", native, made, *options)
        keys = [key for key in keys_in(bucket) if key.startswith("made/")]
        assert {"made/config.json", "made/model.safetensors.index.json"} < set(keys)
        assert len({key.rsplit("/", 1)[0] for key in keys}) == 2, keys
        assert "clean" in command("verify", made)
        state = varve.torch.read(made, flat=True)
        assert all(torch.equal(state[name], w) for name, w in model.state_dict().items())
        copy = fetch(bucket, "made", tmp_path / str(seed))
        assert varve.verify(copy) == []
        loaded = type(model).from_pretrained(copy)
        for name, w in loaded.state_dict().items():
            assert torch.equal(w, model.state_dict()[name])
    before = keys_in(bucket)
    assert "already holds" in command("convert", native, made, "--to", "hf", code=2)
    bucket.put_object(Key="made/config.json", Body=b"{}")
    told = command("convert", native, made, "--to", "hf", "--overwrite", code=2)
    assert "config.json is there with another content" in told
    assert "varve rm" in told
    assert keys_in(bucket) == before
    command("rm", made)
    assert not any(key.startswith("made/") for key in keys_in(bucket))


def test_a_copy_on_a_disk_is_replaced_as_a_whole(bucket: Any, tmp_path: Path) -> None:
    native, made = (f"s3://{bucket.name}/{name}" for name in ("native", "made"))
    varve.torch.save({"w": torch.arange(10.0)}, native)
    command("convert", native, made, "--to", "hf")
    copy = fetch(bucket, "made", tmp_path)
    command("convert", native, str(copy), "--to", "hf", "--overwrite")
    assert sorted(file.name for file in copy.rglob("*")) == [
        "model.safetensors",
        "model.safetensors.index.json",
        "model.varve-checksums.json",
    ]


def test_a_step_of_a_manager_is_converted_there_and_again(bucket: Any) -> None:
    made = f"s3://{bucket.name}/made"
    for value in (1.0, 2.0):
        run_name = f"s3://{bucket.name}/run-{value}"
        with varve.torch.CheckpointManager(run_name, every=1) as manager:
            manager.save(1, {"w": torch.full((10,), value)})
        command("convert", f"{run_name}/step-00000001", made, "--to", "hf", "--overwrite")
        assert varve.verify(made) == []
        assert torch.all(varve.torch.read(made)["w"] == value)


def test_a_folder_on_a_disk_is_copied_to_a_bucket(bucket: Any, tmp_path: Path) -> None:
    model, made = model_of(1), f"s3://{bucket.name}/made"
    options = varve.HfOptions(config=model)
    varve.torch.save(model.state_dict(), tmp_path / "made", format="hf", hf=options, upload_to=made)
    assert "made/config.json" in keys_in(bucket)
    loaded = type(model).from_pretrained(fetch(bucket, "made", tmp_path / "copy"))
    for name, w in loaded.state_dict().items():
        assert torch.equal(w, model.state_dict()[name])
