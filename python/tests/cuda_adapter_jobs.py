"""Run by test_cuda_adapters.py in a process with the stand-in for CUDA's driver: OLMo's, hfai's and torch's own ways.

Arguments: the stand-in's library, a function's. The memory of a device cannot be read by this process: whatever torch
would copy ends it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_stand_in
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from cuda_stand_in import device_of, on_device, peek
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor.shard import Shard

import varve.hfai
import varve.olmo as olmo
import varve.torch
from varve import _core
from varve.hfai import _load
from varve.olmo import _apart, _fsdp, _gathered, _pickle
from varve.olmo._steps import Steps
from varve.torch import _by_torch, _devices, _tensors

ONE = torch.device("cuda", 1)


class Counts(ctypes.Structure):
    """FakeCudaCounts of tests/support/fake_cuda.h."""

    _names = (
        "copies copies_under_way most_at_once batches kernels kernel_bytes bytes_queued most_bytes_queued "
        "registered_bytes registrations_now registrations unregistered_late to_registered to_pageable "
        "from_registered from_pageable contexts streams events modules"
    )
    _fields_ = [(name, ctypes.c_uint64) for name in _names.split()]


def pageable() -> int:
    """The bytes that were ever copied between devices and memory that is not registered."""
    counts = cuda_stand_in.driver.fake_cuda_counts()
    return int(counts.to_pageable + counts.from_pageable)


def parameter(module: torch.nn.Module, name: str, content: torch.Tensor) -> None:
    setattr(module, name, torch.nn.Parameter(on_device(content, 0)))


def a_training() -> tuple[torch.nn.Module, torch.optim.Optimizer, dict[str, torch.Tensor]]:
    """A model and an optimizer whose tensors are on a device, and what is in them by the model's and state's names."""
    contents = {"weight": torch.rand(300, 700), "bias": torch.rand(300)}
    model = torch.nn.Linear(700, 300, device="meta")
    for name, content in contents.items():
        parameter(model, name, content)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    for name, held in model.named_parameters():
        state: dict[str, Any] = {"step": torch.tensor(3.0)}
        for key in ("exp_avg", "exp_avg_sq"):
            contents[f"{name}.{key}"] = content = torch.rand_like(contents[name])
            state[key] = on_device(content, 1)
        optim.state[held] = state
    return model, optim, contents


class Config:
    save_overwrite = False

    def save(self, path: Any) -> None:
        Path(path).write_text("run_name: test\n")


def rank_files(directory: str) -> dict[str, Any]:
    """Saves OLMo's layouts of one file a rank, and looks at what torch finds in them."""
    model, optim, contents = a_training()
    out: dict[str, Any] = {}
    folder = Path(directory)
    kinds: Any = olmo
    kinds.TorchLegacyShardedCheckpointer(Config()).save_checkpoint(
        folder / "legacy", model, optim, {"global_step": 3}
    )
    found = torch.load(folder / "legacy" / "rank0.pt", weights_only=False)
    out["legacy"] = all(torch.equal(found["model"][n], contents[n]) for n in ("weight", "bias"))
    out["legacy-optim"] = [
        torch.equal(found["optim"]["state"][name][key], contents[f"{name}.{key}"])
        for name in ("weight", "bias")
        for key in ("exp_avg", "exp_avg_sq")
    ]
    kinds.LocalShardedCheckpointer(Config()).save_checkpoint(folder / "local", model, optim, {})
    read = varve.torch.read(folder / "local")
    out["local"] = all(torch.equal(read["model"][n], contents[n]) for n in ("weight", "bias"))
    out["local-optim"] = torch.equal(
        read["optim"]["state"]["weight"]["exp_avg"], contents["weight.exp_avg"]
    )
    # A part of a larger memory is stored alone.
    whole = on_device(torch.arange(1_000_000), 0)
    _pickle.write(folder / "part.pt", {"part": _pickle.on_cpu(whole[5000:6000])})
    out["part"] = torch.load(folder / "part.pt")["part"].tolist() == list(range(5000, 6000))
    out["part-bytes"] = (folder / "part.pt").stat().st_size
    state = {"model": dict(model.state_dict()), "x": 3}
    _apart.write_dcp(folder / "apart", state, Steps(None))
    again = varve.torch.read(folder / "apart")
    out["apart"] = all(torch.equal(again["model"][n], contents[n]) for n in ("weight", "bias"))
    out["pageable"] = pageable()
    return out


def shards(directory: str) -> dict[str, Any]:
    """Copies a shard of FSDP1's kind to the CPU, and state of an optimizer to a device."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    content = torch.rand(3000, 1000)
    shard = Shard.from_tensor_and_offsets(on_device(content, 1), [0, 0], 0)
    tensor = sharded_tensor.init_from_local_shards([shard], 3000, 1000)
    for each in (tensor.metadata().shards_metadata[0], shard.metadata):
        each.placement._device = ONE
    made = _gathered._sharded_on_host(tensor)
    out: dict[str, Any] = {
        "shard": torch.equal(made.local_shards()[0].tensor, content),
        "alone": made.cpu() is made,
        "others": str(tensor.metadata().shards_metadata[0].placement.device()),
    }
    transposed = _devices.on_host(on_device(content, 0).t())
    out["transposed"] = torch.equal(transposed, content.t()) and transposed.stride() == (1, 1000)
    parameter: Any = SimpleNamespace(device=ONE)
    placed = _fsdp._beside(parameter, "exp_avg", content.t(), False)
    out["placed"] = device_of(placed) == 1 and torch.equal(peek(placed.t()).t(), content.t())
    out["step"] = device_of(_fsdp._beside(parameter, "step", torch.tensor(1.0), False))
    target, half = on_device(torch.zeros(3000, 1000), 0), on_device(torch.zeros(30), 0)
    before = target._version
    _by_torch._fill([(target, content.t().contiguous().t(), ""), (half, torch.ones(30), "")])
    out["filled"] = torch.equal(peek(target), content) and peek(half).tolist() == [1] * 30
    out["noted"] = target._version > before
    varve.torch.save({"pair": (on_device(torch.arange(4), 0), 3)}, f"{directory}/pair")
    pair = varve.torch.read(f"{directory}/pair")["pair"]
    out["value"] = pair[0].tolist() == [0, 1, 2, 3] and pair[1] == 3
    # What torch stores conjugated is made plain on its way.
    numbers = torch.complex(torch.rand(1000, 1000), torch.rand(1000, 1000))
    torch_dcp.save({"z": numbers.conj()}, checkpoint_id=f"{directory}/conj")
    into = {"z": on_device(torch.zeros_like(numbers), 1)}
    report = varve.torch.load(into, f"{directory}/conj")
    out["conj"] = torch.equal(peek(into["z"]), numbers.conj().resolve_conj())
    out["conj-bytes"] = report.device_bytes == numbers.nbytes
    out["pageable"] = pageable()
    dist.destroy_process_group()
    return out


def hfai(directory: str) -> dict[str, Any]:
    """Saves by hfai's function from devices, and loads onto one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optim, contents = a_training()
    reports: list[Any] = []
    save = _core.save

    def noted(*arguments: Any) -> Any:
        reports.append(save(*arguments))
        return reports[-1]

    _core.save = noted
    where = f"{directory}/latest.pt"
    varve.hfai.save(where, model, optim, {"epoch": 3})
    out: dict[str, Any] = {
        "device_bytes": reports[0].device_bytes,
        "pageable_bytes": reports[0].pageable_bytes,
        "sum": sum(content.nbytes for content in contents.values()),
    }
    for name, mmap in (("loaded", False), ("mmap", True)):
        loaded = varve.hfai.load(where, map_location="cuda:1", mmap=mmap)
        held = loaded["model"]["weight"]
        out[name] = device_of(held) == 1 and torch.equal(peek(held), contents["weight"])
    olmos: Any = olmo.FullCheckpointer(Config())  # type: ignore[arg-type]
    olmos.save_checkpoint(f"{directory}/full", model, optim, {})
    whole, states = olmos.load_checkpoint(f"{directory}/full", device=ONE)
    out["olmo"] = torch.equal(peek(whole["bias"]), contents["bias"])
    moment = states["state"]["bias"]["exp_avg"]
    out["olmo-optim"] = torch.equal(peek(moment), contents["bias.exp_avg"])
    found = olmo.load_state_dict(f"{directory}/full", "model.pt", map_location="cuda:1")
    out["olmo-file"] = torch.equal(peek(found["weight"]), contents["weight"])
    out["pageable"] = pageable()
    dist.destroy_process_group()
    return out


def install(library: str) -> None:
    """As cuda_stand_in's, and makes new tensors of CUDA devices there."""
    cuda_stand_in.install(library)
    cuda_stand_in.driver.fake_cuda_counts.restype = Counts
    _devices._made_on = lambda device, like: on_device(  # type: ignore[assignment]
        torch.zeros(like.t().shape if like.stride()[0] == 1 else like.shape, dtype=like.dtype),
        device.index or 0,
    ).as_strided(like.shape, like.stride())
    create = _tensors.TorchArrays.create

    def made(self: Any, fqn: str, dtype: int, shape: Any, origin: str, like: Any = None) -> Any:
        device = self._device
        if device is None or torch.device(device).type != "cuda":
            return create(self, fqn, dtype, shape, origin, like)
        return on_device(torch.zeros(shape, dtype=self.dtype_at(dtype)), device.index or 0)

    _tensors.TorchArrays.create = made  # type: ignore[method-assign]
    # They are there, and say that they are on the CPU.
    _load._placed = lambda tensor, _: tensor  # type: ignore[assignment]
    for module in (olmo._whole, olmo._files):  # type: ignore[attr-defined]
        module.moved = lambda value, _: value


if __name__ == "__main__":
    install(sys.argv[1])
    jobs: dict[str, Any] = {"rank_files": rank_files, "shards": shards, "hfai": hfai}
    print(json.dumps(jobs[sys.argv[2]](*sys.argv[3:])))
