"""A GPT of 0.5 G parameters: how much longer its steps take with a save every ten."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from table import Table, baseline_of
from tools import Machine, remove, synchronize
from torch import nn

_STEPS = 10  # From save to save.
_STEP_SECONDS = 0.3  # Longer than the copy of the state.


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.mixed(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.between(x))


class _Gpt(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(_Block(width, max(width // 64, 1)) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.last(x[:, :-1]) @ self.words.weight.t()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Training:
    """The model, its optimizer, and a step that lasts long enough."""

    def __init__(self, machine: Machine) -> None:
        torch.manual_seed(0)
        tiny = machine.scale > 1
        self.device = machine.device
        self.machine = machine
        with torch.device(machine.device):
            self.model = _Gpt(64, 2, 512) if tiny else _Gpt(1536, 16, 32000)
            words, length = (512, 32) if tiny else (32000, 1024)
            self.tokens = torch.randint(words, (2 if tiny else 8, length))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.batches = 1
        for _ in range(3):
            self.step()
        if not tiny:
            each = self._seconds(3)
            self.batches = max(math.ceil(_STEP_SECONDS / each), 1)
        self.calls: dict[str, list[float]] = {}
        self.last_path = machine.path("trained")
        self.wanted: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        """Trains on `batches` batches and updates the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.batches):
            with torch.autocast(self.device, dtype=torch.bfloat16):
                loss = self.model(self.tokens)
            loss.backward()
        self.optimizer.step()

    def _seconds(self, steps: int) -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronize()
        return (time.perf_counter() - begin) / steps

    def state(self) -> dict[str, Any]:
        """Returns what is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def size(self) -> int:
        """Returns the bytes of what is saved."""
        found = list(self.model.state_dict().values())
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in found)

    def block(self, name: str, **options: Any) -> float:
        """Returns the seconds of ten steps, with a save before the first where options are given."""
        from varve.torch import async_save

        handle = None
        self.last_path = self.machine.path("trained")
        synchronize()
        begin = time.perf_counter()
        if options:
            self.wanted = {"words.weight": self.model.words.weight.detach().clone()}
            called = time.perf_counter()
            handle = async_save(self.state(), self.last_path, **options)
            self.calls.setdefault(name, []).append(time.perf_counter() - called)
        for _ in range(_STEPS):
            self.step()
        synchronize()
        took = time.perf_counter() - begin
        if handle is not None:
            handle.result()
        return took

    def compare(self) -> None:
        """Raises unless the last save has the weights of its call."""
        import varve.torch

        for name, wanted in self.wanted.items():
            found = varve.torch.read(self.last_path, f"model.{name}", flat=True)[f"model.{name}"]
            if not torch.equal(found.to(wanted.device), wanted):
                raise AssertionError(f"{name}: the checkpoint has not the weights of the call")


def training(machine: Machine, table: Table) -> None:
    """Steps without saves and with one every ten steps, in turns."""
    arm = Training(machine)
    size = arm.size()

    def overlapped() -> float:
        took = arm.block("overlapped", staging="overlapped", guard=arm.optimizer)
        arm.compare()
        return took

    def blocking() -> float:
        took = arm.block("blocking", staging="blocking")
        arm.compare()
        return took

    table.in_turns({"warm-up": lambda: arm.block("warm-up", staging="blocking")}, 1)
    took = table.in_turns(
        {"no save": lambda: arm.block("no save"), "overlapped": overlapped, "blocking": blocking},
        3,
        15,
    )
    each = {name: [seconds / _STEPS for seconds in samples] for name, samples in took.items()}
    base = baseline_of(each["no save"], 0)
    table.fact("state", size / 1e9, "GB")
    table.add("step without saves", each["no save"])
    table.add(
        "step, overlapped save with guard every 10",
        each["overlapped"],
        baseline=base,
        at_most=1.02,
    )
    table.add("step, blocking save every 10", each["blocking"], baseline=base)
    for name in ("overlapped", "blocking"):
        table.add(f"the call, {name}", arm.calls.get(name))
    remove(arm.last_path)
