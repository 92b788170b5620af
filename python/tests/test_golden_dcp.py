"""Checkpoints written by PyTorch 2.6 and 2.14 hold here what PyTorch itself says they hold.

What each case is and how `expected.json` was made: tests/golden/dcp/README.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
import typed_json

import varve
import varve.torch

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "dcp"
VERSIONS = ("2.6.0", "2.14.1")


def cases() -> Iterator[Any]:
    for version in VERSIONS:
        for folder in sorted((GOLDEN / version).iterdir()):
            if folder.name != "torch_save":
                yield pytest.param(folder, id=f"{version}-{folder.name}")


def files() -> Iterator[Any]:
    for version in VERSIONS:
        folder = GOLDEN / version / "torch_save"
        expected = json.loads((folder / "expected.json").read_text())
        for name in sorted(expected["files"]):
            yield pytest.param(folder / name, expected["files"][name], id=f"{version}-{name}")


def contiguous_bytes(tensor: Any) -> bytes:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).tobytes()
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def assert_tensor(name: str, tensor: Any, entry: dict[str, Any]) -> None:
    assert str(tensor.dtype).removeprefix("torch.") == entry["dtype"], name
    assert list(tensor.shape) == entry["shape"], name
    assert hashlib.sha256(contiguous_bytes(tensor)).hexdigest() == entry["sha256"], name


def assert_entries(found: dict[str, Any], entries: dict[str, Any], opaque: set[str]) -> None:
    assert sorted(found) == sorted(set(entries) - opaque)
    for name, value in found.items():
        entry = entries[name]
        if entry["kind"] == "tensor":
            assert_tensor(name, value, entry)
        else:
            assert typed_json.encode(value) == entry["python"], name


@pytest.mark.parametrize("folder", list(cases()))
def test_every_entry_is_what_pytorch_says(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    # Opaque objects are pickles, and only opened because these files are trusted.
    found = varve.torch.read(folder, sorted(expected["entries"]), flat=True, allow_pickle=True)
    assert_entries(found, expected["entries"], set())


@pytest.mark.parametrize("folder", list(cases()))
def test_verify_finds_nothing_wrong(folder: Path) -> None:
    assert varve.verify(folder) == []


@pytest.mark.parametrize("folder", list(cases()))
def test_ls_knows_it(folder: Path) -> None:
    (entry,) = varve.list_checkpoints(folder)
    assert entry.state == "whole"
    expected = json.loads((folder / "expected.json").read_text())
    assert entry.format == expected["format"].replace("torch.save", "torch")


@pytest.mark.parametrize(("path", "expected"), list(files()))
def test_every_entry_of_a_torch_save_file_is_what_pytorch_says(
    path: Path, expected: dict[str, Any]
) -> None:
    entries = expected["entries"]
    # A part of a file cannot be given to an unpickler by itself: such entries are refused by name.
    reader = varve._core.Reader(str(path))
    opaque = set()
    for name in reader.object_names():
        try:
            reader.objects([name], True)
        except varve.UnsupportedError:
            opaque.add(name)
    names = [name for name in entries if name not in opaque]
    found = (
        varve.torch.read(path, [n.replace("[", "[[]") for n in names], flat=True) if names else {}
    )
    assert_entries(found, entries, opaque)
    for name in opaque:
        entry = entries[name]
        assert entry["kind"] == "value", f"{name} is a plain tensor and must open"


def test_opaque_objects_need_permission() -> None:
    folder = GOLDEN / "2.14.1" / "opaque"
    with pytest.raises(varve.UnsupportedError, match="allow_pickle"):
        varve.torch.read(folder)
    state = varve.torch.read(folder, "*tensor*", flat=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_list_positions_that_dcp_dropped_are_empty_dicts() -> None:
    """torch's own converter fails on these with "Missing key"."""
    for version in VERSIONS:
        folder = GOLDEN / version / "holes"
        expected = json.loads((folder / "expected.json").read_text())
        state = varve.torch.read(folder)
        for name, entry in expected["entries"].items():
            at: Any = state
            for part in entry["path"]:
                at = at[part]
            if entry["kind"] == "value":
                assert typed_json.encode(at) == entry["python"], name


def test_elements_that_lie_across_every_boundary_of_a_file_load_right(tmp_path: Path) -> None:
    """Items of torch begin at any byte: blocks of reading cut through elements."""
    torch.manual_seed(0)
    saved = {f"w{i}": torch.rand(5000, dtype=torch.float64) for i in range(40)}
    saved["t"] = torch.rand(700, 900).t()
    saved["b"] = torch.rand(333, 1001).to(torch.bfloat16)
    torch_dcp.save(dict(saved), checkpoint_id=tmp_path / "step")
    found = varve.torch.read(tmp_path / "step")
    assert [name for name in saved if not torch.equal(saved[name], found[name])] == []
    part = {"t": torch.zeros(900, 700)[:, ::1]}
    varve.torch.load(part, tmp_path / "step", strict=False)
    assert torch.equal(part["t"], saved["t"])
    torch.save(saved, tmp_path / "file.pt")
    found = varve.torch.read(tmp_path / "file.pt")
    assert [name for name in saved if not torch.equal(saved[name], found[name])] == []


def test_a_flipped_byte_of_a_dcp_checkpoint_is_found_by_load_and_verify(tmp_path: Path) -> None:
    """DCP itself never looks at the checksums it stores."""
    saved = {"w": torch.rand(100_000), "n": 3}
    torch_dcp.save(dict(saved), checkpoint_id=tmp_path / "step")
    path = tmp_path / "step" / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    begin = varve.open(tmp_path / "step").tensors["w"].chunks[0].begin
    content[begin + 100_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(varve.CorruptCheckpointError, match="w"):
        varve.torch.load({"w": torch.zeros(100_000), "n": 0}, tmp_path / "step")
    (damage,) = varve.verify(tmp_path / "step")
    assert damage.tensors == ["w"]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_every_truncation_of_a_dcp_checkpoint_is_an_error(name: str, tmp_path: Path) -> None:
    torch_dcp.save({"w": torch.rand(10), "n": 3}, checkpoint_id=tmp_path / "step")
    path = tmp_path / "step" / name
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(varve.Error):
            varve.torch.read(tmp_path / "step")


def test_rank_local_checkpoints_are_whole_only_with_every_rank(tmp_path: Path) -> None:
    """DCP loads such a checkpoint in one process, fills rank 0's part and reports success."""
    for name in ("__0_0.distcp", ".metadata"):
        source = GOLDEN / "2.14.1" / "single" / name
        target = tmp_path / (name if name != ".metadata" else "__1.metadata")
        target.write_bytes(source.read_bytes())
    with pytest.raises(varve.PreconditionError, match=r"__0\.metadata"):
        varve.torch.read(tmp_path)
