"""Functions that ranks run in test_load_ranks.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from storage_jobs import registered
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, zeros

import varve
import varve.torch
import varve.torch.dcp as dcp


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5, dtype=dtype), torch.nn.Linear(5, 6, dtype=dtype)
    )


def sharded(size: int, device: str, dtype: torch.dtype = torch.float32) -> Any:
    with torch.device(device):
        model = network(dtype)
    return fully_shard(model, mesh=init_device_mesh("cpu", (size,)))


def load_beside_a_mesh(rank: int, size: int, path: str) -> tuple[int, list[str]]:
    """Loads a DTensor of a mesh without rank 0; returns how much was loaded, and warnings."""
    tensor = zeros(4, device_mesh=DeviceMesh("cpu", list(range(1, size))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = varve.torch.load({"w": tensor}, path)
    return report.loaded, [str(each.message) for each in caught if path in str(each.message)]


def load_sharded(rank: int, size: int, path: str) -> None:
    """Modules of FSDP2 as destinations: on the CPU, of another dtype, and on the meta device."""
    expected = network().state_dict()
    for device, dtype, options in (
        ("cpu", torch.float32, {}),
        ("cpu", torch.bfloat16, {"cast": True}),
        ("meta", torch.float32, {"assign": True}),
        ("meta", torch.bfloat16, {"assign": True, "cast": True}),
    ):
        model = sharded(size, device, dtype)
        if device == "cpu":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
        report = varve.torch.load(model, path, rename={"model.": ""}, **options)
        assert report.loaded == 4
        assert report.unexpected == ["step"]
        for name, tensor in model.state_dict().items():
            whole = tensor.full_tensor()
            assert whole.dtype is dtype
            assert torch.equal(whole, expected[name].to(dtype)), (name, device, dtype)
        assert all(parameter.requires_grad for parameter in model.parameters())


def load_stages(rank: int, size: int, path: str) -> list[str]:
    """Each rank has a layer of its own, and together they want all but the step."""
    layer = network()[rank]
    with torch.no_grad():
        layer.weight.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = varve.torch.load({"model": {str(rank): layer}}, path)
    assert torch.equal(layer.weight, network()[rank].weight)
    assert report.loaded == 2
    return report.unexpected


def load_nothing_on_one_rank(rank: int, size: int, path: str) -> None:
    state: dict[str, Any] = {"step": 0} if rank == 0 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load(state, path)
    assert rank != 0 or state["step"] == 5


def load_with_a_bad_argument_on_one_rank(rank: int, size: int, path: str) -> None:
    bad: dict[str, Any] = {"keys": 3} if rank == 1 else {}
    varve.torch.load({"step": 0}, path, timeout=60.0, **bad)


def load_strictly_on_one_rank(rank: int, size: int, path: str) -> None:
    varve.torch.load({"step": 0, "not there": 1}, path, strict=rank == 1)


def call_with_a_bad_option_on_one_rank(rank: int, size: int, path: str, call: str) -> None:
    """The option is refused before the engine is asked; rank 0 is in the call already."""
    bad: dict[str, Any] = {"load": {"strict": 3}, "save": {"overwrite": "yes"}}.get(
        call, {"retries": "many"}
    )
    options: Any = {"timeout": 60.0, **(bad if rank == 1 else {})}
    if call == "load":
        varve.torch.load({"step": 0}, path, **options)
    elif call == "save":
        varve.torch.save({"step": 0}, f"{path}-new", **options)
    else:
        varve.torch.async_save({"step": 0}, f"{path}-new", **options).result(60.0)


def load_into_shared_memory_on_one_rank(rank: int, size: int, path: str) -> None:
    target = torch.full((5, 6), 7.0)
    if rank == 1:
        target = torch.full((6,), 7.0).expand(5, 6)
    try:
        varve.torch.load({"model": {"0.weight": target}}, path, timeout=60.0)
    finally:
        assert bool((target == 7).all())


def load_and_count(
    rank: int, size: int, path: str, layout: str, by: str, share: bool
) -> tuple[int, int]:
    """Returns the bytes that this process had from the disk, and those of the report."""
    mesh = init_device_mesh("cpu", (size,))
    placement = {"columns": Shard(1), "rows": Shard(0)}.get(layout, Replicate())
    tensor: Any = torch.zeros(4096, 4096)
    if layout != "plain":
        tensor = zeros(4096, 4096, device_mesh=mesh, placements=[placement])
    state: dict[str, Any] = {"w": tensor}
    loads = {
        "varve.torch.load": lambda: varve.torch.load(state, path, share=share, keys=["w"]),
        "varve.torch.dcp": lambda: dcp.load(state, checkpoint_id=path),
        "torch": lambda: torch_dcp.load(state, storage_reader=dcp.FileSystemReader(path)),
    }
    dist.barrier()
    before = bytes_from_disk()
    report = loads[by]()
    read = bytes_from_disk() - before
    whole = tensor if layout == "plain" else tensor.full_tensor()
    assert torch.equal(whole, numbered())
    return read, 0 if report is None else report.storage_bytes


def load_as_of_two_nodes(rank: int, size: int, path: str, layout: str, by: str) -> tuple[int, int]:
    """As load_and_count, by ranks that take themselves for those of two nodes."""
    os.environ["VARVE_NODE"] = f"node {rank % 2}"
    return load_and_count(rank, size, path, layout, by, True)


def load_from_a_store_and_count(rank: int, size: int, folder: str, by: str, share: bool) -> int:
    """Returns the bytes of data files that this rank asked the store for."""
    store = registered("obstore", folder)
    asked = 0
    read = store.read

    def counted(name: str, offset: int, into: memoryview, version: str) -> None:
        nonlocal asked
        asked += len(into) if name.endswith(".safetensors") else 0
        read(name, offset, into, version)

    store.read = counted
    state = {"w": torch.zeros(4096, 4096)}
    dist.barrier()
    if by == "varve.torch.load":
        varve.torch.load(state, "own://run/step", share=share)
    else:
        dcp.load(state, checkpoint_id="own://run/step")
    assert torch.equal(state["w"], numbered())
    return asked


def numbered() -> torch.Tensor:
    return torch.arange(4096.0 * 4096).reshape(4096, 4096)


def bytes_from_disk() -> int:
    """Returns the bytes that this process has had the system read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


class _OwnEntries(dcp.FileSystemReader):
    """Adds a tensor to the index that it fills itself."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        metadata = super().read_metadata(*args, **kwargs)
        metadata.state_dict_metadata["extra"] = metadata.state_dict_metadata["w"]
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        mine = [item for item in plan.items if item.dest_index.fqn == "extra"]
        rest = [item for item in plan.items if item.dest_index.fqn != "extra"]
        for item in mine:
            planner.resolve_tensor(item).fill_(7)
        return super().read_data(dataclasses.replace(plan, items=rest), planner)


def load_with_an_entry_of_the_readers_own(rank: int, size: int, path: str) -> float:
    state = {"w": torch.zeros(4), "extra": torch.zeros(4)}
    torch_dcp.load(state, storage_reader=_OwnEntries(path))
    assert torch.equal(state["w"], torch.ones(4))
    return float(state["extra"][0])


def load_a_tensor_each(rank: int, size: int, path: str) -> str:
    """Returns the error of a load in which each rank wants a tensor of its own."""
    try:
        varve.torch.load({str(rank): torch.zeros(1 << 20)}, path)
    except varve.CorruptCheckpointError as error:
        return str(error)
    return ""
