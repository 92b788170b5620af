"""What ranks do in test_hf.py."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import varve
import varve.torch


def whole_state(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of many sizes and dtypes, from the seed alone."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.int64]
    state = {}
    for number in range(draw.randrange(1, 14)):
        shape = [draw.choice([1, 2, 3, 7, 64, 129, 500]) for _ in range(draw.randrange(4))]
        if draw.random() < 0.05:
            shape = [0, 3]
        values = torch.randint(0, 200, shape, generator=generator)
        state[f"layer{number}.w"] = values.to(draw.choice(dtypes))
    return state


def sharded(state: dict[str, torch.Tensor], mesh: Any, draw: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, tensor in state.items():
        dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 0]
        placement = draw.choice([Replicate(), None, *map(Shard, dims)])
        made[name] = tensor if placement is None else distribute_tensor(tensor, mesh, [placement])
    return made


def save_random_states(
    rank: int, size: int, directory: str, seeds: list[int], executor: str | None
) -> None:
    mesh = init_device_mesh("cpu", (size,))
    for seed in seeds:
        draw = random.Random(seed)
        state = sharded(whole_state(seed), mesh, draw)
        hf = varve.HfOptions(shard_size=draw.choice([1, 10_000, 300_000, 5_000_000_000]))
        path = f"{directory}/{seed}"
        if executor is None:
            varve.torch.save(state, path, format="hf", hf=hf)
        else:
            varve.torch.async_save(state, path, format="hf", hf=hf, executor=executor).result(120)


def llama(tied: bool = True) -> Any:
    import transformers

    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=1003,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config)


def save_llama(rank: int, size: int, path: str, how: str) -> dict[str, Any]:
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    hf = varve.HfOptions(config=model.config, shard_size=200_000)
    if how == "save":
        varve.torch.save(model.state_dict(), path, format="hf", hf=hf)
    else:
        handle = varve.torch.async_save(model.state_dict(), path, format="hf", hf=hf, executor=how)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        handle.result(120)
    fresh = llama()
    target = fresh.state_dict()
    del target["lm_head.weight"]  # Tied.
    return {"loaded": varve.torch.load(target, path).loaded}


def refused(rank: int, size: int, path: str, case: str) -> str:
    state: dict[str, Any] = {"w": torch.ones(4)}
    hf = varve.HfOptions()
    if case == "a value":
        state["step"] = 7
    elif case == "complex":
        state["c"] = torch.ones(3, dtype=torch.complex128)
    elif case == "other sizes":
        hf = varve.HfOptions(shard_size=100 + rank)
    elif case == "rank 1's rename":
        hf = varve.HfOptions(rename=lambda name: "x" if rank == 0 else 7)  # type: ignore[arg-type, return-value]
    elif case == "columns":
        mesh = init_device_mesh("cpu", (size,))
        local = torch.ones(1, 1).expand(600_000, 256)  # 1.2 GiB of all ranks, which are no memory.
        state["w"] = DTensor.from_local(local, mesh, [Shard(1)], run_check=False)
    elif case == "tiny columns":
        mesh = init_device_mesh("cpu", (size,))
        local = torch.ones(1, 1).expand(5_000_000, 1)
        state["w"] = DTensor.from_local(local, mesh, [Shard(1)], run_check=False)
    elif case == "rank 1's hf":
        hf = varve.HfOptions() if rank == 0 else {"dtype": "bfloat16"}  # type: ignore[assignment]
    elif case == "a Partial":
        mesh = init_device_mesh("cpu", (size,))
        state["layers.0.w"] = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    try:
        varve.torch.save(state, path, format="hf", hf=hf, timeout=60)
    except varve.Error as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def peak(rank: int, size: int, path: str, mebibytes: int) -> int:
    """Returns how far this process's peak memory rose in a save beside the state."""
    mesh = init_device_mesh("cpu", (size,))
    rows = mebibytes * 1024 * 1024 // (4 * 1024 * 8)
    state = {
        f"w{i}": DTensor.from_local(torch.ones(rows // size, 1024), mesh, [Shard(0)])
        for i in range(8)
    }
    varve.torch.save({"small": state["w0"].to_local()[:1]}, path + "-first", format="hf")
    dist.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    varve.torch.save(state, path, format="hf")
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def save_wrapped(rank: int, size: int, directory: str, how: str) -> None:
    """Saves a model that is wrapped, with the model as its configuration."""
    model = llama()
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.FULL_STATE_DICT):
            state = wrapped.state_dict()
    elif how == "fsdp2":
        wrapped = fully_shard(model)
        state = wrapped.state_dict()
    elif how == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        state = model.state_dict()
    else:
        wrapped = torch.compile(model)
        state = model.state_dict()
    hf = varve.HfOptions(config=wrapped, dtype="bf16")
    varve.torch.save(state, f"{directory}/{how}", format="hf", hf=hf)


def overwrite_and_die(rank: int, size: int, path: str, seconds: float) -> None:
    """Overwrites a folder again and again until this rank is killed. Shards by rows."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    mesh = init_device_mesh("cpu", (size,))
    for step in range(1, 1_000_000):
        local = torch.full((500, 301), float(step))
        state = {"w": DTensor.from_local(local, mesh, [Shard(0)])}
        varve.torch.save(state, path, format="hf", overwrite=True)


def _sent(report: Any) -> tuple[int, list[str]]:
    return report.bytes_written, [phase.name for phase in report.phases]


def save_replicas(rank: int, size: int, path: str) -> tuple[int, list[str]]:
    """Saves what all ranks hold, each tensor as a file of its own."""
    state = {f"w{i}": torch.full((500, 100), float(i)) for i in range(6)}
    hf = varve.HfOptions(shard_size=1)
    return _sent(varve.torch.save(state, path, format="hf", hf=hf))


def pipeline(rank: int, size: int, path: str) -> tuple[int, list[str]]:
    """Saves a stage of a pipeline, whose tensors no other rank has."""
    state = {f"w{i}": torch.full((500, 100), float(i)) for i in (2 * rank, 2 * rank + 1)}
    hf = varve.HfOptions(shard_size=2 * 200_000)
    return _sent(varve.torch.save(state, path, format="hf", hf=hf))


def fail_on_one_rank(rank: int, size: int, path: str) -> str:
    """Saves shards, of which rank 1's cannot be read; returns the error."""
    mesh = init_device_mesh("cpu", (size,))
    state: dict[str, Any] = {"w": DTensor.from_local(torch.ones(5, 7), mesh, [Shard(0)])}
    if rank == 1:
        state["c"] = torch.ones(3, dtype=torch.complex128)
    try:
        varve.torch.save(state, path, format="hf", timeout=60)
    except varve.Error as error:
        return str(error)
    return "saved"


def folders(directory: Path) -> list[Path]:
    return sorted(one for one in directory.iterdir() if not one.name.startswith("."))
