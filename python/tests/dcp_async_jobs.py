"""Functions that ranks run in the tests of varve.torch.dcp.async_save."""

from __future__ import annotations

import errno
import os
import resource
import signal
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from dcp_jobs import assert_loaded, state
from rank_jobs import Layout
from torch.distributed.checkpoint import DefaultSavePlanner

import varve
import varve.torch
import varve.torch.dcp as dcp
from varve.torch.dcp import _executors


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


def async_process(rank: int, size: int, path: str, value: Any, layout: Layout) -> str:
    """Saves where a process is asked for: one that works, one over it, and one that fails."""
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


def engines_stager(rank: int, size: int, path: str, executor: str, layout: Layout) -> None:
    """Saves on a varve.torch.Stager: what it takes, what it refuses, what fails."""
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


def engines_metadata(rank: int, size: int, path: str, layout: Layout) -> None:
    """What the future gives on each rank, beside what torch's gives for the same state."""
    saved = state(size, layout, True)
    theirs = torch_dcp.save(saved, checkpoint_id=f"{path}-torch")
    ours = dcp.async_save(saved, checkpoint_id=path).result()
    assert not _executors._executors, "the engine saves"
    without_elements = {
        torch_dcp.metadata.MetadataIndex(fqn, chunk.offsets)
        for fqn, entry in theirs.state_dict_metadata.items()
        for chunk in getattr(entry, "chunks", [])
        if chunk.sizes.numel() == 0 < entry.size.numel()
    }
    assert theirs.state_dict_metadata.keys() == ours.state_dict_metadata.keys()
    for fqn, entry in theirs.state_dict_metadata.items():
        if hasattr(entry, "chunks"):  # The engine stores no chunk for a shard without elements.
            indices = ((c, torch_dcp.metadata.MetadataIndex(fqn, c.offsets)) for c in entry.chunks)
            kept = [chunk for chunk, index in indices if index not in without_elements]
            entry.chunks = sorted(kept, key=lambda chunk: chunk.offsets)
            if hasattr(entry.properties, "strides"):  # Since torch 2.15, and the index has none.
                entry.properties.strides = None
        assert entry == ours.state_dict_metadata[fqn], (entry, ours.state_dict_metadata[fqn])
    assert theirs.planner_data == ours.planner_data
    assert theirs.storage_data.keys() - without_elements == ours.storage_data.keys()
    kinds = {type(place) for place in ours.storage_data.values()}
    assert kinds == {type(place) for place in theirs.storage_data.values()}
    assert getattr(theirs, "version", "1.0.0") == ours.version
    assert str(theirs.storage_meta.checkpoint_id) == f"{path}-torch"
    assert (ours.storage_meta.checkpoint_id, ours.storage_meta.load_id) == (path, None)
    assert str(uuid.UUID(ours.storage_meta.save_id)) == ours.storage_meta.save_id


def engines_failures(rank: int, size: int, path: str) -> None:
    """Ranks 1 and 2 cannot write large files; then the name is taken; then one rank has no state."""
    dcp.async_save({"w": torch.ones(2)}, checkpoint_id=f"{path}-taken").result()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank in (1, 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    large = {f"w{rank}": torch.ones(1 << 20)}
    failure = dcp.async_save(large, checkpoint_id=path).exception()
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert isinstance(failure, dcp.CheckpointError), failure
    assert sorted(failure.failures) == [1, 2]
    for cause, _ in failure.failures.values():
        assert isinstance(cause, varve.OutOfSpaceError) and cause.errno == errno.EFBIG
        assert str(cause) in str(failure)
    assert "ranks 1-2: " in str(failure) or "rank 2: " in str(failure)

    held = dcp.FileSystemWriter(f"{path}-taken", overwrite=False)
    failure = dcp.async_save(large, storage_writer=held).exception()
    assert isinstance(failure, dcp.CheckpointError), failure
    ((failed, (cause, _)),) = failure.failures.items()
    assert failed == 0 and isinstance(cause, varve.CheckpointExistsError)

    failure = dcp.async_save({"s": Failing(rank == 2)}, checkpoint_id=path).exception()
    assert isinstance(failure, dcp.CheckpointError), failure
    ((failed, (cause, _)),) = failure.failures.items()
    assert failed == 2 and isinstance(cause, ValueError)
    dcp.async_save(large, checkpoint_id=path).result()


def ranks_choose_one_way(rank: int, size: int, path: str) -> None:
    """What one rank's state needs, all ranks do; saves of a name keep their order."""
    saves = []
    for step in range(6):
        value = Opaque() if rank == step % 2 and step % 3 else None
        state = {f"w{rank}": torch.full((1000,), float(step)), "step": step, f"v{rank}": value}
        saves.append(dcp.async_save(state, checkpoint_id=path))
    for save in saves:
        assert save.exception() is None, save.exception()
    loaded = {f"w{rank}": torch.zeros(1000), "step": -1}
    torch_dcp.load(loaded, checkpoint_id=path)
    assert loaded["step"] == 5 and bool((loaded[f"w{rank}"] == 5).all())
    alone = dcp.async_save({"rank": rank}, checkpoint_id=f"{path}-{rank}", no_dist=True)
    assert set(alone.result().state_dict_metadata) == {"rank"}


def close_in_any_order(rank: int, size: int, path: str) -> None:
    """Rank 0 closes after each save, the last rank never, others before their first one too."""
    if rank not in (0, size - 1):
        dcp.close()
    for step in range(4):
        save = dcp.async_save({f"w{rank}": torch.ones(1 << 18)}, checkpoint_id=f"{path}-{step}")
        if rank == 0 or (rank != size - 1 and step == 2):
            dcp.close()
            assert save.done()
    save.result()
    assert not _executors._executors, "the engine saves"


class FailingStager:
    """A stager whose copy comes later, and fails on rank 1 as torch's own checkpoints fail."""

    should_synchronize_after_execute = False

    def stage(self, state: dict[str, Any]) -> Future[dict[str, Any]]:
        staged: Future[dict[str, Any]] = Future()
        if dist.get_rank() == 1:
            staged.set_exception(torch_dcp.api.CheckpointException("stage", {}))
        else:
            staged.set_result(dict(state))
        return staged

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Nothing is kept."""


def async_with_a_stager_that_fails(rank: int, size: int, path: str) -> str:
    """Saves by a caller's stager that fails on one rank."""
    saved = dcp.async_save(
        {f"w{rank}": torch.ones(4)}, checkpoint_id=path, async_stager=FailingStager()
    )
    try:
        getattr(saved, "upload_completion", saved).result(timeout=120)
    except dcp.CheckpointError as error:
        return f"{sorted(error.failures)}"
    raise AssertionError("the save has succeeded")


class OwnPlanner(DefaultSavePlanner):
    """Plans that the engine does not make."""


def async_whose_group_ends(rank: int, size: int, path: str) -> None:
    """Ends the group of a save that is under way."""
    group = dist.new_group(list(range(size)))
    saved = dcp.async_save(
        {f"w{rank}": torch.ones(4)}, checkpoint_id=path, planner=OwnPlanner(), process_group=group
    )
    dist.destroy_process_group(group)
    assert isinstance(saved.result(timeout=120), torch_dcp.Metadata)


class ByRank(torch_dcp.FileSystemWriter):
    """A writer of torch's, with a directory for each rank."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}/rank{dist.get_rank()}")


def save_to_a_directory_for_each_rank(rank: int, size: int, path: str) -> None:
    """Saves by a caller's writer whose name differs between ranks."""
    state = {f"w{rank}": torch.ones(4)}
    dcp.save(state, storage_writer=ByRank(path))
    dcp.async_save(state, storage_writer=ByRank(path)).result(timeout=120)
    assert any(name.endswith(".distcp") for name in os.listdir(f"{path}/rank{rank}"))
