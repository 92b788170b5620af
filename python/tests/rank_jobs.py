"""Functions that ranks run in test_ranks.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import collections
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import varve.torch
import varve.torch.dcp
from varve.torch._coordinator import ALONE
from varve.torch._tensors import TorchArrays

Layout = tuple[tuple[int, ...], tuple[Any, ...]]

#: Whole tensors that every job knows.
SHAPES = {"a": (10, 6), "b": (7,), "c": (3, 5, 4), "d": (1, 8)}


def whole(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(SHAPES[name], generator=generator)


def placed(layout: Layout, values: bool) -> dict[str, DTensor]:
    """DTensors of all shapes on a mesh, holding the known values or zeros."""
    shape, placements = layout
    mesh = init_device_mesh("cpu", shape)
    out = {}
    for name in SHAPES:
        tensor = whole(name) if values else torch.zeros(SHAPES[name])
        fitting = tuple(
            Replicate() if isinstance(p, Shard) and p.dim >= tensor.dim() else p for p in placements
        )
        out[name] = distribute_tensor(tensor, mesh, fitting)
    return out


def save_layouts(rank: int, size: int, directory: str, layouts: dict[str, Layout]) -> None:
    for name, layout in layouts.items():
        varve.torch.save({"model": placed(layout, True), "step": 3}, os.path.join(directory, name))


def load_layouts(rank: int, size: int, paths: list[str], layouts: dict[str, Layout]) -> None:
    for path in paths:
        for layout in layouts.values():
            state = {"model": placed(layout, False), "step": 0}
            varve.torch.load(state, path)
            assert state["step"] == 3
            for name, tensor in state["model"].items():
                expected = distribute_tensor(whole(name), tensor.device_mesh, tensor.placements)
                torch.testing.assert_close(tensor.to_local(), expected.to_local(), rtol=0, atol=0)


def save_rows(rank: int, size: int, path: str, rows: list[list[float]]) -> None:
    mesh = init_device_mesh("cpu", (size,))
    varve.torch.save({"w": distribute_tensor(torch.tensor(rows), mesh, [Shard(0)])}, path)


def save_partial(rank: int, size: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (size,))
    tensor = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    varve.torch.save({"grad": tensor}, path)


def _uneven(rank: int, rows: list[float]) -> DTensor:
    """Returns 7 rows as FSDP2 on 3 ranks cuts the shards of 2 ranks with tensor parallelism."""
    mesh = init_device_mesh("cpu", (3, 2))
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    return DTensor.from_local(
        torch.tensor(rows), mesh, placements, run_check=False, shape=torch.Size([7]), stride=(1,)
    )


def save_uneven(rank: int, size: int, path: str) -> None:
    rows = [[0.0, 1.0], [4.0], [2.0, 3.0], [5.0], [], [6.0]]
    varve.torch.save({"w": _uneven(rank, rows[rank])}, path)


def load_uneven(rank: int, size: int, path: str) -> list[float]:
    tensor = _uneven(rank, [[-1.0, -1.0], [-1.0], [-1.0, -1.0], [-1.0], [], [-1.0]][rank])
    varve.torch.load({"w": tensor}, path)
    return tensor.to_local().tolist()


def save_ddp(rank: int, size: int, path: str) -> int:
    state = {f"w{i}": torch.full((64, 1024), float(i)) for i in range(8)}
    return varve.torch.save(
        {"model": state, "rng": varve.torch.PerRank(rank * 10)}, path
    ).bytes_written


def load_per_rank(rank: int, size: int, path: str) -> int:
    state = {
        "model": {f"w{i}": torch.zeros(64, 1024) for i in range(8)},
        "rng": varve.torch.PerRank(None),
    }
    varve.torch.load(state, path)
    assert all(bool((w == i).all()) for i, w in enumerate(state["model"].values()))
    return state["rng"].value


def names_of_its_own(rank: int, value: float) -> dict[str, Any]:
    return {
        f"rank{rank}": {"w": torch.full((3,), value)},
        "experts": {f"x/rank{rank}": torch.full((3,), value)},
    }


def save_names_of_its_own(rank: int, size: int, path: str) -> None:
    varve.torch.save(names_of_its_own(rank, float(rank)), path)


def load_names_of_its_own(
    rank: int, size: int, path: str, strict: bool | str
) -> tuple[list[float], list[str], list[str]]:
    state = names_of_its_own(rank, -1.0)
    report = varve.torch.load(state, path, strict=strict)
    values = [float(state[f"rank{rank}"]["w"][0]), float(state["experts"][f"x/rank{rank}"][0])]
    return values, sorted(report.missing), sorted(report.unexpected)


class FailsToLoad:
    """An object whose state one rank refuses."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def state_dict(self) -> dict[str, int]:
        return {"position": 7}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.fails:
            raise RuntimeError("the file of this rank is missing")


def fail_to_load_on_one_rank(rank: int, size: int, path: str) -> None:
    varve.torch.save({"data": FailsToLoad(False), "w": torch.ones(3)}, path, timeout=30)
    varve.torch.load({"data": FailsToLoad(rank == 1), "w": torch.zeros(3)}, path, timeout=30)


def make_training(size: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train_fsdp(rank: int, size: int, path: str) -> list[float]:
    model, optimizer = make_training(size)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    varve.torch.save({"model": model, "optim": optimizer}, path)
    return _everything(model, optimizer)


def resume_fsdp(rank: int, size: int, path: str) -> list[float]:
    model, optimizer = make_training(size)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    varve.torch.load({"model": model, "optim": optimizer}, path)
    return _everything(model, optimizer)


def _everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """All weights and moments, gathered, as one list."""
    out: list[float] = []
    for parameter in model.parameters():
        out += parameter.full_tensor().flatten().tolist()
    for state in optimizer.state_dict()["state"].values():
        for value in state.values():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            out += full.flatten().tolist()
    return out


class Failing(collections.UserDict[str, Any]):
    """Not a container Varve stores."""


def fail_on_one_rank(rank: int, size: int, path: str, bad: int) -> None:
    state: dict[str, Any] = {"w": torch.ones(3)}
    if rank == bad:
        state["odd"] = Failing()
    varve.torch.save(state, path, timeout=30)


def fail_with_facts(rank: int, size: int, directory: str, what: str) -> tuple[Any, ...]:
    """Rank 1 fails alone; returns the facts of each rank's exception."""
    bad: dict[str, Any] = {"w": torch.ones(3)}
    if rank == 1:
        bad["odd"] = Failing()
    new = f"{directory}/new"
    try:
        if what == "save":
            varve.torch.save(bad, new, timeout=30)
        elif what == "async_save":
            varve.torch.async_save(bad, new, timeout=30).result(60)
        elif what == "dcp save":
            varve.torch.dcp.save(FailingState(rank), checkpoint_id=new)
        elif what == "dcp save alone":
            varve.torch.dcp.save(FailingState(rank), checkpoint_id=new, use_collectives=False)
        else:
            path = f"{directory}/elsewhere/there" if rank == 1 else f"{directory}/there"
            varve.torch.load({"w": torch.ones(3)}, path, timeout=30)
    except varve.Error as error:
        facts = (error.code, error.rank, error.path, getattr(error, "errno", None))
        return type(error).__name__, *facts
    raise AssertionError("nothing failed")


def fail_for_late_rank(rank: int, size: int, directory: str) -> tuple[Any, ...]:
    """Rank 1 comes when the others have given up; returns the facts of each rank's exception."""
    varve.torch.save({"w": torch.ones(3)}, f"{directory}/warm", timeout=60)
    if rank == 1:
        time.sleep(3)
    try:
        varve.torch.save({"w": torch.ones(3)}, f"{directory}/new", timeout=1)
    except varve.Error as error:
        facts = (error.code, error.rank, getattr(error, "errno", None))
        return type(error).__name__, *facts, isinstance(error, TimeoutError)
    raise AssertionError("nothing failed")


class FailingState(dict[str, Any]):
    """A state of torch's dcp whose object fails when rank 1 asks for its state."""

    def __init__(self, rank: int) -> None:
        super().__init__(w=torch.ones(3), odd=_Odd(rank))


class _Odd:
    def __init__(self, rank: int) -> None:
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        if self._rank == 1:
            raise RuntimeError("odd")
        return {"a": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


def disagree(rank: int, size: int, path: str) -> None:
    varve.torch.save({"w": torch.ones(3 + rank)}, path, timeout=30)


def die_in_save(rank: int, size: int, path: str, victim: int) -> None:
    def progress(done: int, total: int) -> None:
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    state = {"w": torch.ones(1 << 20), "mine": varve.torch.PerRank(torch.ones(1 << 20))}
    varve.torch.save(state, path, timeout=10, progress=progress)


def die_in_save_and_wait(rank: int, size: int, path: str, victim: int) -> None:
    """As die_in_save. No rank ends before all have failed: what rank 0 has not read yet would end its connection."""
    try:
        die_in_save(rank, size, path, victim)
    finally:
        own = Path(f"{path}.failed-{rank}")
        own.touch()
        until = time.monotonic() + 60
        while len(list(own.parent.glob("*.failed-*"))) < size - 1 and time.monotonic() < until:
            time.sleep(0.05)


def separate_disks(rank: int, size: int, directory: str) -> None:
    own = os.path.join(directory, f"disk{rank}")
    os.makedirs(own)
    varve.torch.save(
        {"w": torch.ones(4), "m": varve.torch.PerRank(rank)}, own + "/step", timeout=60
    )


def save_uncoordinated(
    rank: int, size: int, path: str, save_id: bytes, ranks: tuple[int, ...]
) -> None:
    if rank not in ranks:
        return
    mesh = init_device_mesh("cpu", (size,)) if len(ranks) == size else None
    shard: Any
    if mesh is not None:
        shard = distribute_tensor(whole("a"), mesh, [Shard(0)])
    else:
        shard = checkpointable(whole("a"), rank, size)
    state = {"a": shard, "same": torch.arange(5), "step": 4, "m": varve.torch.PerRank(rank)}
    varve.torch.save(state, path, coordinate=False, save_id=save_id)


def save_uncoordinated_by_default_id(rank: int, size: int, path: str) -> None:
    state = {"a": checkpointable(whole("a"), rank, size), "step": 4}
    varve.torch.save(state, path, coordinate=False)


def checkpointable(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """This rank's rows as torch 2.14's CheckpointableTensor."""
    rows = tensor.shape[0]
    low, high = rows * rank // size, rows * (rank + 1) // size
    local = tensor[low:high].clone()
    local.global_shape = tuple(tensor.shape)  # type: ignore[attr-defined]
    local.global_offsets = ((low, *([0] * (tensor.dim() - 1))),)  # type: ignore[attr-defined]
    local.local_offsets = ((0,) * tensor.dim(),)  # type: ignore[attr-defined]
    local.local_sizes = (tuple(local.shape),)  # type: ignore[attr-defined]
    return local


def load_uncoordinated(rank: int, size: int, path: str) -> int:
    target = checkpointable(torch.zeros(SHAPES["a"]), rank, size)
    state = {
        "a": target,
        "same": torch.zeros(5, dtype=torch.int64),
        "step": 0,
        "m": varve.torch.PerRank(0),
    }
    varve.torch.load(state, path)
    torch.testing.assert_close(
        target.detach(), checkpointable(whole("a"), rank, size).detach(), rtol=0, atol=0
    )
    assert state["same"].tolist() == [0, 1, 2, 3, 4] and state["step"] == 4
    return state["m"].value


def save_sharded_tensor(rank: int, size: int, path: str) -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(size)])
    tensor = sharded_tensor.empty(spec, 10, 6)
    for shard in tensor.local_shards():
        low = shard.metadata.shard_offsets[0]
        shard.tensor.copy_(whole("a")[low : low + shard.tensor.shape[0]])
    varve.torch.save({"a": tensor}, path)


def pipeline_stages(rank: int, size: int, path: str) -> None:
    """Ranks hold different layers, as in pipeline parallelism."""
    varve.torch.save({"layers": {rank: torch.full((4,), float(rank))}, "step": 1}, path)
    state = {"layers": {rank: torch.zeros(4)}, "step": 0}
    varve.torch.load(state, path)
    assert state["layers"][rank].tolist() == [float(rank)] * 4


def many_saves(rank: int, size: int, path: str, count: int) -> None:
    for step in range(count):
        state = {"w": torch.full((100,), float(step)), "r": varve.torch.PerRank(random.random())}
        varve.torch.save(state, path, overwrite=True)


def _rows_of(rank: int, size: int, rows: int, step: int) -> dict[str, Any]:
    """Entries of which every rank has the rows from `rows * rank // size` on."""
    whole = torch.arange(rows * 5, dtype=torch.float64).reshape(rows, 5) + step
    mesh = init_device_mesh("cpu", (size,))
    return {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "same": whole.clone(),
        "step": step,
    }


def save_many_ways(rank: int, size: int, directory: str) -> None:
    for step in range(3):
        varve.torch.save(_rows_of(rank, size, size, step), directory + "/saved", overwrite=True)
        varve.torch.async_save(
            _rows_of(rank, size, size, step + 10), directory + "/later", overwrite=True
        ).result()


def load_many_ways(rank: int, size: int, directory: str, rows: int) -> None:
    for name, step in {"saved": 2, "later": 12}.items():
        wanted = _rows_of(rank, size, rows, step)
        target = _rows_of(rank, size, rows, -1)
        varve.torch.load(target, f"{directory}/{name}")
        assert target["step"] == step
        assert torch.equal(target["same"], wanted["same"])
        assert torch.equal(target["sharded"].to_local(), wanted["sharded"].to_local())


def save_after_a_restart(rank: int, size: int, directory: str) -> None:
    """torch.distributed goes down and comes up again in the same processes."""
    for attempt in range(2):
        if attempt:
            dist.destroy_process_group()
            dist.init_process_group(
                "gloo", init_method=f"file://{directory}/again", rank=rank, world_size=size
            )
        for coordinate in (True, False):
            path = os.path.join(directory, f"step-{attempt}-{coordinate}")
            state = {"a": checkpointable(whole("a"), rank, size)}
            varve.torch.save(state, path, coordinate=coordinate)


def save_in_own_group(rank: int, size: int, path: str) -> None:
    group = dist.new_group([0, 1])
    if rank < 2:
        state = {"a": checkpointable(whole("a"), rank, 2)}
        varve.torch.save(state, path, process_group=group)


def rank_0_saves_alone(rank: int, size: int, directory: str) -> None:
    """Saves and loads on rank 0 by every way; no other rank makes a call before the barrier."""
    if rank == 0:
        for executor in ("thread", "process"):
            with varve.torch.Stager(ALONE, executor=executor) as stager:
                path = f"{directory}/{executor}"
                varve.torch.async_save({"a": whole("a")}, path, stager=stager).result(60)
        varve.torch.save({"a": whole("a")}, f"{directory}/call", process_group=ALONE)
        loaded = {"a": torch.zeros(SHAPES["a"])}
        varve.torch.load(loaded, f"{directory}/call", process_group=ALONE)
        assert torch.equal(loaded["a"], whole("a"))
    dist.barrier()


def save_olmo_legacy_dtensors(rank: int, size: int, directory: str) -> None:
    """Writes this rank's file of OLMo's torch_legacy layout, with DTensors on two meshes."""
    line = init_device_mesh("cpu", (size,))
    grid = init_device_mesh("cpu", (size // 2, 2))
    model = {
        "rows": distribute_tensor(whole("a"), line, [Shard(0)]),
        "hybrid": distribute_tensor(whole("a"), grid, [Replicate(), Shard(1)]),
        "both": distribute_tensor(whole("c"), grid, [Shard(0), Shard(1)]),
    }
    torch.save({"model": model, "global_step": 3}, f"{directory}/rank{rank}.pt")


def dtensors_on_their_own(rank: int, size: int, path: str) -> tuple[list[str], list[str]]:
    """Returns the DTensors that Python has added one by one, to a save and to a load."""
    mesh = init_device_mesh("cpu", (size,))
    whole_tensor = torch.arange(48.0).reshape(8, 6)
    strided = [_StridedShard(0, split_factor=2)]
    half = whole_tensor.reshape(2, size, -1, 6)[:, rank].reshape(-1, 6)
    columns = distribute_tensor(whole_tensor, mesh, [Shard(1)])
    state = {
        "rows": distribute_tensor(whole_tensor, mesh, [Shard(0)]),
        "replicated": distribute_tensor(whole_tensor, mesh, [Replicate()]),
        "uneven": distribute_tensor(whole_tensor[:5], mesh, [Shard(0)]),
        "parameter": torch.nn.Parameter(distribute_tensor(whole_tensor, mesh, [Shard(0)])),
        "columns": columns,
        "transposed": columns.t(),
        "few": distribute_tensor(whole_tensor[:1], mesh, [Shard(0)]),
        "two boxes": DTensor.from_local(half, mesh, strided, shape=(8, 6), stride=(6, 1)),
    }
    apart: tuple[list[str], list[str]] = ([], [])

    class Watched(TorchArrays):
        def add_sources(self, into: Any, fqn: str, tensor: Any) -> None:
            apart[0].append(fqn)
            super().add_sources(into, fqn, tensor)

        def add_targets(self, into: Any, fqn: str, tensor: Any) -> None:
            apart[1].append(fqn)
            super().add_targets(into, fqn, tensor)

    varve.torch._save.TorchArrays = varve.torch.TorchArrays = Watched  # type: ignore[misc]
    varve.torch.save(state, path)
    zeros = {
        name: DTensor.from_local(
            torch.zeros_like(tensor.to_local()),
            mesh,
            tensor.placements,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
        for name, tensor in state.items()
    }
    varve.torch.load(zeros, path)
    for name, tensor in state.items():
        torch.testing.assert_close(zeros[name].to_local(), tensor.to_local(), rtol=0, atol=0)
    return apart
