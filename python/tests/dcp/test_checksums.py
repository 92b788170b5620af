"""What the drop-in writes carries Varve's checksums, and every load by Varve compares them."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

import varve
import varve.torch
import varve.torch.dcp as dcp

COMMAND = Path(sys.executable).with_name("varve")


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "model": {
            "large": torch.rand(300, 1000, generator=generator),
            "turned": torch.rand(40, 50, generator=generator).T,
            "small": torch.arange(7),
            "half": torch.rand(9, generator=generator).to(torch.bfloat16),
        },
        "step": 12,
        "name": "run",
    }


def saved(path: Path, **options: Any) -> Path:
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, **options))
    return path


def verified(path: Path) -> tuple[list[Any], list[str]]:
    """Damages, and what verify remarks."""
    run = subprocess.run(
        [COMMAND, "verify", "--json", path], capture_output=True, text=True, check=False
    )
    found = json.loads(run.stdout)
    return found["damages"], found["notes"]


def zeros() -> dict[str, Any]:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.zeros_like, state())


@pytest.mark.parametrize("options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}])
def test_every_data_byte_is_covered(tmp_path: Path, options: dict[str, Any]) -> None:
    path = saved(tmp_path / "step", **options)
    assert verified(path) == ([], [])


@pytest.mark.parametrize("open_it", ["dcp", "torch", "read"])
def test_a_flipped_bit_of_a_tensor_is_found(tmp_path: Path, open_it: str) -> None:
    path = saved(tmp_path / "step")
    file = path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    payload = state()["model"]["large"].numpy().tobytes()
    at = data.index(payload) + random.Random(2).randrange(len(payload))
    data[at] ^= 0x10
    file.write_bytes(data)
    with pytest.raises((varve.CorruptCheckpointError, dcp.CheckpointError), match="checksum"):
        if open_it == "dcp":
            dcp.load(zeros(), checkpoint_id=path)
        elif open_it == "torch":
            varve.torch.load(zeros(), path)
        else:
            varve.torch.read(path)
    assert [damage.file for damage in varve.verify(path)] == ["__0_0.distcp"]


def test_a_flipped_bit_of_the_index_is_an_error(tmp_path: Path) -> None:
    """Of a flip in the attribute's name no load can know; what it protects is whole then."""
    path = saved(tmp_path / "step")
    index = (path / ".metadata").read_bytes()
    end = index.index(b"varve_checksums") - 5  # Its opcode and length.
    wanted = varve.torch.read(path, flat=True)
    chance = random.Random(3)
    for at in [*range(0, end, 19), *(chance.randrange(end, len(index)) for _ in range(60))]:
        damaged = bytearray(index)
        damaged[at] ^= 1 << chance.randrange(8)
        (path / ".metadata").write_bytes(damaged)
        try:
            found = varve.torch.read(path, flat=True)
        except varve.errors.Error:
            continue
        assert at >= end, f"byte {at} of the index is not covered"
        assert found.keys() == wanted.keys()
        for fqn, value in wanted.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[fqn], value)
            else:
                assert found[fqn] == value


def test_torch_loads_and_unpickles_it_all_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path / "step")
    loaded = zeros()
    torch_dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded["model"]["large"], state()["model"]["large"])
    assert torch.equal(loaded["model"]["turned"], state()["model"]["turned"])
    metadata = pickle.loads((path / ".metadata").read_bytes())
    assert isinstance(metadata.varve_checksums, bytes)


def test_the_index_names_whole_items_as_torch_does(tmp_path: Path) -> None:
    path = saved(tmp_path / "step")
    ours = dcp.FileSystemReader(path).read_metadata().storage_data
    torchs = torch_dcp.FileSystemReader(path).read_metadata().storage_data
    assert {key: (info.offset, info.length) for key, info in ours.items()} == {
        key: (info.offset, info.length) for key, info in torchs.items()
    }


def test_uncoordinated_ranks_have_them_too(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(path), use_collectives=False)
    assert (path / "__0.metadata").exists()
    assert verified(path) == ([], [])
    file = path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[data.index(state()["model"]["large"].numpy().tobytes()) + 5] ^= 1
    file.write_bytes(data)
    with pytest.raises(varve.CorruptCheckpointError, match="checksum"):
        varve.torch.load(zeros(), path)


def test_results_that_somebody_made_anew_leave_a_checkpoint_without(tmp_path: Path) -> None:
    class Wrapper(dcp.FileSystemWriter):
        def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
            future: Future[list[WriteResult]] = Future()
            future.set_result(
                [
                    WriteResult(result.index, result.size_in_bytes, result.storage_data)
                    for result in super().write_data(plan, planner).wait()
                ]
            )
            return future

    path = tmp_path / "step"
    dcp.save(state(), storage_writer=Wrapper(path))
    loaded = zeros()
    dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded["model"]["large"], state()["model"]["large"])
    damages, notes = verified(path)
    assert damages == []
    assert any("carry no checksum" in note for note in notes)


def test_what_only_torch_can_read_is_saved_with_a_warning(tmp_path: Path) -> None:
    class Own(torch_dcp.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            metadata.state_dict_metadata = Names(metadata.state_dict_metadata)
            return plans, metadata

    path = tmp_path / "step"
    with pytest.warns(UserWarning, match="only torch can open it"):
        dcp.save(state(), checkpoint_id=path, planner=Own())
    loaded = zeros()
    torch_dcp.load(loaded, checkpoint_id=path)
    assert torch.equal(loaded["model"]["large"], state()["model"]["large"])


class Names(dict[str, Any]):
    """A dict of a planner's own, which no decoder knows."""
