"""Functions that ranks run in test_hybrid_shard.py: parameters are sharded in a group, and groups are replicas."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from rank_jobs import SHAPES, whole
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import varve.torch.dcp as dcp


def _mesh(size: int) -> DeviceMesh:
    return init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replica", "shard"))


def _training(mesh: DeviceMesh) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """FSDP2's HYBRID_SHARD: a mesh of two dimensions."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def _state(mesh: DeviceMesh, values: bool) -> dict[str, Any]:
    """As FSDP1 gives it with HYBRID_SHARD: shards of the shard group, not of the world."""
    group = mesh["shard"].get_group()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in ranks])
    legacy = sharded_tensor.zeros(spec, *SHAPES["a"], process_group=group)
    if values:
        rows = SHAPES["a"][0] // size
        legacy.local_shards()[0].tensor.copy_(whole("a")[rank * rows : (rank + 1) * rows])
    of_group = whole("c") if values else torch.zeros(SHAPES["c"])
    return {
        "legacy": legacy,
        "dtensor": distribute_tensor(of_group, mesh["shard"], [Shard(1)]),
        "plain": whole("b") if values else torch.zeros(SHAPES["b"]),
        "step": 7 if values else 0,
    }


def _save(call: str, state: dict[str, Any], path: str, group: Any) -> None:
    if call == "save":
        dcp.save(state, checkpoint_id=path, process_group=group)
        return
    options: dict[str, Any] = {}
    if call == "process":
        options["async_checkpointer_type"] = (
            torch_dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
        )
    dcp.async_save(state, checkpoint_id=path, process_group=group, **options).result()


def one_group_saves(rank: int, size: int, call: str, path: str) -> None:
    """The first shard group saves, the other ranks do not call; then all ranks load."""
    os.environ["MASTER_ADDR"] = "localhost"
    mesh = _mesh(size)
    model, optimizer = _training(mesh)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    saved = {"model": model_state, "optim": optimizer_state, **_state(mesh, True)}
    for _ in range(2):  # The second time over the first.
        if mesh["replica"].get_local_rank() == 0:
            _save(call, saved, path, mesh["shard"].get_group())
    dist.barrier()
    for load in (dcp.load, torch_dcp.load):
        other, its_optimizer = _training(mesh)
        for parameter in other.parameters():
            torch.nn.init.zeros_(parameter)
        model_state, optimizer_state = get_state_dict(other, its_optimizer)
        loaded = {"model": model_state, "optim": optimizer_state, **_state(mesh, False)}
        load(loaded, checkpoint_id=path)
        set_state_dict(
            other,
            its_optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optim"],
        )
        assert _locals(loaded) == _locals(saved)
        assert loaded["step"] == 7
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(ours.to_local(), theirs.to_local())


def _locals(state: dict[str, Any]) -> list[list[float]]:
    """This rank's elements of everything but the model."""
    tensors = [
        state["legacy"].local_shards()[0].tensor,
        state["dtensor"].to_local(),
        state["plain"],
        *(
            moments[name].to_local()
            for moments in state["optim"]["state"].values()
            for name in ("exp_avg", "exp_avg_sq")
        ),
    ]
    return [tensor.flatten().tolist() for tensor in tensors]
