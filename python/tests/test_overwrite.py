"""Overwriting a checkpoint replaces the checkpoint and nothing else, whoever writes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import varve
import varve.torch
from varve.torch import Stager, async_save


def state(value: float) -> dict[str, torch.Tensor | int]:
    return {"w": torch.full((3000,), value), "step": int(value)}


def put_files(path: Path) -> None:
    """What people put beside a checkpoint."""
    (path / "config.json").write_text("{}")
    (path / "tokenizer" / "extra").mkdir(parents=True)
    (path / "tokenizer" / "vocab.json").write_text("[1]")
    (path / "tokenizer" / "extra" / "run.sh").write_text("exit")
    (path / "tokenizer" / "extra" / "run.sh").chmod(0o755)
    (path / "empty").mkdir()
    (path / "readme").symlink_to("config.json")
    (path / "dataset").symlink_to("/nowhere/at/all")


def assert_kept(path: Path) -> None:
    assert (path / "config.json").read_text() == "{}"
    assert (path / "tokenizer" / "vocab.json").read_text() == "[1]"
    assert os.access(path / "tokenizer" / "extra" / "run.sh", os.X_OK)
    assert (path / "empty").is_dir()
    assert os.readlink(path / "readme") == "config.json"
    assert os.readlink(path / "dataset") == "/nowhere/at/all"


def assert_holds(path: Path, value: int) -> None:
    read = varve.read(path)
    assert read["step"] == value and bool((read["w"] == value).all())
    assert varve.verify(path) == []
    assert os.listdir(path.parent) == [path.name]


def save(path: Path, value: int) -> None:
    varve.torch.save(state(value), path, overwrite=True)


def save_dcp(path: Path, value: int) -> None:
    varve.torch.save(state(value), path, overwrite=True, format="dcp")


def save_numpy(path: Path, value: int) -> None:
    varve.save({"w": np.full(3000, value, np.float32), "step": value}, path, overwrite=True)


def save_async(path: Path, value: int) -> None:
    async_save(state(value), path, overwrite=True).result(120)


def save_by_agent(path: Path, value: int) -> None:
    with Stager(executor="process", memory_budget=32 << 20) as stager:
        async_save(state(value), path, overwrite=True, stager=stager).result(120)


def convert(path: Path, value: int) -> None:
    source = path.parent.parent / f"source-{value}"
    varve.torch.save(state(value), source)
    varve.convert(source, path, "varve", overwrite=True)


WRITERS = [save, save_dcp, save_numpy, save_async, save_by_agent, convert]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("before", [save, save_dcp])
def test_files_beside_a_checkpoint_are_kept(
    before: Callable[[Path, int], None], writer: Callable[[Path, int], None], tmp_path: Path
) -> None:
    path = tmp_path / "run" / "step-1"
    before(path, 1)
    put_files(path)
    inode = (path / "config.json").stat().st_ino
    writer(path, 2)
    assert_kept(path)
    assert (path / "config.json").stat().st_ino == inode
    assert_holds(path, 2)
    writer(path, 3)
    assert_kept(path)
    assert_holds(path, 3)


def test_stale_files_of_the_format_go_with_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run" / "step-1"
    save_dcp(path, 1)
    (path / "__5_0.distcp").write_text("of a larger world")
    (path / "notes.txt").write_text("mine")
    save_dcp(path, 2)
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "notes.txt"]
    save(path, 3)
    assert sorted(os.listdir(path)) == [
        "data-00000-of-00001.safetensors",
        "manifest.bin",
        "notes.txt",
        "varve.json",
    ]


def test_a_hugging_face_folder_keeps_its_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    varve.torch.save({"w": torch.ones(10), "v": torch.ones(10)}, source)
    path = tmp_path / "run" / "model"
    varve.convert(source, path, "hf", shard_size=40)
    put_files(path)
    (path / "adapter_model.safetensors").write_bytes(b"somebody's")
    varve.convert(source, path, "hf", overwrite=True)
    assert_kept(path)
    weights = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    assert weights == ["adapter_model.safetensors", "model.safetensors"]


@pytest.mark.usefixtures("agent")
def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run" / "mine"
    path.mkdir(parents=True)
    put_files(path)
    for writer in WRITERS:
        with pytest.raises(varve.PreconditionError, match="not a checkpoint"):
            writer(path, 1)
    assert_kept(path)


def test_a_file_that_the_new_checkpoint_needs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run" / "step-1"
    save(path, 1)
    (path / "__0_0.distcp").write_text("mine")
    with pytest.raises(
        varve.PreconditionError, match=r"__0_0\.distcp is not part of the checkpoint"
    ):
        save_dcp(path, 2)
    assert (path / "__0_0.distcp").read_text() == "mine"
    assert_holds(path, 1)


def test_gc_keeps_files_of_a_save_that_died_while_it_removed_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "step-1"
    save(path, 2)
    (path / "config.json").write_text("new")
    stale = tmp_path / "run" / ".step-1.varve-saving-0123456789ab"
    save(tmp_path / "old", 1)
    (tmp_path / "old").rename(stale)
    (stale / "config.json").write_text("old")
    (stale / "late.log").write_text("late")
    varve.collect_garbage(tmp_path / "run")
    assert (path / "late.log").read_text() == "late"
    assert (path / "config.json").read_text() == "new"
    assert (stale / "config.json").read_text() == "old"
    assert sorted(os.listdir(stale)) == ["config.json", "manifest.bin", "varve.json"]
