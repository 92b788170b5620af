"""Functions that ranks run in test_olmo.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import varve.olmo as olmo
from varve.olmo import _gathered, _sharded

CPU = torch.device("cpu")
CHECKPOINTERS = {
    "full": olmo.FullCheckpointer,
    "torch_new": olmo.TorchNewStyleShardedCheckpointer,
    "torch_legacy": olmo.TorchLegacyShardedCheckpointer,
    "local": olmo.LocalShardedCheckpointer,
    "olmo_core": olmo.OlmoCoreCheckpointer,
}


class Config:
    """The part of OLMo's configuration that checkpointers use."""

    def __init__(self, overwrite: bool = False, kind: Any = "local") -> None:
        self.save_overwrite = overwrite
        self.sharded_checkpointer = kind

    def save(self, path: Any) -> None:
        Path(path).write_text("run_name: test\n")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 11)
        self.down = nn.Linear(11, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(self.norm(x)))
        out: torch.Tensor = x + self.down(hidden)
        return out


class Net(nn.Module):
    """A small transformer without attention; no size is a multiple of a world size."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.scale = nn.Parameter(torch.ones(()) * 3) if buffer else nn.Parameter(torch.ones(1))
        if buffer:
            self.register_buffer("seen", torch.arange(5))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.embed(index)
        for block in self.blocks:
            x = block(x)
        return (x * self.scale).sum()


class Counting(nn.Linear):
    """A module with a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.calls = 7

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


def wrapped(kind: str, net: Net, size: int) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(net)
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (size,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net
    if kind == "plain":
        return net
    strategy, groups = ShardingStrategy.FULL_SHARD, None
    if kind == "no_shard":
        strategy = ShardingStrategy.NO_SHARD
    if kind == "hybrid":
        strategy = ShardingStrategy.HYBRID_SHARD
        groups = init_device_mesh("cpu", (2, size // 2))
    options: dict[str, Any] = {
        "use_orig_params": kind != "flat",
        "device_id": CPU,
        "sharding_strategy": strategy,
        "device_mesh": groups,
    }
    for i, block in enumerate(net.blocks):
        net.blocks[i] = FullyShardedDataParallel(block, **options)
    return FullyShardedDataParallel(net, **options)


def made(kind: str, size: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = wrapped(kind, Net(), size)
    if kind == "flat":
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)
    decay = [p for name, p in model.named_parameters() if "norm" not in name]
    rest = [p for name, p in model.named_parameters() if "norm" in name]
    groups = [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01)


def trained(kind: str, size: int, seed: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optim = made(kind, size, seed)
    for step in range(2):
        optim.zero_grad()
        model(torch.arange(13) * (step + 1) % 13).backward()
        optim.step()
    return model, optim


def truth(model: nn.Module, optim: torch.optim.Optimizer) -> bytes:
    """Whole states by names, as PyTorch gathers them."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=False)
    states = {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, optim, options=options),
    }
    file = io.BytesIO()
    torch.save(states, file)
    return file.getvalue()


def shards_in(state: Any) -> list[torch.Tensor]:
    """The parts that a rank holds of the sharded tensors of a state."""
    if isinstance(state, dict):
        return [shard for item in state.values() for shard in shards_in(item)]
    if isinstance(state, ShardedTensor):
        return [shard.tensor for shard in state.local_shards()]
    return [state._local_tensor] if isinstance(state, DTensor) else []


def copied_shards(rank: int, size: int) -> list[list[Any]]:
    """Of several kinds: which of FSDP's shards went through `on_host`, and whether they are torch's."""
    out = []
    on_host, with_engine = _gathered.on_host, _sharded.shards_on_host
    for kind in ("fsdp1", "flat", "hybrid"):
        model, optim = trained(kind, size)
        copied: list[torch.Tensor] = []

        def noted(tensor: torch.Tensor, into: Any = copied) -> torch.Tensor:
            into.append(on_host(tensor))
            return into[-1]  # type: ignore[no-any-return]

        _gathered.on_host = noted
        found = shards_in(_sharded._sharded_state(model, optim))
        _sharded.shards_on_host = contextlib.nullcontext  # type: ignore[assignment]
        wanted = shards_in(_sharded._sharded_state(model, optim))
        _sharded.shards_on_host = with_engine
        same = all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        passed = {tensor.data_ptr() for tensor in copied}
        out.append([kind, len(found) > 0, same, all(shard.data_ptr() in passed for shard in found)])
    return out


def state_of_trainer(rank: int) -> dict[str, Any]:
    return {"global_step": 100, "rng": {"cpu": torch.arange(4, dtype=torch.uint8), "rank": rank}}


def save(rank: int, size: int, kind: str, layout: str, path: str, seed: int = 1) -> bytes:
    model, optim = trained(kind, size, seed)
    checkpointer = CHECKPOINTERS[layout](Config(overwrite=True))
    checkpointer.save_checkpoint(path, model, optim, state_of_trainer(rank))
    return truth(model, optim)


def restore(rank: int, size: int, kind: str, path: str) -> tuple[bytes, Any]:
    model, optim = made(kind, size, 2)
    checkpointer = olmo.build_sharded_checkpointer(Config())
    state = checkpointer.restore_checkpoint(path, model, optim)
    found = truth(model, optim)
    model(torch.arange(13)).backward()  # Training goes on.
    optim.step()
    return found, {"global_step": state["global_step"], "rank": state["rng"]["rank"]}


def average_norms(rank: int, size: int, path: str) -> list[list[str]]:
    """Every rank keeps an average for every parameter, also where it holds nothing of it."""
    model, optim = trained("fsdp1", size)
    for parameter in model.parameters():
        optim.state[parameter]["grad_norm_exp_avg"] = torch.tensor(0.25)
    olmo.LocalShardedCheckpointer(Config()).save_checkpoint(path, model, optim, {})
    other, again = made("fsdp1", size, 3)
    olmo.LocalShardedCheckpointer(Config()).restore_checkpoint(path, other, again)
    other(torch.arange(13)).backward()
    again.step()
    assert all(again.state[p]["grad_norm_exp_avg"] == 0.25 for p in other.parameters())
    return [sorted(again.state[p]) for p in other.parameters()]


def resident(field: str) -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at most since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def memory_of_full(rank: int, size: int, path: str) -> tuple[int, int]:
    """How far a save and a restore of 512 MiB raise this rank's memory."""
    layers = [nn.utils.skip_init(nn.Linear, 4096, 4096, bias=False) for _ in range(8)]
    options: dict[str, Any] = {"use_orig_params": True, "device_id": CPU}
    net = nn.Sequential(*[FullyShardedDataParallel(layer, **options) for layer in layers])
    model = FullyShardedDataParallel(net, **options)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = olmo.FullCheckpointer(Config())
    before = forget_peak()
    checkpointer.save_checkpoint(path, model, optim, {"a": 1})
    saved = resident("VmHWM") - before
    before = forget_peak()
    checkpointer.restore_checkpoint(path, model, optim)
    return saved, resident("VmHWM") - before


def save_on_nodes(rank: int, size: int, layout: str, root: str) -> str:
    """Ranks of a node share a directory, which stands for its disk."""
    os.environ["FS_LOCAL_RANK"] = str(rank % 2)
    disk = Path(root) / f"node{rank // 2}"
    disk.mkdir(exist_ok=True)
    model, optim = trained("fsdp1", size)
    path = disk / "step1"
    CHECKPOINTERS[layout](Config()).save_checkpoint(path, model, optim, state_of_trainer(rank))
    return str(path)


def save_own_states(rank: int, size: int, layout: str, path: str) -> Any:
    """Saves trainers' states that differ between the ranks in every way, and restores them."""
    model, optim = trained("fsdp1", size)
    state: dict[str, Any] = {"rank": rank, "t": torch.arange(rank + 3), "l": [rank] * rank}
    if rank == 1:
        state["alone"] = Path("/a")
    checkpointer = CHECKPOINTERS[layout](Config())
    checkpointer.save_checkpoint(path, model, optim, state)
    found = checkpointer.restore_checkpoint(path, model, optim)
    return {**found, "t": found["t"].tolist()} == {**state, "t": state["t"].tolist()}


def save_other_steps(rank: int, size: int, path: str) -> None:
    model, optim = trained("fsdp1", size)
    checkpointer = CHECKPOINTERS["torch_legacy"](Config())
    checkpointer.save_checkpoint(path, model, optim, {"global_step": rank})


def wrong_groups(rank: int, size: int, path: str) -> str:
    """Restores into an optimizer of other groups; returns the class of the error."""
    model, _ = made("fsdp1", size, 2)
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    try:
        olmo.FullCheckpointer(Config()).restore_checkpoint(path, model, torch.optim.AdamW(groups))
    except AssertionError as error:
        return type(error).__name__
    return "nothing"


def restore_on_nodes(rank: int, size: int, root: str) -> tuple[bytes, Any]:
    return restore(rank, size, "fsdp1", str(Path(root) / f"node{rank // 2}" / "step1"))


def fail_on_one(rank: int, size: int, layout: str, path: str) -> str:
    """The trainer's state of rank 1 cannot be stored."""
    model, optim = trained("fsdp1", size)
    state: dict[str, Any] = {"step": 1, "bad": (lambda: 0) if rank == 1 else 0}
    try:
        CHECKPOINTERS[layout](Config()).save_checkpoint(path, model, optim, state)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "saved"
