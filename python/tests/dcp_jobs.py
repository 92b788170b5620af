"""Functions that ranks run in the tests of varve.torch.dcp."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from rank_jobs import SHAPES, Layout, make_training, placed, whole
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import varve
import varve.torch.dcp as dcp

warnings.filterwarnings("ignore", "torch.distributed is (disabled|not initialized)")
warnings.filterwarnings("ignore", "Detected an existing checkpoint")
warnings.filterwarnings("ignore", "Please use DTensor instead")

#: Where, in a directory of checkpoints, those of an implementation lie.
IMPLEMENTATIONS = {"varve": dcp, "torch": torch_dcp}

#: Shards of a [10, 6] tensor with their ranks, by world size: irregular, and several for a rank.
IRREGULAR: dict[int, list[tuple[int, list[int], list[int]]]] = {
    1: [(0, [0, 0], [10, 2]), (0, [0, 2], [10, 4])],
    2: [(0, [0, 0], [3, 6]), (1, [3, 0], [1, 6]), (0, [4, 0], [6, 6])],
    3: [(2, [0, 0], [10, 1]), (0, [0, 1], [4, 5]), (2, [4, 1], [3, 5]), (1, [7, 1], [3, 5])],
}


def _irregular(size: int, values: bool) -> Any:
    """A ShardedTensor of the known tensor "a", or of zeros."""
    spec = EnumerableShardingSpec(
        [ShardMetadata(offsets, sizes, f"rank:{r}/cpu") for r, offsets, sizes in IRREGULAR[size]]
    )
    tensor = sharded_tensor.zeros(spec, *SHAPES["a"])
    for shard in tensor.local_shards() if values else []:
        shard.tensor.copy_(_part(whole("a"), shard))
    return tensor


def _part(tensor: torch.Tensor, shard: Any) -> torch.Tensor:
    for dim, (offset, length) in enumerate(
        zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
    ):
        tensor = tensor.narrow(dim, offset, length)
    return tensor


def state(size: int, layout: Layout, values: bool) -> dict[str, Any]:
    """Plain, sharded, replicated and byte values; zeros for a load."""
    out: dict[str, Any] = {
        "model": placed(layout, values),
        "plain": whole("b") if values else torch.zeros(SHAPES["b"]),
        "list": [whole("d") if values else torch.zeros(SHAPES["d"]), {"name": "x" * values}],
        "step": 3 if values else 0,
        "text": "saved" if values else "",
        "empty": torch.zeros(0, 3),
    }
    if size in IRREGULAR:
        out["irregular"] = _irregular(size, values)
    return out


def local_tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    """All memory of this rank that a load is to fill."""
    shards = state["irregular"].local_shards() if "irregular" in state else []
    return [
        *(tensor.to_local() for tensor in state["model"].values()),
        state["plain"],
        state["list"][0],
        *(shard.tensor for shard in shards),
    ]


def assert_loaded(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    assert (loaded["step"], loaded["text"], loaded["list"][1]) == (3, "saved", {"name": "x"})
    for a, b in zip(local_tensors(loaded), local_tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def save_layouts(rank: int, size: int, directory: str, layouts: dict[str, Layout]) -> None:
    for name, layout in layouts.items():
        saved = state(size, layout, True)
        for who, module in IMPLEMENTATIONS.items():
            module.save(saved, checkpoint_id=os.path.join(directory, f"{name} by {who}"))


def load_layouts(rank: int, size: int, directory: str, layouts: dict[str, Layout]) -> int:
    """Loads everything in the directory with Varve, and what Varve wrote with torch."""
    loads = 0
    for layout in layouts.values():
        expected, loaded = state(size, layout, True), state(size, layout, False)
        irregular = loaded.pop("irregular", None), expected.pop("irregular", None)
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            if size in IRREGULAR and "irregular" in _names(path):
                loaded["irregular"], expected["irregular"] = irregular
            for who, module in IMPLEMENTATIONS.items():
                if who == "torch" and name.endswith("by torch"):
                    continue
                for tensor in local_tensors(loaded):
                    tensor.zero_()
                loaded["step"], loaded["text"], loaded["list"][1]["name"] = 0, "", ""
                module.load(loaded, checkpoint_id=path)
                assert_loaded(loaded, expected)
                loads += 1
            loaded.pop("irregular", None)
            expected.pop("irregular", None)
    return loads


def _names(path: str) -> set[str]:
    return {key.split(".")[0] for key in dcp.FileSystemReader(path).read_metadata().planner_data}


def without_collectives(rank: int, size: int, path: str, layout: Layout) -> None:
    saved = state(size, layout, True)
    for _ in range(2):  # The second time over the first.
        dcp.save(saved, checkpoint_id=path, use_collectives=False)


def load_whole(rank: int, size: int, path: str, layout: Layout) -> None:
    loaded, expected = state(size, layout, False), state(size, layout, True)
    del loaded["irregular"], expected["irregular"]
    dcp.load(loaded, checkpoint_id=path)
    assert_loaded(loaded, expected)


# FSDP2 and Adam.


def train(rank: int, size: int, path: str) -> list[float]:
    model, optimizer = make_training(size)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    for who, module in IMPLEMENTATIONS.items():
        module.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=path + who)
    return _everything(model, optimizer)


def resume(rank: int, size: int, path: str) -> list[list[float]]:
    found = []
    for writer, reader in (("varve", "varve"), ("varve", "torch"), ("torch", "varve")):
        model, optimizer = make_training(size)
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        loaded = {"model": model_state, "optim": optimizer_state}
        IMPLEMENTATIONS[reader].load(loaded, checkpoint_id=path + writer)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optim"],
        )
        found.append(_everything(model, optimizer))
    return found


# The same with varve.torch and the optimizer's own numbers.


def train_by_number(rank: int, size: int, path: str) -> list[float]:
    model, optimizer = make_training(size)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    varve.torch.save({"model": model, "optimizer": optimizer}, path, format="dcp")
    return _everything(model, optimizer)


def resume_by_number(rank: int, size: int, path: str) -> list[float]:
    model, optimizer = make_training(size)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    optimizer.step()
    varve.torch.load({"model": model, "optimizer": optimizer}, path)
    assert all(type(key) is int for key in varve.torch.read(path)["optimizer"]["state"])
    return _everything(model, optimizer)


def _everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    out: list[float] = []
    for parameter in model.parameters():
        out += parameter.full_tensor().flatten().tolist()
    for moments in optimizer.state_dict()["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            out += moments[name].full_tensor().flatten().tolist()
    return out


# Failures.

WRITER_HOOKS = (
    "storage_meta",
    "set_up_storage_writer",
    "prepare_local_plan",
    "prepare_global_plan",
    "write_data",
    "finish",
)
READER_HOOKS = (
    "read_metadata",
    "set_up_storage_reader",
    "prepare_local_plan",
    "prepare_global_plan",
    "read_data",
)
COORDINATOR_ONLY = ("prepare_global_plan", "finish")


class Injected(Exception):
    """Belongs to no family that anything would catch by accident."""


def _faulty(storage: Any, hook: str) -> Any:
    """The storage, one method of which fails, and before it has done anything."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise Injected(f"injected into {hook}")

    return type("Faulty", (type(storage),), {hook: fail})


def _failures(hooks: tuple[str, ...], size: int) -> Iterator[tuple[str, int]]:
    for hook in hooks:
        for victim in range(1 if hook in COORDINATOR_ONLY else size):
            yield hook, victim


def _expect(victim: int, cause: str, call: Callable[[], Any]) -> None:
    """The call fails on this rank, with the failure of the victim."""
    try:
        call()
    except Exception as error:  # An ordinary exception.
        assert isinstance(error, dcp.CheckpointError), repr(error)
        assert isinstance(error, torch_dcp.CheckpointException)
        assert isinstance(error, varve.Error)
        assert set(error.failures) == {victim}, error
        assert f"rank {victim}" in str(error) and cause in str(error), error
        return
    raise AssertionError(f"rank {victim} failed with {cause}, and nothing was raised here")


def fail_saves(rank: int, size: int, path: str, options: dict[str, Any]) -> int:
    """A failure in each hook on each rank; then a save that works."""
    count = 0
    tensors = {"w": torch.arange(1000.0), "step": 1}
    for hook, victim in _failures(WRITER_HOOKS, size):
        kind = dcp.FileSystemWriter
        if rank == victim:
            kind = _faulty(dcp.FileSystemWriter(path), hook)
        _expect(
            victim,
            f"injected into {hook}",
            lambda kind=kind: dcp.save(tensors, storage_writer=kind(path), **options),
        )
        count += 1
    dcp.save(tensors, checkpoint_id=path, **options)
    return count


def fail_loads(rank: int, size: int, path: str) -> int:
    dcp.save({"w": torch.arange(1000.0), "step": 1}, checkpoint_id=path)
    count = 0
    for hook, victim in _failures(READER_HOOKS, size):
        kind = dcp.FileSystemReader
        if rank == victim:
            kind = _faulty(dcp.FileSystemReader(path), hook)
        loaded = {"w": torch.zeros(1000), "step": 0}
        _expect(
            victim,
            f"injected into {hook}",
            lambda kind=kind, loaded=loaded: dcp.load(loaded, storage_reader=kind(path)),
        )
        count += 1
    return count


class Stubborn:
    """A Stateful of which one method fails on one rank."""

    def __init__(self, method: str) -> None:
        self.method = method

    def state_dict(self) -> dict[str, Any]:
        self._fail("state_dict")
        return {"x": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._fail("load_state_dict")

    def _fail(self, method: str) -> None:
        if method == self.method:
            raise Injected(f"injected into {method}")


def fail_around(rank: int, size: int, path: str) -> None:
    """Failures before the first step and after the last, in both kinds of functions."""
    dcp.save({"s": Stubborn("")}, checkpoint_id=path)
    other = path + "-2"
    for victim in range(size):

        def stubborn(method: str, victim: int = victim) -> dict[str, Any]:
            return {"s": Stubborn(method if rank == victim else "")}

        def resetting(kind: Any, victim: int = victim) -> Any:
            return (_faulty(kind(path), "reset") if rank == victim else kind)(path)

        def writer(resetting: Any = resetting) -> Any:
            return resetting(dcp.FileSystemWriter)

        def reader(resetting: Any = resetting) -> Any:
            return resetting(dcp.FileSystemReader)

        calls: list[tuple[str, Callable[[], Any]]] = [
            ("state_dict", lambda s=stubborn: dcp.save(s("state_dict"), checkpoint_id=other)),
            (
                "state_dict",
                lambda s=stubborn: dcp.save(
                    s("state_dict"), checkpoint_id=other, use_collectives=False
                ),
            ),
            (
                "state_dict",
                lambda s=stubborn: dcp.async_save(s("state_dict"), checkpoint_id=other).result(),
            ),
            ("state_dict", lambda s=stubborn: dcp.load(s("state_dict"), checkpoint_id=path)),
            (
                "load_state_dict",
                lambda s=stubborn: dcp.load(s("load_state_dict"), checkpoint_id=path),
            ),
            ("reset", lambda w=writer: dcp.save({}, storage_writer=w(), checkpoint_id=path)),
            ("reset", lambda w=writer: dcp.save_state_dict({}, w())),
            ("reset", lambda r=reader: dcp.load({}, storage_reader=r(), checkpoint_id=path)),
            ("reset", lambda r=reader: dcp.load_state_dict({}, r())),
        ]
        for method, call in calls:
            _expect(victim, f"injected into {method}", call)


def fail_under_torch(rank: int, size: int, path: str) -> None:
    """With torch's own `save`, a failed save does not stand in the way of the next one."""
    kind = _faulty(dcp.FileSystemWriter(path), "write_data") if rank == 1 else dcp.FileSystemWriter
    first = kind(path)
    for writer in (first, kind(path)):
        with contextlib.suppress(torch_dcp.CheckpointException):
            torch_dcp.save({"w": torch.ones(3)}, storage_writer=writer)
            raise AssertionError("nothing was raised")
    torch_dcp.save({"w": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(path))


class Dying(DefaultSavePlanner):
    """Ends its process while the ranks write."""

    def resolve_data(self, write_item: Any) -> Any:
        os._exit(1)


def die_in_a_save(rank: int, size: int, path: str, victim: int, in_background: bool) -> None:
    state = {f"w{rank}": torch.ones(100)}
    planner = Dying() if rank == victim else None
    if in_background:
        dcp.async_save(state, checkpoint_id=path, planner=planner).result()
    else:
        dcp.save(state, checkpoint_id=path, planner=planner)


# More of the interface.


class Plans(DefaultSavePlanner):
    def __init__(self) -> None:
        super().__init__(enable_plan_caching=True)


def cached_plans(rank: int, size: int, path: str, layout: Layout) -> None:
    """Planners that keep plans from save to save; the third save has one thing more."""
    model, zeros = placed(layout, True), placed(layout, False)
    for step in range(4):
        tensors = {"model": model, "step": step}
        if step == 2:
            tensors["more"] = rank
        dcp.save(tensors, checkpoint_id=f"{path}-{step}", planner=Plans())
        dist.barrier()
        loaded = {"model": zeros, "step": -1}
        torch_dcp.load(loaded, checkpoint_id=f"{path}-{step}")
        assert loaded["step"] == step
        assert all(torch.equal(model[key].to_local(), zeros[key].to_local()) for key in model)


def plans_cached_by_torch(rank: int, size: int, path: str, layout: Layout) -> None:
    """A planner keeps the plan of a save through torch's writer for one through Varve's."""
    model = placed(layout, True)
    torch_dcp.save({"model": model}, checkpoint_id=f"{path}-torch", planner=Plans())
    dcp.save({"model": model}, checkpoint_id=f"{path}-varve", planner=Plans())


def async_saves(rank: int, size: int, path: str, layout: Layout) -> None:
    """Both results of a save in a thread; the state may change as soon as the call is back."""
    saved = state(size, layout, True)
    future = dcp.async_save(saved, checkpoint_id=path)
    saved["plain"].zero_()
    assert isinstance(future.result(), torch_dcp.Metadata)
    kind = _faulty(dcp.FileSystemWriter(path), "write_data") if rank == 1 else dcp.FileSystemWriter
    _expect(
        1,
        "injected into write_data",
        lambda: dcp.async_save(saved, storage_writer=kind(path)).result(),
    )
    load_whole(rank, size, path, layout)


def group_of_two(rank: int, size: int, path: str) -> None:
    """Ranks 1 and 2 of three save; each alone too."""
    group = dist.new_group([1, 2])
    if rank:
        dcp.save({"w": torch.ones(4)}, checkpoint_id=path, process_group=group)
    dcp.save({"rank": rank}, checkpoint_id=f"{path}-{rank}", no_dist=True)
    loaded = {"rank": -1}
    dcp.load(loaded, checkpoint_id=f"{path}-{rank}", no_dist=True)
    assert loaded["rank"] == rank


def coordinator_one(rank: int, size: int, path: str) -> None:
    """The deprecated functions, with another coordinator than rank 0."""
    writer = dcp.FileSystemWriter(path)
    metadata = dcp.save_state_dict({"w": torch.ones(4), "rank": 5}, writer, coordinator_rank=1)
    assert isinstance(metadata, torch_dcp.Metadata)
    loaded = {"w": torch.zeros(4), "rank": 0}
    dcp.load_state_dict(loaded, dcp.FileSystemReader(path), coordinator_rank=1)
    assert loaded["rank"] == 5 and bool((loaded["w"] == 1).all())


def separate_disks(rank: int, size: int, directory: str) -> None:
    _expect_unshared(
        lambda: dcp.save({f"w{rank}": torch.ones(9)}, checkpoint_id=f"{directory}/{rank}/step")
    )


def _expect_unshared(call: Callable[[], Any]) -> None:
    try:
        call()
    except dcp.CheckpointError as error:
        assert "share" in str(error) and "rank 1" in str(error), error
        return
    raise AssertionError("nothing was raised")


def load_model_and_step(rank: int, size: int, path: str, layout: Layout) -> None:
    """Of a checkpoint that rank_jobs.save_layouts has made."""
    loaded, expected = placed(layout, False), placed(layout, True)
    state = {"model": loaded, "step": 0}
    dcp.load(state, checkpoint_id=path)
    assert state["step"] == 3
    assert all(torch.equal(loaded[key].to_local(), expected[key].to_local()) for key in loaded)


def load_nothing(rank: int, size: int, path: str) -> BaseException:
    """Loads where no checkpoint is; returns the exception."""
    try:
        dcp.load({"w": torch.ones(2)}, checkpoint_id=path)
    except Exception as error:
        return error
    raise AssertionError("nothing failed")
