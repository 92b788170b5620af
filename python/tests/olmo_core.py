"""Checkpoints of OLMo-core's first layout, made without OLMo-core."""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

#: The names of safetensors for the dtypes of the tests.
DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

#: A slice of a tensor: elements [begin, end) of it, flattened.
Range = tuple[int, int]


def safetensors_of(tensors: dict[str, torch.Tensor]) -> bytes:
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        content = bytes(tensor.contiguous().view(torch.uint8).numpy()) if tensor.numel() else b""
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def pickled(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


@dataclass
class Folder:
    """`model/` or `optim/`: the slices of each rank, and the metadata."""

    world_size: int
    form: str
    ranks: list[dict[str, torch.Tensor]] = field(default_factory=list)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranks = [{} for _ in range(self.world_size)]

    def entry(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
        entry: dict[str, Any] = {"shape": list(shape)}
        if self.form != "pair":
            entry |= {"is_sharded": False, "dtype": DTYPES[dtype]}
        entry[self.files_key] = {}
        self.tensors[name] = entry
        return entry

    @property
    def files_key(self) -> str:
        spec = self.form in ("spec", "box")
        return "shard_spec_per_file" if spec else "flattened_offsets_per_file"

    def add(self, name: str, tensor: torch.Tensor, ranges: dict[int, Range]) -> None:
        """Adds a tensor of which each rank of `ranges` holds a range."""
        entry = self.entry(name, tuple(tensor.shape), tensor.dtype)
        flat = tensor.flatten()
        for rank, (begin, end) in ranges.items():
            spec: Any = [begin, end]
            if self.form == "list":
                spec = [spec]
            elif self.files_key == "shard_spec_per_file":
                spec = {
                    "flattened_offsets": [spec],
                    "local_shape": None,
                    "global_offset": None,
                }
            entry[self.files_key][f"rank_{rank}.safetensors"] = spec
            if begin < end:
                self.ranks[rank][name] = flat[begin:end].clone()

    def add_columns(self, name: str, tensor: torch.Tensor) -> None:
        """Adds a tensor of which each rank holds columns, as a DTensor sharded along dimension 1."""
        entry = self.entry(name, tuple(tensor.shape), tensor.dtype)
        step = -(-tensor.shape[1] // self.world_size)
        for rank in range(self.world_size):
            begin = min(rank * step, tensor.shape[1])
            part = tensor[:, begin : begin + step]
            entry[self.files_key][f"rank_{rank}.safetensors"] = {
                "flattened_offsets": None,
                "local_shape": list(part.shape),
                "global_offset": [0, begin],
            }
            self.ranks[rank][name] = part.flatten().clone()

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for rank, tensors in enumerate(self.ranks):
            (folder / f"rank_{rank}.safetensors").write_bytes(safetensors_of(tensors))
        (folder / "metadata.json").write_text(json.dumps({"tensors": self.tensors}))


@dataclass
class CoreRun:
    """A model and its optimizer's state, cut as FSDP cuts one flat parameter of all parameters.

    Attributes:
        parameters: Name to tensor.
        world_size: Number of ranks.
        form: "pair", "list" (`flattened_offsets_per_file` with one range, with a list of ranges),
            "spec" (`shard_spec_per_file`) or "box" (the same; columns for tensors of two dimensions).
        copies: How often each shard is stored.
    """

    parameters: dict[str, torch.Tensor]
    world_size: int
    form: str = "spec"
    copies: int = 1

    def build(self) -> CoreRun:
        ranks = self.world_size * self.copies
        self.model = Folder(ranks, self.form)
        self.optim = Folder(ranks, self.form)
        names = list(self.parameters)
        for name, tensor in self.parameters.items():
            self._add(self.model, name, name, tensor)
            self._add(self.optim, f"state.{name}.__exp_avg", name, self.moment(name))
            first = next(
                (r for r, (begin, end) in self.ranges(name).items() if begin < end), 0
            )  # A rank without elements has no state.
            self.optim.add(f"state.{name}.__step", torch.tensor(3.0), {first: (0, 1)})
        self.model.add("buffer", self.buffer(), {0: (0, 4)})
        self.optim.add("num_param_groups", torch.tensor(2), {0: (0, 1)})
        half = len(names) // 2
        for i, ids in enumerate((range(half), range(half, len(names)))):
            group = {
                **{"lr": 0.1 * (i + 1), "betas": (0.9, 0.95), "params": list(ids)},
                "_param_names": [names[id] for id in ids],
            }
            content = pickled(group)
            self.optim.add(f"param_group{i}", content, {0: (0, content.numel())})
        keys = pickled(["exp_avg", "step"])
        self.optim.add("state_keys", keys, {0: (0, keys.numel())})
        return self

    def write(self, folder: Path) -> Path:
        self.model.write(folder / "model")
        self.optim.write(folder / "optim")
        (folder / "train").mkdir()
        for rank in range(self.world_size * self.copies):
            torch.save({"step": 7, "rng": {"seed": rank}}, folder / f"train/rank{rank}.pt")
        (folder / "config.yaml").write_text("run_name: test\n")
        return folder

    def moment(self, name: str) -> torch.Tensor:
        return self.parameters[name].to(torch.float32) * 2 + 1

    @staticmethod
    def buffer() -> torch.Tensor:
        return torch.tensor([[True, False], [False, True]])

    def ranges(self, name: str) -> dict[int, Range]:
        """The elements of a parameter that each rank holds; (0, 0) where there are none."""
        total = sum(tensor.numel() for tensor in self.parameters.values())
        size = -(-total // self.world_size)
        at = 0
        for other, tensor in self.parameters.items():
            if other == name:
                break
            at += tensor.numel()
        count = self.parameters[name].numel()
        found: dict[int, Range] = {}
        for rank in range(self.world_size * self.copies):
            begin = (rank % self.world_size) * size
            first, last = max(at, begin), min(at + count, begin + size)
            found[rank] = (first - at, last - at) if first < last else (0, 0)
        return found

    def _add(self, folder: Folder, stored: str, name: str, tensor: torch.Tensor) -> None:
        if self.form == "box" and tensor.dim() == 2:
            folder.add_columns(stored, tensor)
        else:
            folder.add(stored, tensor, self.ranges(name))
