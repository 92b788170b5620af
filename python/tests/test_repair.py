"""The index can be rebuilt from the data files; uncoordinated saves are whole when all are in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch
from varve import _core, _engine
from varve.torch._tensors import TorchArrays

INDEX = ("manifest.bin", "varve.json")


def state() -> dict[str, Any]:
    return {
        "w": np.arange(12.0).reshape(3, 4),
        "l": [np.ones(2, np.int8), {"k": (1, "a"), "empty": {}}],
        "step": 7,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    varve.save(state(), tmp_path / "step-1")
    return tmp_path / "step-1"


@pytest.mark.parametrize("lost", [INDEX[:1], INDEX[1:], INDEX])
@pytest.mark.parametrize("how", ["deleted", "damaged", "empty"])
def test_repair_rebuilds_the_very_bytes_of_the_index(
    lost: tuple[str, ...], how: str, checkpoint: Path
) -> None:
    before = {name: (checkpoint / name).read_bytes() for name in INDEX}
    for name in lost:
        if how == "deleted":
            (checkpoint / name).unlink()
        else:
            damaged = bytes([before[name][0] ^ 1]) + before[name][1:]
            (checkpoint / name).write_bytes(damaged if how == "damaged" else b"")
    with pytest.raises(varve.CorruptCheckpointError, match="varve repair"):
        varve.read(checkpoint)
    assert varve.repair(checkpoint) is True
    assert {name: (checkpoint / name).read_bytes() for name in INDEX} == before
    assert varve.verify(checkpoint) == []
    assert repr(varve.read(checkpoint)) == repr(state())
    assert len(list(checkpoint.iterdir())) == 3


def test_repair_of_the_manifest_leaves_the_record_on_which_readers_hold_locks(
    checkpoint: Path,
) -> None:
    before = (checkpoint / "varve.json").stat().st_ino
    manifest = checkpoint / "manifest.bin"
    good = manifest.read_bytes()
    manifest.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert varve.repair(checkpoint) is True
    assert manifest.read_bytes() == good
    assert (checkpoint / "varve.json").stat().st_ino == before


def test_repair_of_an_intact_checkpoint_changes_nothing(checkpoint: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in checkpoint.iterdir()}
    assert varve.repair(checkpoint) is False
    assert {file: file.stat().st_mtime_ns for file in checkpoint.iterdir()} == before


def test_repair_refuses_to_guess_when_a_data_file_is_damaged(checkpoint: Path) -> None:
    (file,) = checkpoint.glob("*.safetensors")
    content = file.read_bytes()
    (checkpoint / "manifest.bin").unlink()
    for damaged in (content[:100], content[:8] + b"?" + content[9:], content[:-1]):
        file.write_bytes(damaged)
        with pytest.raises(varve.CorruptCheckpointError) as caught:
            varve.repair(checkpoint)
        assert file.name in str(caught.value)
        assert not (checkpoint / "manifest.bin").exists()


def test_repair_of_a_directory_without_data_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError, match="no data files"):
        varve.repair(tmp_path)


def test_data_files_that_were_renamed_are_found_out(checkpoint: Path) -> None:
    (file,) = checkpoint.glob("*.safetensors")
    file.rename(checkpoint / "data-00000-of-00002.safetensors")
    for name in INDEX:
        (checkpoint / name).unlink()
    with pytest.raises(varve.CorruptCheckpointError, match="calls itself"):
        varve.repair(checkpoint)


ROWS = torch.arange(60.0).reshape(12, 5)


def save_alone(path: Path, rank: int, size: int, save_id: bytes, **options: Any) -> None:
    """What rank `rank` of `size` does in an uncoordinated save."""
    low, high = 12 * rank // size, 12 * (rank + 1) // size
    shard: Any = ROWS[low:high].clone()
    shard.global_shape = (12, 5)
    shard.global_offsets = ((low, 0),)
    shard.local_offsets = ((0, 0),)
    shard.local_sizes = ((high - low, 5),)
    mine = {"rows": shard, "same": torch.arange(3), "rng": varve.PerRank(rank), "step": 4}
    made = _core.SaveOptions(coordinate=False, save_id=save_id, **options)
    _engine.save(_engine.Content(mine), path, TorchArrays(), _core.Coordinator(rank, size), made)


def assert_loads(path: Path, size: int) -> None:
    back = varve.torch.read(path)
    assert torch.equal(back["rows"], ROWS)
    assert [back[f"rng/rank{rank}"] for rank in range(size)] == list(range(size))
    target = {"rows": torch.zeros(12, 5), "same": torch.zeros(3, dtype=torch.long)}
    varve.torch.load(target, path, strict=False)
    assert torch.equal(target["rows"], ROWS)
    assert varve.verify(path) == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_an_uncoordinated_save_is_listed_as_incomplete_until_the_last_rank(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "step-3"
    for done, rank in enumerate(order):
        if done:
            missing = sorted(set(order) - set(order[:done]))
            words = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            (entry,) = varve.list_checkpoints(tmp_path)
            assert (entry.name, entry.state) == ("step-3", "incomplete")
            assert (entry.step, entry.world_size) == (3, 3)
            assert words in entry.detail
            for call in (varve.torch.read, varve.verify, varve.repair):
                with pytest.raises(varve.PreconditionError, match=words):
                    call(path)
        save_alone(path, rank, 3, b"a" * 16)
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state == "whole"
    assert_loads(path, 3)
    assert not [name for name in path.iterdir() if name.name.startswith(".")]


def test_repair_seals_an_uncoordinated_save(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    for rank in range(2):
        save_alone(path, rank, 2, b"a" * 16)
    assert varve.repair(path) is True
    assert {file.name for file in path.iterdir()} >= set(INDEX)
    assert varve.repair(path) is False
    assert_loads(path, 2)


def test_files_of_two_attempts_never_make_one_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    save_alone(path, 0, 2, b"a" * 16)
    save_alone(path, 1, 2, b"b" * 16)
    with pytest.raises(varve.PreconditionError, match="incomplete"):
        varve.torch.read(path)
    save_alone(path, 0, 2, b"b" * 16)
    assert_loads(path, 2)


def test_a_complete_uncoordinated_save_is_only_replaced_on_request(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    save_alone(path, 0, 1, b"a" * 16)
    with pytest.raises(varve.CheckpointExistsError, match="overwrite"):
        save_alone(path, 0, 2, b"b" * 16)
    save_alone(path, 0, 2, b"b" * 16, overwrite=True)
    assert_loads(path, 1)
    save_alone(path, 1, 2, b"b" * 16, overwrite=True)
    assert_loads(path, 2)
    assert len(list(path.glob("*.safetensors"))) == 2


def test_a_committed_checkpoint_is_never_replaced_without_coordination(checkpoint: Path) -> None:
    with pytest.raises(varve.CheckpointExistsError, match="committed"):
        save_alone(checkpoint, 0, 1, b"b" * 16, overwrite=True)
    assert repr(varve.read(checkpoint)) == repr(state())


def test_swapped_files_of_two_ranks_are_found_out(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    for rank in range(2):
        save_alone(path, rank, 2, b"a" * 16)
    first, second = sorted(path.glob("*.safetensors"))
    shutil.move(first, path / "tmp")
    shutil.move(second, first)
    shutil.move(path / "tmp", second)
    with pytest.raises(varve.CorruptCheckpointError, match="calls itself"):
        varve.torch.read(path)


def test_a_damaged_file_of_an_uncoordinated_save_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    for rank in range(2):
        save_alone(path, rank, 2, b"a" * 16)
    first = min(path.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1])
    for call in (varve.torch.read, varve.repair):
        with pytest.raises(varve.CorruptCheckpointError, match=first.name):
            call(path)
    assert first.name in repr(varve.verify(path))
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state == "damaged"
