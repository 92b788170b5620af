"""Bugs of PyTorch's DCP that are none here, by the numbers they have there where they have one.

docs/coming-from-dcp.md links to these tests by name.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import varve
import varve.torch
import varve.torch.dcp as dcp


def index_of(path: Path) -> Any:
    return pickle.loads((path / ".metadata").read_bytes())


def put_index(path: Path, metadata: Any) -> None:
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


class FullDisk(torch_dcp.DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "w3":
            raise OSError(28, "No space left on device")
        return super().resolve_data(write_item)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_pytorch_191391_a_writer_thread_that_fails_fails_the_save(
    threads: int, tmp_path: Path
) -> None:
    """DCP loses the exception of all threads but one, and publishes what the others wrote."""
    writer = dcp.FileSystemWriter(tmp_path / "step", thread_count=threads)
    tensors = {f"w{i}": torch.ones(1000) for i in range(8)}
    with pytest.raises(dcp.CheckpointError, match="No space left on device"):
        dcp.save(tensors, storage_writer=writer, planner=FullDisk())
    assert os.listdir(tmp_path) == []


def test_an_item_that_no_rank_has_written_fails_the_save(tmp_path: Path) -> None:
    class Forgetful(dcp.FileSystemWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(metadata, [results[0][:-1]])

    with pytest.raises(dcp.CheckpointError, match=r'"b": no rank has written'):
        dcp.save(
            {"a": torch.ones(2), "b": torch.ones(2)}, storage_writer=Forgetful(tmp_path / "step")
        )
    assert os.listdir(tmp_path) == []


class RunsCode:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def test_pytorch_189308_an_index_cannot_run_code(tmp_path: Path) -> None:
    """Torch's reader unpickles `.metadata`."""
    path, proof = tmp_path / "step", tmp_path / "proof"
    torch_dcp.save({"w": torch.ones(3)}, checkpoint_id=path)
    metadata = index_of(path)
    metadata.planner_data = {"w": ("w",), "x": RunsCode(proof)}
    put_index(path, metadata)
    loaded = {"w": torch.zeros(3)}
    dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded["w"], torch.ones(3))
    assert not proof.exists()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """Torch writes checksums and never compares them."""
    path = tmp_path / "step"
    torch_dcp.save({"w": torch.ones(3000), "name": "value"}, checkpoint_id=path)
    data = bytearray((path / "__0_0.distcp").read_bytes())
    for what, state in (
        (b"\0\0\x80\x3f" * 8, {"w": torch.zeros(3000)}),
        (b"value", {"name": ""}),
    ):
        at = data.index(what)
        data[at + 2] ^= 1
        (path / "__0_0.distcp").write_bytes(data)
        with pytest.raises(dcp.CheckpointError, match=r"__0_0\.distcp"):
            dcp.load(dict(state), checkpoint_id=path)
        data[at + 2] ^= 1


def test_elements_that_no_chunk_has_are_an_error(tmp_path: Path) -> None:
    """Torch leaves them as they were and reports success."""
    path = tmp_path / "step"
    torch_dcp.save({"w": torch.ones(4, 3), "v": torch.ones(2)}, checkpoint_id=path)
    metadata = index_of(path)
    entry = metadata.state_dict_metadata["w"]
    entry.size = torch.Size([6, 3])
    entry.chunks = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 3]))]
    put_index(path, metadata)
    with pytest.raises(dcp.CheckpointError, match=r'"w"'):
        dcp.load({"w": torch.zeros(6, 3)}, checkpoint_id=path)
    loaded = {"v": torch.zeros(2)}
    dcp.load(loaded, checkpoint_id=path)  # What is whole loads.
    assert torch.equal(loaded["v"], torch.ones(2))


def test_a_truncated_file_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save({"a": torch.ones(3000), "b": torch.ones(3000)}, checkpoint_id=path)
    data = (path / "__0_0.distcp").read_bytes()
    (path / "__0_0.distcp").write_bytes(data[:-100])
    loaded = {"a": torch.zeros(3000), "b": torch.zeros(3000)}
    with pytest.raises(dcp.CheckpointError, match=r"__0_0\.distcp"):
        dcp.load(loaded, checkpoint_id=path)
    assert not loaded["a"].any()


def test_a_failed_save_is_caught_by_except_exception(tmp_path: Path) -> None:
    """Torch's CheckpointException is no Exception."""
    try:
        dcp.save({"w3": torch.ones(1)}, checkpoint_id=tmp_path / "step", planner=FullDisk())
    except Exception as error:
        caught = error
    assert isinstance(caught, torch_dcp.CheckpointException)


def test_the_index_names_no_module_that_only_some_pythons_have(tmp_path: Path) -> None:
    """Torch puts a path object into it, whose class moved in Python 3.13 and back in 3.14."""
    path = tmp_path / "step"
    dcp.save({"w": torch.ones(3), "n": {"list": [torch.ones(2), 1]}}, checkpoint_id=path)
    index = (path / ".metadata").read_bytes()
    assert b"pathlib" not in index
    assert max(opcode.proto for opcode, _, _ in pickletools.genops(index)) <= 4


class OneRow:
    """A planner that asks for one row of a tensor."""

    def __init__(self) -> None:
        self.row = torch.zeros(1, 1024)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.row

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass


def test_pytorch_76331_a_part_of_a_chunk_is_read_without_the_rest(tmp_path: Path) -> None:
    """Torch reads each chunk whole that a rank needs something of."""
    path = tmp_path / "step"
    rows = torch.arange(16384.0).repeat_interleave(1024).reshape(16384, 1024)  # 64 MiB.
    dcp.save({"w": rows}, checkpoint_id=path)
    reader, planner = dcp.FileSystemReader(path), OneRow()
    index = MetadataIndex("w", [0, 0], 0)
    size = torch.Size([1, 1024])
    item = ReadItem(LoadItemType.TENSOR, index, size, index, torch.Size([9000, 0]), size)
    reader.set_up_storage_reader(reader.read_metadata(), True)
    before = _bytes_read()
    reader.read_data(LoadPlan([item]), planner).wait()  # type: ignore[arg-type]
    assert torch.equal(planner.row, rows[9000:9001])
    assert _bytes_read() - before < 4 << 20


def _bytes_read() -> int:
    """By system calls of this process."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        pytest.skip("/proc/self/io cannot be read")
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_a_value_is_read_from_a_stream_as_torch_gives_it(tmp_path: Path) -> None:
    """What torch's tests keep in their train state: a stream among the values."""
    stream = io.BytesIO()
    torch.save([1.5, 2.5], stream)
    dcp.save({"losses": stream}, checkpoint_id=tmp_path / "step")
    loaded: dict[str, Any] = {"losses": io.BytesIO()}
    dcp.load(loaded, checkpoint_id=tmp_path / "step")
    loaded["losses"].seek(0)
    assert torch.load(loaded["losses"]) == [1.5, 2.5]


def test_a_checkpoint_says_from_storage_alone_that_it_is_whole(tmp_path: Path) -> None:
    """pytorch 76395: to know it without the job that saved it."""
    path = tmp_path / "step"
    dcp.save({"w": torch.ones(3000)}, checkpoint_id=path)
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state == "whole" and varve.verify(path) == []
    (path / "__0_0.distcp").unlink()
    (entry,) = varve.list_checkpoints(tmp_path)
    assert entry.state != "whole"
