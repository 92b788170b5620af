"""The bus, the disk, how long saves keep the training, and saves that wait for the disk."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from table import Table, baseline_of
from tools import (
    GIB,
    MIB,
    Machine,
    State,
    bytes_of,
    free,
    growing,
    raw_read,
    raw_write,
    remove,
    require_same,
    synchronize,
    timed,
)


def bus(machine: Machine, table: Table) -> None:
    """Copies between device and pinned memory."""
    pinned = machine.get_pinned()
    tensors = [torch.randn_like(p, device=machine.device) for p in pinned]
    size = sum(tensor.nbytes for tensor in tensors)

    def to_host() -> None:
        for p, t in zip(pinned, tensors, strict=True):
            p.copy_(t, non_blocking=True)

    def to_device() -> None:
        for p, t in zip(pinned, tensors, strict=True):
            t.copy_(p, non_blocking=True)

    timed(to_host), timed(to_device)
    took = table.in_turns(
        {"pinned D2H": lambda: timed(to_host), "pinned H2D": lambda: timed(to_device)}, 3
    )
    for name, samples in took.items():
        table.add(f"{name}, {size / GIB:.3g} GiB", samples, size)


def disk(machine: Machine, table: Table) -> None:
    """Writes and reads with O_DIRECT, by several readers."""
    size = machine.bytes(2 * GIB)
    path = machine.path("raw")
    writes = table.in_turns(
        {
            f"raw write, {writers} writers": lambda w=writers: raw_write(path, size, w, 8 * MIB)
            for writers in (1, 4)
        },
        1,
    )
    for name, samples in writes.items():
        table.add(name, samples, size)
    shapes = {(1, 8 * MIB), (2, 8 * MIB), (4, 8 * MIB), (8, 8 * MIB), (1, 16 * MIB)}
    names = {
        f"raw read, {readers} x {block // MIB} MiB": (readers, block)
        for readers, block in sorted(shapes)
    }
    reads = table.in_turns(
        {name: lambda s=shape: raw_read(path, *s) for name, shape in names.items()}, 2
    )
    for name, samples in reads.items():
        table.add(name, samples, size)
    best = min((min(samples), name) for name, samples in reads.items() if samples)
    machine.read_shape = names[best[1]]
    remove(path)


class Stall:
    """Times of one save: of the call, and until the tensors may change."""

    def __init__(self, machine: Machine, state: State) -> None:
        self._machine = machine
        self._state = state
        self.calls: list[float] = []
        self.reports: list[Any] = []

    def sample(self, compare: bool = False, **options: Any) -> float:
        """Saves, waits for the end, compares two tensors if asked; returns the seconds to staged."""
        from varve.torch import async_save, read

        path = self._machine.path("saved")
        synchronize()
        begin = time.perf_counter()
        handle = async_save(self._state, path, **options)
        called = time.perf_counter() - begin
        handle.wait_staged()
        took = time.perf_counter() - begin
        self.calls.append(called)
        self.reports.append(handle.result())
        if compare:
            names = [list(self._state)[i] for i in (0, -1)]
            require_same(read(path, names), {name: self._state[name] for name in names})
        remove(path)
        return took


def stall(machine: Machine, table: Table) -> None:
    """How long asynchronous saves keep the training. The device is idle before each call."""
    base = _by_threads(machine, table)
    machine.pinned = []
    free()
    _many(machine, table)
    state = machine.state(4 * GIB, 16)
    _agent(machine, table, state, base)
    if table.left > 100 or machine.device == "cpu":
        _by_torch(machine, table, state, base)
    else:
        table.note("torch dcp.async_save", "no time left")


def _by_threads(machine: Machine, table: Table) -> Any:
    """Saves by threads of this process; returns the baseline, a copy into pinned memory."""
    from varve.torch import Stager

    state = machine.state(8 * GIB, 16)
    size = bytes_of(state)
    pinned = machine.get_pinned()

    def copy() -> None:
        for i, tensor in enumerate(state.values()):
            pinned[i % len(pinned)].copy_(tensor[: pinned[0].numel()], non_blocking=True)

    timed(copy)
    copied_size = sum(min(tensor.nbytes, pinned[0].nbytes) for tensor in state.values())
    arm = Stall(machine, state)
    first = table.in_turns({"first save": arm.sample}, 1)["first save"]
    _facts(table, "default, first save", arm.reports)
    took = table.in_turns(
        {"copy": lambda: timed(copy), "later": lambda: arm.sample(compare=not arm.calls[1:])}, 4, 60
    )
    later = took["later"]
    table.add("the copy alone, into pinned tensors", took["copy"], copied_size)
    base = baseline_of(took["copy"], copied_size)
    table.add("default, first save without prepare", first, size, baseline=base)
    table.add("default, later saves", later, size, baseline=base, at_most=1.06)
    _ratio(table, "default, first save to later ones", first, later, 2.0)
    _facts(table, "default, last save", arm.reports)

    with Stager(memory_budget=size + 64 * MIB) as stager:
        began = time.perf_counter()
        stager.prepare(state)
        stager.wait_prepared()
        table.fact("prepare", time.perf_counter() - began, "s")
        prepared = Stall(machine, state)
        first = table.in_turns({"first": lambda: prepared.sample(stager=stager)}, 1)["first"]
        table.add("first save after prepare", first, size, baseline=base)
        _ratio(table, "first save after prepare, to later ones", first, later, 1.1)
        over = Stall(machine, state)
        options: dict[str, Any] = {"stager": stager, "staging": "overlapped"}
        took = table.in_turns(
            {"overlapped": lambda: over.sample(compare=not over.calls, **options)}, 3, 60
        )["overlapped"]
        table.add("overlapped, the call, 16 tensors", over.calls, seconds_at_most=0.002)
        table.add("overlapped, until staged", took, size, baseline=base)
        _facts(table, "overlapped", over.reports)
    return base


def _many(machine: Machine, table: Table) -> None:
    state = machine.state(2 * GIB, 1000)
    arm = Stall(machine, state)
    table.in_turns({"1,000 tensors": lambda: arm.sample(staging="overlapped")}, 3, 45)
    table.add("overlapped, the call, 1,000 tensors", arm.calls[1:], seconds_at_most=0.004)


def _agent(machine: Machine, table: Table, state: State, base: Any) -> None:
    from varve.torch import Stager

    size = bytes_of(state)
    with Stager(executor="process", memory_budget=size + 64 * MIB) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        arm = Stall(machine, state)
        took = table.in_turns({"agent": lambda: arm.sample(compare=True, stager=stager)}, 2, 45)
    table.add('by the agent (executor="process"), 4 GiB', took["agent"], size, baseline=base)
    _facts(table, "by the agent", arm.reports)


def _by_torch(machine: Machine, table: Table, state: State, base: Any) -> None:
    """torch's own asynchronous saves, once each: they take long."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    size = bytes_of(state)

    def save(**options: Any) -> float:
        path = machine.path("torch")
        synchronize()
        begin = time.perf_counter()
        made: Any = dcp.async_save(dict(state), checkpoint_id=path, no_dist=True, **options)
        staged = getattr(made, "staging_completion", None)
        if staged is not None:
            staged.result()
        took = time.perf_counter() - begin
        getattr(made, "upload_completion", made).result()
        remove(path)
        return took

    def pinned() -> float:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        stager = DefaultStager(StagingOptions(True, False, True, True))
        try:
            return save(async_stager=stager)
        finally:
            stager.close()

    arms: dict[str, Callable[[], float]] = {
        "torch dcp.async_save, default, 4 GiB": save,
        "torch dcp.async_save, pinned and asynchronous stager, first save, 4 GiB": pinned,
    }
    if machine.device != "cuda":
        arms.popitem()
    for name, samples in table.in_turns(arms, 1).items():
        table.add(name, samples, size, baseline=base)


def _ratio(table: Table, what: str, first: list[float], later: list[float], at_most: float) -> None:
    base = baseline_of(later, 0)
    if first and base is not None:
        table.add(what, first, baseline=base, at_most=at_most)


def _facts(table: Table, name: str, reports: list[Any]) -> None:
    """Prints what the last report says of the staging memory; no row, for it has no target."""
    if not reports:
        return
    report = reports[-1]
    fields = {
        key: getattr(report, key, None)
        for key in ("device_bytes", "pageable_bytes", "staging_seconds", "in_waves")
    }
    memory = getattr(report, "staging_memory", None)
    for key in ("registrations", "registered_bytes", "register_seconds", "numa_node", "refused"):
        fields[key] = getattr(memory, key, None)
    table.remark(f"{name}: " + ", ".join(f"{key} {value}" for key, value in fields.items()))


def sync_save(machine: Machine, table: Table) -> None:
    """A save that waits for the disk, of tensors of the device and of the host."""
    import varve.torch

    state = machine.state(4 * GIB, 16)
    host = {name: tensor.cpu() for name, tensor in state.items()}
    size = bytes_of(state)
    growths: list[int] = []

    def save(source: State, path: Path) -> float:
        with growing() as growth:
            took = timed(lambda: varve.torch.save(source, path))
        if source is state:
            growths.append(growth.host)
            require_same(varve.torch.read(path, ["w3"]), {"w3": state["w3"]})
        remove(path)
        return took

    took = table.in_turns(
        {
            "CPU": lambda: save(host, machine.path("saved")),
            "CUDA": lambda: save(state, machine.path("saved")),
        },
        3,
        40,
    )
    table.add("save of CPU tensors, 4 GiB", took["CPU"], size)
    table.add(
        "save of CUDA tensors, 4 GiB",
        took["CUDA"],
        size,
        baseline=baseline_of(took["CPU"], size),
        at_most=round(1 / 0.97, 3),
    )
    if growths:
        table.fact(
            "save of CUDA tensors, growth of the host's memory", max(growths) / MIB, "MiB", 350
        )
