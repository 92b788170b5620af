"""Saves in the background, on the thread of planners and by the agent."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dcp_async_jobs as jobs
import dcp_jobs
import programs
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from ranks import run_ranks
from torch.distributed.tensor import Shard

import varve
import varve.agent
import varve.torch
import varve.torch.dcp as dcp
from varve.torch.dcp._copy import StateCopier

staging = pytest.importorskip("torch.distributed.checkpoint.staging")


@pytest.mark.slow
def test_ranks_save_in_threads_and_failures_come_through_the_future(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(2, dcp_jobs.async_saves, path, ((2,), (Shard(0),)))
    assert varve.verify(path) == []


@pytest.mark.parametrize("size", [1, 2])
def test_the_agent_saves_where_a_process_is_asked_for(
    agent: str, tmp_path: Path, size: int
) -> None:
    path = str(tmp_path / "step")
    failures = run_ranks(size, jobs.async_process, path, [1, "a"], ((size,), (Shard(0),)))
    assert all("already holds a checkpoint" in failure for failure in failures)
    assert {save.path for save in varve.agent.status().held} == {path}
    assert varve.verify(path) == []


def test_the_thread_saves_what_needs_a_pickle_where_a_process_is_asked_for(
    agent: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "step")
    (failure,) = run_ranks(1, jobs.async_process, path, jobs.Opaque(), ((1,), (Shard(0),)))
    assert "already holds a checkpoint" in failure
    assert not Path(agent).exists(), "the agent had no part in it"


def test_stagers_of_the_caller_make_the_copies_that_are_saved(tmp_path: Path) -> None:
    run_ranks(2, jobs.own_stagers, str(tmp_path / "step"))


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_stager_of_varve_torch_saves_what_is_saved_in_the_default_way(
    agent: str, tmp_path: Path, size: int, executor: str
) -> None:
    path = str(tmp_path / "step")
    run_ranks(size, jobs.engines_stager, path, executor, ((size,), (Shard(0),)))
    assert varve.verify(path) == []
    assert Path(agent).exists() == (executor == "process")


def test_a_stager_that_contradicts_other_arguments_is_refused(tmp_path: Path) -> None:
    state = {"w": torch.ones(2)}
    stager = varve.torch.Stager(memory_budget=1 << 20)
    process = getattr(torch_dcp.state_dict_saver, "AsyncCheckpointerType", None)
    if process is not None:
        with pytest.raises(varve.InvalidArgumentError, match='executor="process"'):
            dcp.async_save(
                state,
                checkpoint_id=tmp_path / "step",
                async_stager=stager,
                async_checkpointer_type=process.PROCESS,
            )
    stager.close()
    with pytest.raises(varve.UnsupportedError, match="the stager is closed"):
        dcp.async_save(state, checkpoint_id=tmp_path / "step", async_stager=stager)
    assert not (tmp_path / "step").exists()


def test_close_gives_the_memory_of_copies_back(tmp_path: Path) -> None:
    def resident() -> int:
        fields = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        return int(fields["VmRSS"].split()[0]) << 10

    state = {"w": torch.ones(32 << 20)}  # 128 MiB.
    dcp.save(state, checkpoint_id=tmp_path / "first")  # The engine's blocks are there then.
    dcp.close()
    before = resident()
    for step in range(2):
        saves = [dcp.async_save(state, checkpoint_id=tmp_path / f"{step}-{i}") for i in range(2)]
        saves[0].result()
        assert resident() - before > 64 << 20, "kept for the next save"
        dcp.close()
        assert all(save.done() and save.exception() is None for save in saves)
        dcp.close()
        assert resident() - before < 64 << 20, "copies of 256 MiB in all"
    assert varve.verify(tmp_path / "1-1") == []


def test_each_rank_closes_for_itself_and_saves_again(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(2, jobs.close_and_save_again, path)
    for step in range(4):
        assert set(varve.torch.read(f"{path}-{step}")) == {"w0", "w1"}


def test_saves_in_flight_do_not_come_between_the_collectives_of_the_training(
    tmp_path: Path,
) -> None:
    run_ranks(2, jobs.async_between_collectives, str(tmp_path / "step"))


def test_what_async_save_returns_serves_code_for_either_kind_of_result(tmp_path: Path) -> None:
    made = dcp.async_save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "step")
    assert isinstance(made, Future)
    assert made.staging_completion.result() is None
    assert made.upload_completion.result() is made.result()
    assert set(made.result().state_dict_metadata) == {"w"}


def test_a_copy_is_of_its_own_whatever_the_state_is_made_of(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    state = {
        "dense": base,
        "turned": base.view(4, 6).t(),
        "part": base[3:7],
        "none": torch.empty(0, 3),
        "one": torch.tensor(5),
        "flags": torch.tensor([True, False]),
        "wave": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "nested": OrderedDict(inner=[torch.ones(2), {"x": (torch.zeros(2), "text")}]),
        "history": [1, 2],
    }
    copier = StateCopier()
    copied = copier.copy(state).state
    with torch.no_grad():
        base.zero_()
        state["parameter"].zero_()
    state["nested"]["inner"][1]["x"][0].fill_(9)
    state["history"].append(3)
    assert copied["dense"].tolist() == list(range(24))
    assert torch.equal(copied["turned"], torch.arange(24.0).view(4, 6).t())
    assert copied["part"].tolist() == [3, 4, 5, 6]
    assert copied["none"].shape == (0, 3)
    assert copied["one"].shape == () and copied["one"].item() == 5
    assert copied["flags"].tolist() == [True, False]
    assert copied["wave"].tolist() == [1 - 2j]
    assert copied["parameter"].tolist() == [1, 1, 1]
    assert type(copied["nested"]) is OrderedDict
    assert copied["nested"]["inner"][1]["x"][0].tolist() == [0, 0]
    assert copied["nested"]["inner"][1]["x"][1] == "text"
    assert copied["history"] == [1, 2]
    assert type(state["nested"]["inner"]) is list, "the state itself is left alone"
    assert torch.is_tensor(state["nested"]["inner"][0])


def test_copies_use_the_memory_of_earlier_ones_and_nothing_that_lay_in_it() -> None:
    copier = StateCopier()
    first = copier.copy({"w": torch.full((1000,), 7.0)})
    address = first.state["w"].data_ptr()
    other = copier.copy({"w": torch.full((1000,), 8.0)})
    assert other.state["w"].data_ptr() != address, "the first is still in use"
    assert first.state["w"].eq(7).all()
    first.release()
    # Fewer elements of another type under another name: chosen by size alone.
    third = copier.copy({"v": torch.arange(100)})
    assert third.state["v"].data_ptr() == address
    assert third.state["v"].tolist() == list(range(100))
    assert other.state["w"].eq(8).all()


def test_a_writer_that_makes_copies_in_its_own_way_is_asked_for_them(tmp_path: Path) -> None:
    class Negating(dcp.FileSystemWriter):
        def stage(self, state_dict: Any) -> Any:
            return {key: -value for key, value in state_dict.items()}

    dcp.async_save({"w": torch.ones(2)}, storage_writer=Negating(tmp_path / "step")).result()
    assert varve.torch.read(tmp_path / "step")["w"].tolist() == [-1, -1]


@pytest.mark.slow
def test_the_end_of_the_interpreter_waits_for_the_save(tmp_path: Path) -> None:
    script = (
        "import sys, torch, varve.torch.dcp as dcp\n"
        "dcp.async_save({'w': torch.arange(5e6)}, checkpoint_id=sys.argv[1], no_dist=True)\n"
        "raise SystemExit(3)"
    )
    done = programs.run(script, tmp_path / "step")
    assert done.returncode == 3
    assert torch.equal(varve.torch.read(tmp_path / "step")["w"], torch.arange(5e6))


def test_the_writer_is_a_stager_that_copies(tmp_path: Path) -> None:
    writer = dcp.FileSystemWriter(tmp_path / "step")
    assert isinstance(writer, staging.BlockingAsyncStager)
    tensor = torch.ones(4)
    for value in (1.0, 2.0):
        tensor.fill_(value)
        future = dcp.async_save({"w": tensor}, storage_writer=writer)
        tensor.zero_()
        future.result()
        assert torch.equal(varve.torch.read(tmp_path / "step")["w"], torch.full((4,), value))


@pytest.mark.skipif(not hasattr(staging, "DefaultStager"), reason="this torch has none")
def test_a_stager_that_stages_in_the_background_gives_two_futures(tmp_path: Path) -> None:
    stager = staging.DefaultStager(
        staging.StagingOptions(
            use_async_staging=True,
            use_pinned_memory=False,
            use_shared_memory=False,
            use_non_blocking_copy=False,
        )
    )
    response = dcp.async_save(
        {"w": torch.ones(4)}, checkpoint_id=tmp_path / "step", async_stager=stager
    )
    assert response.staging_completion.result() is None
    assert isinstance(response.upload_completion, Future)
    response.upload_completion.result()
    with pytest.raises(dcp.CheckpointError):
        dcp.async_save(
            {"w": torch.ones(4)},
            storage_writer=dcp.FileSystemWriter(tmp_path / "step", overwrite=False),
            async_stager=stager,
        ).upload_completion.result()
    stager.close()
