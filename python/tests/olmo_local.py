"""Checkpoints of OLMo's `local` layout as FSDP's flat parameters would give them, made without FSDP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp._flat_param import _ShardParamInfo


@dataclass
class LocalRun:
    """A model whose modules are flat parameters, cut in equal shards.

    Attributes:
        modules: Name of a module to its parameters.
        world_size: Number of shards of each flat parameter.
        copies: How often each shard is stored: the replica groups of HYBRID_SHARD.
        old: Write the metadata of torch 2.0.
    """

    modules: dict[str, dict[str, torch.Tensor]]
    world_size: int
    copies: int = 1
    old: bool = False
    files: dict[str, Any] = field(default_factory=dict)

    def build(self) -> LocalRun:
        """Makes the content of every file, by name; tests change it before `write`."""
        for rank in range(self.world_size * self.copies):
            self.files[f"model/rank{rank}.pt"] = {
                "modules": [
                    {"name": self._wrapped(name), "handles": [self._handle(name, rank)]}
                    for name in self.modules
                ]
            }
            self.files[f"optim/rank{rank}.pt"] = self._optimizer(rank)
            self.files[f"train/rank{rank}.pt"] = {"step": 7, "rng": {"seed": rank}}
        return self

    def write(self, folder: Path) -> Path:
        for part in ("model", "optim", "train"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            torch.save(content, folder / name)
        (folder / "metadata.yaml").write_text(f"world_size: {self.world_size * self.copies}\n")
        (folder / "config.yaml").write_text("run_name: test\n")
        return folder

    def full(self) -> dict[str, torch.Tensor]:
        return {
            f"{module}.{name}".lstrip("."): tensor
            for module, parameters in self.modules.items()
            for name, tensor in parameters.items()
        }

    def moment(self, name: str) -> torch.Tensor:
        return self.full()[name] * 2 + 1

    @staticmethod
    def _wrapped(module: str) -> str:
        return f"_fsdp_wrapped_module.{module}" if module else ""

    def _shards(self, module: str, rank: int) -> list[tuple[bool, int, int, int, int]]:
        """(in_shard, offset, numel, first, last) of each parameter in the rank's shard."""
        parameters = self.modules[module]
        total = sum(tensor.numel() for tensor in parameters.values())
        size = -(-total // self.world_size)
        begin = (rank % self.world_size) * size
        at, found = 0, []
        for tensor in parameters.values():
            first, last = max(at, begin), min(at + tensor.numel(), begin + size)
            if first < last:
                found.append((True, first - begin, last - first, first - at, last - at - 1))
            else:
                found.append((False, 0, 0, 0, 0))
            at += tensor.numel()
        return found

    def _handle(self, module: str, rank: int) -> dict[str, Any]:
        parameters = self.modules[module]
        flat = torch.cat([tensor.flatten() for tensor in parameters.values()])
        size = -(-flat.numel() // self.world_size)
        padded = torch.zeros(size * self.world_size, dtype=flat.dtype)
        padded[: flat.numel()] = flat
        begin = (rank % self.world_size) * size
        padding = max(0, min(size, begin + size - flat.numel()))
        shards = self._shards(module, rank)
        handle: dict[str, Any] = {
            "flat_param.data": padded[begin : begin + size].clone(),
            "flat_param._fqns": list(parameters),
            "flat_param._shapes": [tensor.shape for tensor in parameters.values()],
            "flat_param._numels": tuple(tensor.numel() for tensor in parameters.values()),
            "flat_param._shard_numel_padded": padding,
        }
        if self.old:
            inside = [i for i, shard in enumerate(shards) if shard[0]]
            handle["flat_param._shard_indices"] = (inside[0], inside[-1]) if inside else (0, 0)
            handle["flat_param._shard_param_offsets"] = tuple(
                (shard[3], shard[4]) for shard in shards if shard[0]
            )
        else:
            handle["flat_param._shard_param_infos"] = tuple(
                _ShardParamInfo(*shard) if shard[0] else _ShardParamInfo(False, *[None] * 4)
                for shard in shards
            )
        return handle

    def _optimizer(self, rank: int) -> dict[str, Any]:
        state: dict[int, Any] = {}
        names = []
        for module, parameters in self.modules.items():
            for shard, (name, _) in zip(
                self._shards(module, rank), parameters.items(), strict=True
            ):
                full = f"{module}.{name}".lstrip(".")
                if shard[0]:
                    piece = self.moment(full).flatten()[shard[3] : shard[4] + 1].clone()
                    state[len(names)] = {"step": torch.tensor(3.0), "exp_avg": piece}
                names.append(f"{self._wrapped(module)}.{name}".lstrip("."))
        groups = [{"lr": 0.1, "params": list(range(len(names))), "param_names": names}]
        return {"state": state, "param_groups": groups}
