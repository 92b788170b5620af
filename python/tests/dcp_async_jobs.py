"""What ranks do in the tests of varve.torch.dcp.async_save."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from dcp_jobs import assert_loaded, state
from rank_jobs import Layout

import varve
import varve.torch
import varve.torch.dcp as dcp


def async_between_collectives(rank: int, size: int, path: str) -> None:
    """Saves in flight while training uses the same group, and two of them at once."""
    big = torch.arange(2_000_000.0) + rank
    saves = []
    for step in range(4):
        tensors = {f"w{rank}": big, "step": step}
        saves.append(dcp.async_save(tensors, checkpoint_id=f"{path}-{step}"))
        for _ in range(50):
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total)
            assert total.item() == sum(range(1, size + 1))
        big.add_(1)
    for step, save in enumerate(saves):
        assert isinstance(save.result(), torch_dcp.Metadata)
        loaded = {f"w{rank}": torch.zeros(2_000_000), "step": -1}
        torch_dcp.load(loaded, checkpoint_id=f"{path}-{step}")
        assert loaded["step"] == step
        assert torch.equal(loaded[f"w{rank}"], torch.arange(2_000_000.0) + rank + step)


class Opaque:
    """A value that needs a pickle."""


def async_process(rank: int, size: int, agent: str, path: str, value: Any, layout: Layout) -> str:
    """Saves by a process: one that works, one over it, and one that fails."""
    os.environ["VARVE_AGENT_DIR"] = agent
    os.environ["MASTER_ADDR"] = "localhost"
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    options = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}
    saved = state(size, layout, True)
    saved["value"] = value
    for writer in ({"checkpoint_id": path}, {"storage_writer": dcp.FileSystemWriter(path)}):
        save = dcp.async_save(saved, **writer, **options)
        metadata = save.result()
        assert isinstance(metadata, torch_dcp.Metadata)
        assert "value" in metadata.state_dict_metadata
    writer = dcp.FileSystemWriter(path, overwrite=False)
    future = dcp.async_save(saved, storage_writer=writer, **options)
    assert isinstance(future.exception(), dcp.CheckpointError), future.exception()
    loaded, expected = state(size, layout, False), state(size, layout, True)
    torch_dcp.load(loaded, checkpoint_id=path)
    assert_loaded(loaded, expected)
    return str(future.exception())


class Staging:
    """A stager of the caller's: copies in the call, or behind it."""

    def __init__(self, behind: bool, fails: bool = False) -> None:
        self.thread = ThreadPoolExecutor(1) if behind else None
        self.fails = fails
        self.should_synchronize_after_execute = not behind
        self.synchronized = 0

    def stage(self, saved: dict[str, Any]) -> Any:
        return self.thread.submit(self.copy, saved) if self.thread else self.copy(saved)

    def copy(self, saved: dict[str, Any]) -> dict[str, Any]:
        if self.fails:
            raise ValueError("cannot stage this")
        return {key: value.clone() for key, value in saved.items()}

    def synchronize_staging(self) -> None:
        self.synchronized += 1


def own_stagers(rank: int, size: int, path: str) -> None:
    """Saves of copies that stagers of the caller make, on the executor of this package."""
    for behind in (False, True):
        weights = torch.full((1000,), rank + 1.0)
        stager = Staging(behind)
        where = f"{path}-{behind}"
        made = dcp.async_save({f"w{rank}": weights}, checkpoint_id=where, async_stager=stager)
        made.staging_completion.result()
        weights.zero_()
        metadata = made.upload_completion.result()
        assert set(metadata.state_dict_metadata) == {f"w{r}" for r in range(size)}
        assert stager.synchronized == (0 if behind else 1)
        loaded = {f"w{r}": torch.zeros(1000) for r in range(size)}
        torch_dcp.load(loaded, checkpoint_id=where)
        assert all((loaded[f"w{r}"] == r + 1).all() for r in range(size))
        failing = Staging(behind, fails=rank == 1)
        made = dcp.async_save({"w": weights}, checkpoint_id=where, async_stager=failing)
        failure = made.upload_completion.exception()
        assert isinstance(failure, dcp.CheckpointError)
        assert "rank 1: ValueError: cannot stage this" in str(failure)
        assert (made.staging_completion.exception() is None) == (rank != 1)


class Planner(torch_dcp.DefaultSavePlanner):
    """The default plan, by a class of the caller's."""


class Failing:
    """A Stateful that has no state on one rank."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def state_dict(self) -> dict[str, Any]:
        if self.fails:
            raise ValueError("no state to be found")
        return {"x": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def engines_stager(
    rank: int, size: int, agent: str, path: str, executor: str, layout: Layout
) -> None:
    """Saves on a varve.torch.Stager: what it takes, what it refuses, what fails."""
    os.environ["VARVE_AGENT_DIR"] = agent
    os.environ["MASTER_ADDR"] = "localhost"
    saved = state(size, layout, True)
    with varve.torch.Stager(memory_budget=64 << 20, executor=executor) as stager:
        for writer in ({"checkpoint_id": path}, {"storage_writer": dcp.FileSystemWriter(path)}):
            save = dcp.async_save(saved, async_stager=stager, **writer)
            save.staging_completion.result()
            plain = saved["plain"].clone()
            saved["plain"].zero_()
            metadata = save.result()
            saved["plain"].copy_(plain)
            assert isinstance(metadata, torch_dcp.Metadata)
            assert "step" in metadata.state_dict_metadata
        held = dcp.FileSystemWriter(path, overwrite=False)
        failure = dcp.async_save(saved, storage_writer=held, async_stager=stager).exception()
        assert isinstance(failure, dcp.CheckpointError), failure
        last = size - 1
        broken = {"s": Failing(rank == last)}
        made = dcp.async_save(broken, checkpoint_id=path, async_stager=stager)
        assert isinstance(made.exception(), dcp.CheckpointError)
        assert isinstance(made.staging_completion.exception(), dcp.CheckpointError)
        assert f"rank {last}: ValueError: no state to be found" in str(made.exception())
        for options, why in (
            ({"planner": Planner()}, "planner is not torch's default"),
            ({"storage_writer": dcp.FileSystemWriter(path, thread_count=2)}, "one file for each"),
            ({"state_dict": {"value": Opaque()}}, "need a pickle"),
        ):
            wrong = options if rank == last else {}
            every = {"state_dict": {"w": torch.ones(2)}, "checkpoint_id": path, **wrong}
            try:
                dcp.async_save(async_stager=stager, **every)
            except varve.UnsupportedError as error:
                assert f"rank {last}: " in str(error) and why in str(error), error
            else:
                raise AssertionError("nothing was raised")
    loaded, expected = state(size, layout, False), state(size, layout, True)
    torch_dcp.load(loaded, checkpoint_id=path)
    assert_loaded(loaded, expected)


def close_and_save_again(rank: int, size: int, path: str) -> None:
    """Each rank closes when it likes, or not at all."""
    for step in range(4):
        save = dcp.async_save({f"w{rank}": torch.ones(4)}, checkpoint_id=f"{path}-{step}")
        if rank == step % size:
            dcp.close()
            dcp.close()
            assert save.done()
        save.result()
