"""What FileSystemReader says of a checkpoint, beside what PyTorch's says."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from same import same
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

import varve
import varve.torch
import varve.torch.dcp as dcp

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "dcp"
CASES = [
    pytest.param(path.parent, id=f"{path.parent.parent.name} {path.parent.name}")
    for path in sorted(GOLDEN.glob("*/*/.metadata"))
    if "newdtypes" not in str(path)
]


def described(metadata: Any) -> dict[str, Any]:
    """Names, sizes, dtypes and chunks, whatever the order; empty chunks at one place once."""
    return {
        fqn: "bytes"
        if isinstance(entry, BytesStorageMetadata)
        else (
            entry.properties.dtype,
            tuple(entry.size),
            sorted({(tuple(c.offsets), tuple(c.sizes)) for c in entry.chunks}),
        )
        for fqn, entry in metadata.state_dict_metadata.items()
    }


class AnyPython(pickle.Unpickler):
    """Finds paths that Python 3.13 has pickled; torch's reader does not, in other versions."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module.removesuffix("._local"), name)


def unpickled(path: Path) -> Any:
    return AnyPython(io.BytesIO((path / ".metadata").read_bytes())).load()


@pytest.mark.parametrize("path", CASES)
def test_metadata_is_what_torch_unpickles(path: Path) -> None:
    ours = dcp.FileSystemReader(path).read_metadata()
    theirs = unpickled(path)
    assert described(ours) == described(theirs)
    if path.name == "single":  # Of several ranks, the order is that of who was to write what.
        assert list(ours.state_dict_metadata) == list(theirs.state_dict_metadata)
    assert ours.planner_data == theirs.planner_data
    for index, info in theirs.storage_data.items():
        found = ours.storage_data[index]
        assert (found.relative_path, found.offset) == (info.relative_path, info.offset)
        assert found.length == info.length
    assert ours.storage_meta.save_id == theirs.storage_meta.save_id


def test_a_save_and_a_load_have_ids(tmp_path: Path) -> None:
    for module in (dcp, torch_dcp):
        path = tmp_path / module.__name__
        writer = module.FileSystemWriter(path)
        module.save({"w": torch.ones(4)}, storage_writer=writer)
        reader = dcp.FileSystemReader(path)
        meta = reader.read_metadata().storage_meta
        assert meta.save_id == writer.save_id and meta.load_id == reader.load_id
        assert meta.checkpoint_id == str(path)
        reader.reset()
        assert reader.read_metadata().storage_meta.load_id != meta.load_id


def test_a_tensor_that_its_chunks_do_not_cover_is_one_chunk(tmp_path: Path) -> None:
    path = tmp_path / "step"
    for rank in range(2):
        writer = dcp.FileSystemWriter(path)
        planner = _Half(rank)
        writer.set_up_storage_writer(True, rank=rank, use_collectives=False)
        planner.set_up_planner({"w": torch.arange(8.0).reshape(4, 2)})
        plans, metadata = planner.create_global_plan(
            [writer.prepare_local_plan(planner.create_local_plan())]
        )
        (plan,) = writer.prepare_global_plan(plans)
        results = writer.write_data(planner.finish_plan(plan), planner).value()
        writer.finish(metadata, [results])
    metadata = dcp.FileSystemReader(path).read_metadata()
    assert [tuple(c.sizes) for c in metadata.state_dict_metadata["w"].chunks] == [(2, 2), (2, 2)]
    loaded = {"w": torch.zeros(4, 2)}
    dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded["w"], torch.arange(8.0).reshape(4, 2))
    (path / "__1.metadata").unlink()
    metadata = dcp.FileSystemReader(path).read_metadata()
    assert [tuple(c.sizes) for c in metadata.state_dict_metadata["w"].chunks] == [(4, 2)]


class _Half(torch_dcp.DefaultSavePlanner):
    """Saves half the rows of a tensor, as a rank of two that does not know of the other."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        (item,) = plan.items
        chunk = type(item.tensor_data.chunk)(torch.Size([2 * self.rank, 0]), torch.Size([2, 2]))
        data = type(item.tensor_data)(chunk, item.tensor_data.properties, item.tensor_data.size)
        index = type(item.index)("w", chunk.offsets)
        shard = type(item.type)["SHARD"]
        self.plan = type(plan)([type(item)(index, shard, tensor_data=data)], None, self.mappings)
        return self.plan

    def lookup_object(self, index: Any) -> Any:
        return self.state_dict["w"][2 * self.rank : 2 * self.rank + 2]


def test_a_compressed_checkpoint_needs_no_python_package(tmp_path: Path) -> None:
    """Torch's reader needs zstandard or pyzstd for it."""
    extension = pytest.importorskip("torch.distributed.checkpoint._extension")
    path = tmp_path / "step"
    writer = dcp.FileSystemWriter(path, _extensions=[_zstandard(extension)])
    saved = {"w": torch.arange(100_000.0), "name": {"a": (1, 2)}}
    dcp.save(dict(saved), storage_writer=writer)
    assert (path / "__0_0.distcp").read_bytes().startswith(ZSTD_MAGIC)
    assert varve.verify(path) == []
    loaded = {"w": torch.zeros(100_000), "name": {"a": None}}
    dcp.load(loaded, checkpoint_id=path)
    assert same(loaded, saved)


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def _zstandard(extension: Any) -> Any:
    """Makes zstd frames in which nothing is compressed, which takes no library."""

    class Frame(io.BytesIO):
        def __init__(self, output: Any) -> None:
            super().__init__()
            self.output = output

        def close(self) -> None:
            content = self.getvalue()
            # One segment, its size in four bytes; then blocks of the kind "raw".
            self.output.write(ZSTD_MAGIC + b"\xa0" + len(content).to_bytes(4, "little"))
            for at in range(0, len(content), 1 << 16):
                block = content[at : at + (1 << 16)]
                last = at + len(block) == len(content)
                self.output.write((len(block) << 3 | last).to_bytes(3, "little") + block)

    class Stored(extension.StreamTransformExtension):  # type: ignore[misc]
        @staticmethod
        def registry_name() -> str:
            return "stream.zstd"

        @staticmethod
        def from_descriptor(version: str) -> Any:
            return Stored()

        def get_descriptor(self) -> str:
            return "stream.zstd/1"

        def transform_to(self, output: Any) -> Any:
            return Frame(output)

        def transform_from(self, input: Any) -> Any:
            raise NotImplementedError

    return Stored()


def test_metadata_of_a_native_checkpoint_has_the_paths_of_its_entries(tmp_path: Path) -> None:
    varve.torch.save({"m": {"l": [torch.ones(2), {"x": 1}]}, 3: torch.ones(1)}, tmp_path / "step")
    metadata = dcp.FileSystemReader(tmp_path / "step").read_metadata()
    assert metadata.planner_data == {
        "m.l.0": ("m", "l", 0),
        "m.l.1.x": ("m", "l", 1, "x"),
        "3": ("3",),
    }


def test_what_a_reader_is_told_of_metadata_made_elsewhere_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save({"w": torch.arange(6.0), "n": 3}, checkpoint_id=path)
    reader = dcp.FileSystemReader(path)
    metadata = torch_dcp.FileSystemReader(path).read_metadata()
    loaded: dict[str, Any] = {"w": torch.zeros(6), "n": 0}
    planner = torch_dcp.DefaultLoadPlanner()
    planner.set_up_planner(loaded, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plans = reader.prepare_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    for _ in range(2):  # And a plan may be carried out again.
        loaded["w"].zero_()
        reader.read_data(planner.finish_plan(plans[0]), planner).wait()
        assert torch.equal(loaded["w"], torch.arange(6.0)) and loaded["n"] == 3
