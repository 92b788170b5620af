"""Damage of every kind is reported by verify, and no load returns damaged values."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import make_newer

import varve
from varve import _core, _engine
from varve._arrays import NumpyArrays

FLIPS = 4000
BLOCK = 4096


def state(seed: int = 1) -> dict[str, Any]:
    random_bits = np.random.default_rng(seed)
    return {
        "big": random_bits.integers(0, 256, (3, 3000), np.uint8),
        "layers": [{"w": random_bits.random((17, 31)), "b": random_bits.random(5)}],
        "wide": random_bits.random((4, 600)).astype(np.float32).T,
        "step": seed,
        "name": "run" * 40,
        "nested": {"values": [1, 2.5, None], "more": (1, b"bytes")},
    }


def blank() -> dict[str, Any]:
    return {
        "big": np.zeros((3, 3000), np.uint8),
        "layers": [{"w": np.zeros((17, 31)), "b": np.zeros(5)}],
        "wide": np.zeros((600, 4), np.float32),
        "step": None,
        "name": None,
        "nested": {"values": None, "more": None},
    }


def save(path: Path, seed: int = 1) -> None:
    small_blocks = _core.SaveOptions(block_bytes=BLOCK)
    _engine.save(_engine.Content(state(seed)), path, NumpyArrays(), None, small_blocks)


@pytest.fixture
def checkpoint() -> Iterator[Path]:
    """A small checkpoint in memory where there is such a place: nothing here tests the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as parent:
        save(Path(parent) / "step-1")
        yield Path(parent) / "step-1"


def data_file(checkpoint: Path) -> Path:
    (file,) = checkpoint.glob("*.safetensors")
    return file


def stored(file: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where the data begins, and the stretch of the file that each entry occupies."""
    content = file.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    del header["__metadata__"]
    begin = 8 + size
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    return begin, {name: (begin + low, begin + high) for name, (low, high) in spans.items()}


def problems(checkpoint: Path) -> str:
    """All that verify says; empty when it finds nothing."""
    try:
        return "".join(map(repr, varve.verify(checkpoint)))
    except varve.Error as error:
        return str(error)


def block_within(name: str, file: Path) -> int:
    """The begin of a block of the file that holds nothing but part of one tensor."""
    low, high = stored(file)[1][name]
    begin = -(-low // BLOCK) * BLOCK
    assert begin + BLOCK <= high
    return begin


def flip(file: Path, position: int, bit: int = 1) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ bit]))


def load_error(checkpoint: Path, target: dict[str, Any] | None = None) -> str:
    """What load and read say; empty when one of them succeeds."""
    try:
        varve.load(target or blank(), checkpoint)
    except varve.Error as error:
        message = str(error)
    else:
        return ""
    try:
        varve.read(checkpoint)
    except varve.Error:
        return message
    return ""


def test_an_intact_checkpoint_verifies_and_loads(checkpoint: Path) -> None:
    assert varve.verify(checkpoint) == []
    target = blank()
    varve.load(target, checkpoint)
    assert repr(target) == repr(state())


def places(checkpoint: Path) -> list[tuple[Path, int, int]]:
    """The regions over which flips are spread evenly: the manifest, the record, the header, the data."""
    data = data_file(checkpoint)
    begin, _ = stored(data)
    manifest, record = checkpoint / "manifest.bin", checkpoint / "varve.json"
    return [
        (manifest, 0, manifest.stat().st_size),
        (record, 0, record.stat().st_size),
        (data, 0, begin),
        (data, begin, data.stat().st_size),
    ]


@pytest.mark.slow
def test_every_one_of_many_bit_flips_is_reported_by_verify_and_by_load(checkpoint: Path) -> None:
    choose = random.Random(20240229)
    regions = places(checkpoint)
    begin, spans = stored(data_file(checkpoint))
    for turn in range(FLIPS):
        file, low, high = regions[turn % len(regions)]
        position, bit = choose.randrange(low, high), 1 << choose.randrange(8)
        flip(file, position, bit)
        found, error = problems(checkpoint), load_error(checkpoint)
        what = f"bit {bit} of byte {position} of {file.name}"
        assert found, f"verify missed {what}"
        assert file.name in found, f"{what}: {found}"
        assert error, f"load missed {what}"
        assert file.name in error, f"{what}: {error}"
        for name, (first, last) in spans.items():
            if file.suffix == ".safetensors" and first <= position < last:
                if not name.startswith("__varve__"):
                    assert repr(name) in found, f"{what}: {found}"
                    # Values are read first: a block with some of them fails before any tensor.
                    assert f'"{name}"' in error or "plain values" in error, f"{what}: {error}"
                assert "checksum" in error
        flip(file, position, bit)
    assert problems(checkpoint) == ""
    assert begin % 4096 == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "manifest.bin", "varve.json"])
def test_every_truncation_is_reported_by_verify_and_by_load(name: str, checkpoint: Path) -> None:
    """Of three blocks, so that every length can be tried."""
    few = {"w": np.arange(1500, dtype=np.float32), "step": 3, "name": "run" * 40}
    path = checkpoint.with_name("few")
    small_blocks = _core.SaveOptions(block_bytes=BLOCK)
    _engine.save(_engine.Content(few), path, NumpyArrays(), None, small_blocks)
    file = data_file(path) if name == "data" else path / name
    for length in reversed(range(file.stat().st_size)):
        os.truncate(file, length)
        found, error = problems(path), load_error(path, few)
        assert file.name in found, f"cut at {length}: {found!r}"
        assert file.name in error, f"cut at {length}: {error!r}"


@pytest.mark.parametrize("name", ["data", "manifest.bin", "varve.json"])
@pytest.mark.parametrize("extra", [b"\0", b"\n", b" " * 512, b"x" * 5000])
def test_bytes_appended_to_a_file_are_reported_by_verify_and_by_load(
    name: str, extra: bytes, checkpoint: Path
) -> None:
    file = data_file(checkpoint) if name == "data" else checkpoint / name
    with file.open("ab") as opened:
        opened.write(extra)
    assert file.name in problems(checkpoint)
    assert file.name in load_error(checkpoint)


@pytest.mark.parametrize("name", ["data", "manifest.bin", "varve.json"])
def test_a_missing_file_is_reported_by_its_name(name: str, checkpoint: Path) -> None:
    file = data_file(checkpoint) if name == "data" else checkpoint / name
    file.unlink()
    assert file.name in problems(checkpoint)
    assert file.name in load_error(checkpoint)
    (entry,) = varve.list_checkpoints(checkpoint.parent)
    assert entry.state == "damaged"
    assert file.name in entry.detail


@pytest.mark.parametrize("name", ["data", "manifest.bin", "varve.json"])
def test_a_file_that_became_a_directory_is_an_error(name: str, checkpoint: Path) -> None:
    file = data_file(checkpoint) if name == "data" else checkpoint / name
    file.unlink()
    file.mkdir()
    assert file.name in problems(checkpoint)
    assert file.name in load_error(checkpoint)


@pytest.mark.parametrize(
    "names", [["data"], ["manifest.bin"], ["varve.json"], ["data", "varve.json"]]
)
def test_files_of_another_checkpoint_are_not_taken_for_its_own(
    names: list[str], checkpoint: Path
) -> None:
    other = checkpoint.parent / "step-2"
    save(other, seed=2)
    for name in names:
        source = data_file(other) if name == "data" else other / name
        shutil.copy(source, checkpoint / source.name)
    assert problems(checkpoint)
    assert load_error(checkpoint)
    assert problems(other) == ""


def test_damage_found_while_loading_says_which_targets_are_partly_written(
    checkpoint: Path,
) -> None:
    position = block_within("big", data_file(checkpoint))
    flip(data_file(checkpoint), position)
    target = blank()
    with pytest.raises(varve.CorruptCheckpointError) as caught:
        varve.load(target, checkpoint)
    text = str(caught.value)
    assert f"[{position}, {position + BLOCK})" in text
    assert '"big"' in text
    assert "the destination is partly written" in text or "no target was written to" in text
    assert (target["step"], target["name"]) == (None, None)


def test_undamaged_tensors_can_still_be_read(checkpoint: Path) -> None:
    flip(data_file(checkpoint), block_within("big", data_file(checkpoint)))
    assert np.array_equal(varve.read(checkpoint, "wide")["wide"], state()["wide"])
    assert varve.read(checkpoint, "step") == {"step": 1}
    with pytest.raises(varve.CorruptCheckpointError, match='"big"'):
        varve.read(checkpoint, "big")


def test_a_newer_format_is_refused_with_the_advice_to_upgrade(checkpoint: Path) -> None:
    make_newer(checkpoint)
    for call in (lambda: varve.load(blank(), checkpoint), lambda: varve.verify(checkpoint)):
        with pytest.raises(varve.UnsupportedError, match=r"format version 6.*use a newer Varve"):
            call()


@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b"not json", b'{"varve_format": 1}'])
def test_a_commit_record_that_is_no_record_is_an_error(record: bytes, checkpoint: Path) -> None:
    (checkpoint / "varve.json").write_bytes(record)
    assert "varve.json" in problems(checkpoint)
    assert "varve.json" in load_error(checkpoint)


def test_a_directory_without_any_file_of_ours_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    with pytest.raises(varve.CheckpointNotFoundError, match="is not a checkpoint"):
        varve.read(tmp_path)
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.verify(tmp_path)
