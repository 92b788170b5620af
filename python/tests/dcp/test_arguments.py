"""Each argument does what it says, or is refused; and the functions have torch's signatures."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint import filesystem

import varve
import varve.torch
import varve.torch.dcp as dcp
from varve.torch.dcp._compat import fsspec_storage

STATE = {"a": torch.arange(3000.0), "b": torch.arange(2000.0), "c": torch.ones(10), "n": 5}


def assert_loads(path: Path) -> None:
    assert varve.verify(path) == []
    for module in (dcp, torch_dcp):
        loaded = {"a": torch.zeros(3000), "b": torch.zeros(2000), "c": torch.zeros(10), "n": 0}
        module.load(loaded, checkpoint_id=path)
        assert all(torch.equal(loaded[name], STATE[name]) for name in "abc") and loaded["n"] == 5


def data_files(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(".distcp"))


@pytest.mark.parametrize(
    "name", ["save", "load", "async_save", "save_state_dict", "load_state_dict"]
)
def test_functions_have_torchs_signature(name: str) -> None:
    ours = inspect.signature(getattr(dcp, name)).parameters.values()
    theirs = inspect.signature(getattr(torch_dcp, name)).parameters.values()
    assert {(p.name, p.kind) for p in theirs} <= {(p.name, p.kind) for p in ours}
    defaults = {p.name: p.default for p in ours}
    assert all(defaults[p.name] == p.default for p in theirs)


@pytest.mark.parametrize("name", ["FileSystemWriter", "FileSystemReader"])
def test_classes_have_torchs_signature(name: str) -> None:
    ours = inspect.signature(getattr(dcp, name)).parameters
    theirs = inspect.signature(getattr(torch_dcp, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[key].default == p.default for key, p in theirs.items())


@pytest.mark.parametrize(("threads", "files"), [(1, 1), (2, 2), (3, 3), (16, 4)])
def test_threads_write_a_file_each_of_about_the_same_size(
    threads: int, files: int, tmp_path: Path
) -> None:
    path = tmp_path / "step"
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(path, thread_count=threads))
    assert data_files(path) == [f"__0_{i}.distcp" for i in range(files)]
    assert_loads(path)


def test_a_file_for_each_item(tmp_path: Path) -> None:
    path = tmp_path / "step"
    writer = dcp.FileSystemWriter(path, single_file_per_rank=False, thread_count=2)
    dcp.save(dict(STATE), storage_writer=writer)
    assert data_files(path) == [f"__0_{i}.distcp" for i in range(4)]
    assert_loads(path)


def test_an_empty_state_is_a_checkpoint(tmp_path: Path) -> None:
    dcp.save({}, checkpoint_id=tmp_path / "step")
    dcp.load({}, checkpoint_id=tmp_path / "step")
    torch_dcp.load({}, checkpoint_id=tmp_path / "step")


def test_save_returns_torchs_metadata(tmp_path: Path) -> None:
    path = tmp_path / "step"
    writer = dcp.FileSystemWriter(path)
    metadata = dcp.save(dict(STATE), storage_writer=writer)
    assert isinstance(metadata, torch_dcp.Metadata)
    stored = pickle.loads((path / ".metadata").read_bytes())
    assert metadata.version == stored.version == "1.0.0"
    assert metadata.storage_meta is not None
    assert metadata.storage_meta.checkpoint_id == str(path) and metadata.storage_meta.save_id
    metadata.storage_meta = stored.storage_meta
    assert stored == metadata


def test_the_storage_may_be_given_by_position(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="storage_writer"):
        dcp.save(dict(STATE), dcp.FileSystemWriter(tmp_path / "step"))
    assert_loads(tmp_path / "step")
    loaded = {"n": 0}
    with pytest.warns(UserWarning, match="storage_reader"):
        dcp.load(loaded, dcp.FileSystemReader(tmp_path / "step"))
    assert loaded["n"] == 5
    with pytest.raises(TypeError, match="two values"):
        dcp.load(loaded, dcp.FileSystemReader(tmp_path), storage_reader=None)


def test_deprecated_functions_work_and_say_so(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="use save"):
        dcp.save_state_dict(dict(STATE), dcp.FileSystemWriter(tmp_path / "step"), no_dist=True)
    loaded = {"n": 0}
    with pytest.warns(FutureWarning, match="use load"):
        dcp.load_state_dict(loaded, dcp.FileSystemReader(tmp_path / "step"), no_dist=True)
    assert loaded["n"] == 5


def test_torchs_own_storages_and_planners_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(
        dict(STATE),
        storage_writer=torch_dcp.FileSystemWriter(path),
        planner=torch_dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True),
    )
    loaded = {"n": 0, "not there": 1}
    dcp.load(
        loaded,
        storage_reader=torch_dcp.FileSystemReader(path),
        planner=torch_dcp.DefaultLoadPlanner(allow_partial_load=True),
    )
    assert loaded == {"n": 5, "not there": 1}


def test_other_ids_than_paths_go_to_the_storage_that_torch_finds(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    dcp.save(dict(STATE), checkpoint_id=f"file://{tmp_path}/step")
    loaded = {"n": 0}
    dcp.load(loaded, checkpoint_id=f"file://{tmp_path}/step")
    assert loaded["n"] == 5
    for call in (dcp.save, dcp.load):
        with pytest.raises(RuntimeError, match="checkpoint_id"):
            call({})


class OlderPlanner(torch_dcp.DefaultSavePlanner):
    """Has the interface of a torch that told planners nothing of the storage."""

    def set_up_planner(self, states: Any, coordinates: bool) -> None:  # type: ignore[override]
        super().set_up_planner(states, is_coordinator=coordinates)


def test_a_planner_for_an_older_torch_is_set_up_as_torch_does(tmp_path: Path) -> None:
    dcp.save(dict(STATE), checkpoint_id=tmp_path / "step", planner=OlderPlanner())
    assert_loads(tmp_path / "step")


def test_a_writer_is_used_again_under_another_name(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path / "first")
    dcp.save(dict(STATE), storage_writer=writer)
    first = writer.save_id
    dcp.save(dict(STATE), storage_writer=writer, checkpoint_id=tmp_path / "second")
    assert writer.save_id != first and writer.checkpoint_id == tmp_path / "second"
    for name in ("first", "second"):
        assert_loads(tmp_path / name)
    reader = dcp.FileSystemReader(tmp_path / "first")
    loaded = {"n": 0}
    dcp.load(loaded, storage_reader=reader, checkpoint_id=tmp_path / "second")
    assert loaded["n"] == 5 and reader.checkpoint_id == tmp_path / "second"


@pytest.mark.parametrize("call", [dcp.save, dcp.load, dcp.async_save])
def test_a_scheme_that_no_storage_serves_is_refused_with_those_that_are(call: Any) -> None:
    pytest.importorskip("fsspec", reason="no fsspec: it names the schemes")
    with pytest.raises(varve.InvalidArgumentError) as caught:
        call({"a": torch.zeros(1)}, checkpoint_id="nosuch://bucket/x")
    assert 'scheme "nosuch://"' in str(caught.value) and "file://" in str(caught.value)
    assert " s3," in str(caught.value) and " memory," in str(caught.value)


def test_a_scheme_that_fsspec_serves_is_torchs() -> None:
    pytest.importorskip("fsspec", reason="no fsspec: other schemes are refused")
    dcp.save({"n": 5}, checkpoint_id="memory://varve-test/step")
    loaded = {"n": 0}
    dcp.load(loaded, checkpoint_id="memory://varve-test/step")
    assert loaded["n"] == 5


def test_torchs_public_storage_over_fsspec_is_taken_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch 2.15 has made the module public, and warns of the old name."""
    public: Any = types.ModuleType("torch.distributed.checkpoint.fsspec_filesystem")
    public.FsspecReader, public.FsspecWriter = object(), object()
    monkeypatch.setitem(sys.modules, public.__name__, public)
    assert fsspec_storage(reader=True) is public.FsspecReader
    assert fsspec_storage(reader=False) is public.FsspecWriter


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"thread_count": 0}, "thread_count=0"),
    ({"thread_count": 1.5}, "thread_count=1.5"),
    ({"per_thread_copy_ahead": -1}, "per_thread_copy_ahead=-1"),
    ({"per_thread_copy_ahead": 1.5}, "per_thread_copy_ahead=1.5"),
    ({"path": "hdfs://bucket/x"}, "hdfs://bucket/x"),
]
if hasattr(filesystem, "SerializationFormat"):
    REFUSED.append(
        ({"serialization_format": filesystem.SerializationFormat.SAFETENSORS}, "SAFETENSORS")
    )


@pytest.mark.parametrize(("arguments", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_nothing_can_be_made_of_is_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        dcp.FileSystemWriter(**{"path": "x", **arguments})


def test_leaving_files_unsynced_is_not_on_offer() -> None:
    with pytest.warns(UserWarning, match="durable in any case"):
        dcp.FileSystemWriter("x", sync_files=False)


def test_extensions_transform_items_on_the_way(tmp_path: Path) -> None:
    extension = pytest.importorskip("torch.distributed.checkpoint._extension")
    flip, registry = _flip(extension)
    path = tmp_path / "step"
    dcp.save(dict(STATE), storage_writer=dcp.FileSystemWriter(path, _extensions=[flip()]))
    content = (path / "__0_0.distcp").read_bytes()
    assert content.startswith(bytes(byte ^ 0xFF for byte in b"PK\x03\x04"))
    for reader in (dcp.FileSystemReader, torch_dcp.FileSystemReader):
        loaded = {"a": torch.zeros(3000), "n": 0}
        dcp.load(loaded, storage_reader=reader(path, _extension_registry=registry))
        assert torch.equal(loaded["a"], STATE["a"]) and loaded["n"] == 5
    with pytest.raises(dcp.CheckpointError, match="flip"):
        dcp.load({"n": 0}, checkpoint_id=path)


def _flip(extension: Any) -> tuple[Any, Any]:
    """An extension that flips every bit, and a registry that knows it."""

    class Flipping:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, data: Any) -> int:
            return int(self.stream.write(bytes(byte ^ 0xFF for byte in bytes(data))))

        def read(self, size: int = -1) -> bytes:
            return bytes(byte ^ 0xFF for byte in self.stream.read(size))

        def seekable(self) -> bool:
            return False

        def flush(self) -> None:
            pass

        def close(self) -> None:
            pass

    class Flip(extension.StreamTransformExtension):  # type: ignore[misc]
        @staticmethod
        def registry_name() -> str:
            return "stream.flip"

        @staticmethod
        def from_descriptor(version: str) -> Any:
            return Flip()

        def get_descriptor(self) -> str:
            return "stream.flip/1"

        def transform_to(self, output: Any) -> Any:
            return Flipping(output)

        def transform_from(self, input: Any) -> Any:
            return Flipping(input)

    registry = extension.ExtensionRegistry()
    registry.register(Flip)
    return Flip, registry
