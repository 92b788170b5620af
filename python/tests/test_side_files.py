"""Files that are saved with a checkpoint, and checkpoints that are replaced only if damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
import torch.distributed.checkpoint as torch_dcp

import varve
import varve.torch
from varve.torch import Stager, async_save

FILES: dict[str, Any] = {"config.json": b"{}", "tokenizer/vocab.json": bytearray(b"[1]"), "e": b""}
CONTENT = {"config.json": b"{}", "tokenizer/vocab.json": b"[1]", "e": b""}


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((3000,), value), "step": int(value)}


def save(path: Path, value: int, **options: Any) -> None:
    varve.torch.save(state(value), path, **options)


def save_dcp(path: Path, value: int, **options: Any) -> None:
    varve.torch.save(state(value), path, format="dcp", **options)


def save_numpy(path: Path, value: int, **options: Any) -> None:
    varve.save({"w": np.full(3000, value, np.float32), "step": value}, path, **options)


def save_async(path: Path, value: int, **options: Any) -> None:
    async_save(state(value), path, **options).result(120)


def save_by_agent(path: Path, value: int, **options: Any) -> None:
    with Stager(executor="process", memory_budget=32 << 20) as stager:
        async_save(state(value), path, stager=stager, **options).result(120)


WRITERS = [save, save_dcp, save_numpy, save_async, save_by_agent]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("writer", WRITERS)
def test_files_are_saved_read_back_and_replaced(
    writer: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "step-1"
    writer(path, 1, files=FILES)
    stored = varve.files(path)
    assert dict(stored) == CONTENT
    assert stored.sizes == {name: len(content) for name, content in CONTENT.items()}
    with pytest.raises(KeyError):
        stored["other"]
    assert varve.verify(path) == []
    assert (path / "tokenizer" / "vocab.json").read_bytes() == b"[1]"
    source = tmp_path / "new.json"
    source.write_text("{2}")
    writer(path, 2, files={"config.json": source, "s": str(source)}, overwrite=True)
    assert dict(varve.files(path)) == {"config.json": b"{2}", "s": b"{2}"}
    assert not (path / "tokenizer").exists()
    assert varve.read(path)["step"] == 2
    writer(path, 3, overwrite=True)
    assert len(varve.files(path)) == 0


def test_an_index_of_hugging_face_may_name_the_data_files(tmp_path: Path) -> None:
    name, data = "model.safetensors.index.json", "data-00000-of-00001.safetensors"
    index = json.dumps({"metadata": {}, "weight_map": {"w": data}}).encode()
    path = tmp_path / "step-1"
    save(path, 1, files={name: index, "config.json": b"{}"})
    assert varve.verify(path) == []
    assert varve.list_checkpoints(tmp_path)[0].format == "varve"
    with safetensors.safe_open(path / data, "pt") as opened:
        assert torch.equal(opened.get_tensor("w"), state(1)["w"])
    varve.convert(path, tmp_path / "copy", "varve")
    assert set(varve.files(tmp_path / "copy")) == {"config.json"}
    varve.convert(path, tmp_path / "hf", "hf")
    assert json.loads((tmp_path / "hf" / name).read_text())["weight_map"]["w"] != data
    save(path, 2, overwrite=True)
    assert not (path / name).exists()
    save(path, 3, files={name: index}, overwrite=True)
    assert varve.remove(path) == []
    assert not path.exists()


def test_torch_opens_a_dcp_checkpoint_with_files(tmp_path: Path) -> None:
    save_dcp(tmp_path / "c", 3, files=FILES)
    loaded = {"w": torch.zeros(3000), "step": 0}
    torch_dcp.load(loaded, checkpoint_id=tmp_path / "c")
    assert loaded["step"] == 3 and bool((loaded["w"] == 3).all())


def test_files_are_taken_at_the_call(tmp_path: Path) -> None:
    content = bytearray(b"before")
    source = tmp_path / "source"
    source.write_bytes(b"before")
    handle = async_save(state(1), tmp_path / "c", files={"a": content, "b": source})
    content[:] = b"after!"
    source.write_bytes(b"after!")
    handle.result(120)
    assert dict(varve.files(tmp_path / "c")) == {"a": b"before", "b": b"before"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"varve.json": b""}, "checkpoints use themselves"),
        ({"../x": b""}, "relative path"),
        ({"/x": b""}, "relative path"),
        ({"x": "/nowhere/at/all"}, "cannot be read"),
        ({"x": 3}, "want bytes or a path"),
        ({3: b""}, "want names as str"),
        ({"\udc80": b""}, "not Unicode"),
        ([b"x"], "want a mapping"),
    ],
)
def test_files_that_cannot_be_saved_are_refused(files: Any, message: str, tmp_path: Path) -> None:
    for writer in (save, save_numpy, save_async):
        with pytest.raises(varve.InvalidArgumentError, match=message):
            writer(tmp_path / "c", 1, files=files)
    assert os.listdir(tmp_path) == [".c.varve-failed"]


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save(path, 1, files=FILES)
    (path / "config.json").write_bytes(b"{]")
    with pytest.raises(varve.CorruptCheckpointError, match=r"config\.json.*checksum"):
        varve.files(path)["config.json"]
    (damage,) = varve.verify(path)
    assert damage.file == "config.json"


def test_convert_copies_files_and_a_configuration(tmp_path: Path) -> None:
    save(tmp_path / "c", 1, files=FILES)
    hf = tmp_path / "base"
    hf.mkdir()
    for name in ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors"):
        (hf / name).write_text(name)
    report = varve.convert(tmp_path / "c", tmp_path / "out", "hf", hf_config=hf)
    assert sorted(report.files) == [
        "config.json",
        "e",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer/vocab.json",
    ]
    assert (tmp_path / "out" / "config.json").read_text() == "config.json"
    assert (tmp_path / "out" / "tokenizer" / "vocab.json").read_text() == "[1]"
    varve.convert(tmp_path / "c", tmp_path / "native", "varve")
    assert dict(varve.files(tmp_path / "native")) == CONTENT
    with pytest.raises(varve.InvalidArgumentError, match="Hugging Face folder"):
        varve.convert(tmp_path / "c", tmp_path / "x", "dcp", hf_config=hf)
    with pytest.raises(varve.CheckpointNotFoundError, match="no config"):
        varve.convert(tmp_path / "c", tmp_path / "x", "hf", hf_config=tmp_path)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("writer", WRITERS)
def test_overwrite_damaged_replaces_what_does_not_verify(
    writer: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "step-370"
    writer(path, 1, overwrite="damaged")
    with pytest.raises(varve.CheckpointExistsError, match="not damaged"):
        writer(path, 2, overwrite="damaged")
    assert varve.read(path)["step"] == 1
    (data,) = [p for p in path.iterdir() if p.suffix in (".safetensors", ".distcp")]
    content = bytearray(data.read_bytes())
    content[-100] ^= 1
    data.write_bytes(content)
    (path / "notes.txt").write_text("mine")
    writer(path, 3, overwrite="damaged")
    assert varve.read(path)["step"] == 3
    assert varve.verify(path) == []
    assert (path / "notes.txt").read_text() == "mine"


def test_overwrite_of_another_kind_is_refused(tmp_path: Path) -> None:
    for value in ("yes", 1, None):
        with pytest.raises(varve.InvalidArgumentError, match='want False, True or "damaged"'):
            save(tmp_path / "c", 1, overwrite=value)
    for writer in (save, save_dcp, save_numpy, save_async):
        with pytest.raises(varve.InvalidArgumentError, match="in place is for the format hfai"):
            writer(tmp_path / "c", 1, overwrite="in_place")
    assert not (tmp_path / "c").exists()


def test_names_that_cannot_be_a_checkpoints_are_refused(tmp_path: Path) -> None:
    for name in (".c.varve-old", ".c.varve-saving-0123456789ab"):
        with pytest.raises(varve.InvalidArgumentError, match="a name that Varve uses"):
            save(tmp_path / name, 1)
    for name in ("c/.", "c/..", "."):
        with pytest.raises(varve.InvalidArgumentError, match="own name"):
            varve.torch.save(state(1), f"{tmp_path}/{name}")
    varve.torch.save(state(1), f"{tmp_path}/c/")
    assert varve.read(f"{tmp_path}/c/.")["step"] == 1
    assert os.listdir(tmp_path) == ["c"]


def test_a_save_through_a_link_replaces_what_it_leads_to(tmp_path: Path) -> None:
    save(tmp_path / "ck", 1)
    (tmp_path / "latest").symlink_to("ck")
    for writer in (save, save_dcp, save_async):
        writer(tmp_path / "latest", 2, overwrite=True)
        assert (tmp_path / "latest").is_symlink()
        assert varve.read(tmp_path / "ck")["step"] == 2
        assert sorted(os.listdir(tmp_path)) == ["ck", "latest"]


def test_remove_and_latest(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError, match="no whole checkpoint"):
        varve.latest(tmp_path)
    for step in (9, 10):
        save(tmp_path / f"step-{step}", step)
    assert varve.latest(tmp_path) == str(tmp_path / "step-10")
    (tmp_path / "step-10" / "notes.txt").write_text("mine")
    assert varve.remove(tmp_path / "step-10", dry_run=True) == ["notes.txt"]
    assert varve.remove(tmp_path / "step-10") == ["notes.txt"]
    assert varve.latest(tmp_path) == str(tmp_path / "step-9")
    assert os.listdir(tmp_path) == ["step-9"]
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.remove(tmp_path / "step-10")
