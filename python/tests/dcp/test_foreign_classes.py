"""Indexes that other software writes: classes of its own with the fields of torch's."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from same import same
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

import varve
import varve.torch

STATE: dict[str, Any] = {
    "w": torch.arange(12.0).reshape(3, 4),
    "n": {"step": 3, "b": torch.ones(2, dtype=torch.bfloat16)},
}


@dataclasses.dataclass
class _StorageInfo:
    relative_path: str
    offset: int
    length: int


@dataclasses.dataclass
class _StorageInfoWithMore:
    relative_path: str
    offset: int
    length: int
    extension: Any = None
    transform_descriptors: Any = None


@dataclasses.dataclass
class _SlottedStorageInfo:
    __slots__ = ("length", "offset", "relative_path")
    relative_path: str
    offset: int
    length: int


class MCoreMetadata(Metadata):
    """Megatron's, of version 0.15; it adds `mcore_data`, and `all_local_plans` where plans are kept."""


class OtherMetadataIndex(MetadataIndex):
    """A key of its own."""


class OtherBytes(BytesStorageMetadata):
    """A value of its own."""


class OtherTensor(TensorStorageMetadata):
    """A tensor of its own."""


class OtherChunk(ChunkStorageMetadata):
    """A chunk of its own."""


@pytest.fixture
def elsewhere() -> Iterator[types.ModuleType]:
    """Makes a module that does not exist any more when a checkpoint is read."""
    name = "elsewhere_filesystem"
    module = types.ModuleType(name)
    sys.modules[name] = module
    yield module
    sys.modules.pop(name, None)


def move(module: types.ModuleType, kind: Any) -> Any:
    """Makes the class one of that module, for pickles."""
    kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
    setattr(module, kind.__name__, kind)
    return kind


@pytest.fixture
def step(tmp_path: Path) -> Path:
    torch_dcp.save(dict(STATE), checkpoint_id=tmp_path / "step")
    return tmp_path / "step"


def rewrite(step: Path, change: Any) -> None:
    index = step / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    metadata = change(metadata) or metadata
    index.write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("kind", [_StorageInfo, _StorageInfoWithMore, _SlottedStorageInfo])
def test_where_the_bytes_lie_may_be_said_by_another_class(
    kind: Any, step: Path, elsewhere: types.ModuleType
) -> None:
    moved = move(elsewhere, kind)

    def change(metadata: Any) -> None:
        metadata.storage_data = {
            key: moved(stored.relative_path, stored.offset, stored.length)
            for key, stored in metadata.storage_data.items()
        }

    rewrite(step, change)
    del sys.modules[elsewhere.__name__]
    assert_it_is_the_state(step)


def assert_it_is_the_state(step: Path) -> None:
    assert same(varve.torch.read(step), STATE)
    assert varve.verify(step) == []
    loaded = {"w": torch.zeros(3, 4), "n": {"step": 0, "b": torch.zeros(2, dtype=torch.bfloat16)}}
    varve.torch.load(loaded, step)
    assert same(loaded, STATE)
    varve.convert(step, step.parent / "native", to="varve")
    assert same(varve.torch.read(step.parent / "native"), STATE)


def test_the_index_may_be_megatrons(step: Path, elsewhere: types.ModuleType) -> None:
    """With the plans of the ranks in it, which share objects with the rest."""
    moved = move(elsewhere, MCoreMetadata)
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(STATE), is_coordinator=True)
    plan = planner.create_local_plan()

    def change(metadata: Any) -> Any:
        made = moved(**{f.name: getattr(metadata, f.name) for f in dataclasses.fields(metadata)})
        made.mcore_data = {"w": {"nd_reformulated_orig_global_shape": (3, 4)}}
        made.all_local_plans = [plan, plan]
        shared = next(key for key in metadata.storage_data if key.fqn == "w")
        made.first = [shared, metadata.storage_data[shared]]
        return made

    rewrite(step, change)
    del sys.modules[elsewhere.__name__]
    assert_it_is_the_state(step)


def test_every_part_may_be_of_another_class(step: Path, elsewhere: types.ModuleType) -> None:
    kinds = {
        MetadataIndex: move(elsewhere, OtherMetadataIndex),
        BytesStorageMetadata: move(elsewhere, OtherBytes),
        TensorStorageMetadata: move(elsewhere, OtherTensor),
        ChunkStorageMetadata: move(elsewhere, OtherChunk),
    }

    def other(value: Any) -> Any:
        made = object.__new__(kinds[type(value)])
        made.__dict__.update(vars(value))
        return made

    def change(metadata: Any) -> None:
        metadata.storage_data = {other(k): v for k, v in metadata.storage_data.items()}
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                entry.chunks = [other(chunk) for chunk in entry.chunks]
            metadata.state_dict_metadata[name] = other(entry)

    rewrite(step, change)
    del sys.modules[elsewhere.__name__]
    assert_it_is_the_state(step)


def test_tensors_may_be_stored_without_archives(step: Path, elsewhere: types.ModuleType) -> None:
    """As DLRover's flash checkpoints have them: bytes of elements, one tensor behind the other."""
    moved = move(elsewhere, _StorageInfo)

    def change(metadata: Any) -> None:
        out, places = bytearray(), {}
        tensors = {"w": STATE["w"], "n.b": STATE["n"]["b"]}
        for key, stored in metadata.storage_data.items():
            if key.fqn in tensors:
                content = bytes(tensors[key.fqn].flatten().view(torch.uint8).tolist())
            else:
                content = (step / stored.relative_path).read_bytes()[stored.offset :][
                    : stored.length
                ]
            places[key] = moved("rank_0.bin", len(out), len(content))
            out += content
        (step / "rank_0.bin").write_bytes(out)
        metadata.storage_data = places

    rewrite(step, change)
    for file in step.glob("*.distcp"):
        file.unlink()
    del sys.modules[elsewhere.__name__]
    assert_it_is_the_state(step)
