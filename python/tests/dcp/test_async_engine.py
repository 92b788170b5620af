"""async_save by the engine, where it saves what torch's default planner and the writer would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dcp_async_jobs as jobs
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from ranks import run_ranks
from torch.distributed.tensor import Shard

import varve
import varve.torch
import varve.torch.dcp as dcp
from varve.torch.dcp import _executors


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_future_has_the_metadata_that_torchs_has(tmp_path: Path, size: int) -> None:
    path = str(tmp_path / "step")
    run_ranks(size, jobs.engines_metadata, path, ((size,), (Shard(0),)))
    assert varve.verify(path) == []


def test_a_failure_names_the_ranks_that_failed_with_their_errors(tmp_path: Path) -> None:
    run_ranks(3, jobs.engines_failures, str(tmp_path / "step"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step", "step-taken"]


def test_ranks_choose_one_way_and_saves_keep_their_order(tmp_path: Path) -> None:
    run_ranks(2, jobs.ranks_choose_one_way, str(tmp_path / "step"))


def test_ranks_close_in_any_order_and_save_again(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(3, jobs.close_in_any_order, path)
    for step in range(4):
        assert set(varve.torch.read(f"{path}-{step}")) == {"w0", "w1", "w2"}


def test_close_without_saves_and_twice_does_nothing(tmp_path: Path) -> None:
    dcp.close()
    dcp.close()
    dcp.async_save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "step").result()
    assert not _executors._executors, "the engine saves"
    dcp.close()
    dcp.close()


class Rounding(torch_dcp.DefaultSavePlanner):
    """A planner of the caller's."""


class Nested:
    """An object inside the state, whose `state_dict` torch does not ask."""

    def state_dict(self) -> dict[str, Any]:
        return {"x": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nested)


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)


def _save_otherwise(kind: str, path: Path) -> Any:
    state: dict[str, Any] = {"w": torch.arange(5.0), "n": 7}
    options: dict[str, Any] = {"checkpoint_id": path}
    if kind == "planner":
        options["planner"] = Rounding()
    elif kind == "not flattened":
        options["planner"] = torch_dcp.DefaultSavePlanner(flatten_state_dict=False)
    elif kind == "files":
        options = {"storage_writer": dcp.FileSystemWriter(path, thread_count=2)}
    elif kind == "in place":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    elif kind == "without collectives":
        options["use_collectives"] = False
    else:
        state["extra"] = {
            "pickle": jobs.Opaque(),
            "object": {"inner": Nested()},
            "own value": varve.torch.PerRank(3),
            "array": np.arange(3),
        }[kind]
    return dcp.async_save(state, **options).result()


@pytest.mark.parametrize(
    "kind",
    [
        "planner",
        "not flattened",
        "files",
        "in place",
        "without collectives",
        "pickle",
        "object",
        "own value",
        "array",
    ],
)
def test_what_the_engine_would_save_otherwise_torchs_planner_saves(
    tmp_path: Path, kind: str
) -> None:
    dcp.close()
    path = tmp_path / "step"
    metadata = _save_otherwise(kind, path)
    assert _executors._executors, "saved by torch's planner"
    assert {"w", "n"} <= set(metadata.state_dict_metadata)
    loaded = {"w": torch.zeros(5), "n": 0}
    dcp.load(loaded, checkpoint_id=path)
    assert loaded["n"] == 7 and loaded["w"].tolist() == [0, 1, 2, 3, 4]
    if kind == "in place":
        assert (path / "notes.txt").read_text() == "mine"
    dcp.close()


def test_a_quantized_tensor_fails_as_in_torch_and_the_next_save_works(tmp_path: Path) -> None:
    failure = dcp.async_save({"q": _quantized()}, checkpoint_id=tmp_path / "step").exception()
    assert isinstance(failure, dcp.CheckpointError)
    dcp.async_save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "step").result()


def test_a_writer_has_the_name_of_the_newest_call(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path / "first")
    made = dcp.async_save({"n": 1}, storage_writer=writer, checkpoint_id=tmp_path / "second")
    assert made.result().storage_meta.checkpoint_id == str(tmp_path / "second")
    assert str(writer.path) == str(tmp_path / "second")
    assert not (tmp_path / "first").exists()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for number in (1, 2):
        dcp.async_save({"n": number}, checkpoint_id=tmp_path / "link").result()
        assert (tmp_path / "link").is_symlink()
        assert varve.torch.read(tmp_path / "real") == {"n": number}


@pytest.mark.slow
def test_many_saves_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    def resident() -> int:
        fields = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        return int(fields["VmRSS"].split()[0]) << 10

    state = {f"w{i}": torch.ones(1 << 18) for i in range(8)}  # 8 MiB.
    for step in range(120):
        if step == 20:
            before = resident()
        dcp.async_save(state, checkpoint_id=tmp_path / "step").result()
    assert resident() - before < 8 << 20
    dcp.close()
