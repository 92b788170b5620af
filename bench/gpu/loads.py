"""Loads of 4 GiB onto the device from each source, beside others' loaders; and small tensors."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from table import Table, baseline_of
from tools import (
    GIB,
    MIB,
    Growth,
    Machine,
    State,
    bytes_of,
    drop_cache,
    files_under,
    growing,
    largest_file,
    raw_read,
    remove,
    require_same,
    timed,
    warm_cache,
    zero,
)

_MEMORY = 300.0  # MiB that a load may take on the host.


class Loading:
    """A state, the destination of its loads, and the memory that they have taken."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.state = machine.state(4 * GIB, 16)
        self.destination = {name: torch.zeros_like(t) for name, t in self.state.items()}
        self.size = bytes_of(self.state)
        self.growths: dict[str, Growth] = {}
        self.reports: dict[str, Any] = {}

    def timed(self, load: Callable[[State], object]) -> float:
        """Times a load into zeroed tensors, and compares all of them."""
        zero(self.destination)
        took = timed(lambda: load(self.destination))
        require_same(self.destination, self.state)
        return took

    def by_varve(self, path: Path, name: str, **options: Any) -> float:
        """Times varve.torch.load. Watches the memory at the first of a name, which is slower."""
        import varve.torch

        watched = name not in self.reports

        def load(state: State) -> None:
            with growing() if watched else nullcontext() as growth:
                self.reports[name] = varve.torch.load(state, path, **options)
            if growth is not None:  # Comparing takes memory of its own.
                self.growths[name] = growth

        return self.timed(load)

    def remarks(self, table: Table) -> None:
        """Prints the phases of the last load of each kind."""
        for name, report in self.reports.items():
            phases = ", ".join(
                f"{getattr(p, 'name', p)} {getattr(p, 'seconds', 0):.3f}" for p in report.phases
            )
            read, device = report.bytes_read, getattr(report, "device_bytes", None)
            growth = self.growths[name]
            table.remark(
                f"{name}: bytes_read {read}, device_bytes {device}; {phases}; grew by "
                f"{growth.host / MIB:.0f} MiB on the host, {growth.device / MIB:.0f} on the device"
            )


def _by_safetensors(path: Path, device: str) -> Callable[[State], None]:
    from safetensors.torch import load_file

    def load(destination: State) -> None:
        for file in (f for f in files_under(path) if f.suffix == ".safetensors"):
            for name, tensor in load_file(file, device=device).items():
                destination[name].copy_(tensor)

    return load


def _by_torch(path: Path, device: str) -> Callable[[State], None]:
    def load(destination: State) -> None:
        found = torch.load(path, mmap=True, map_location=device, weights_only=True)
        for name, tensor in found.items():
            destination[name].copy_(tensor)

    return load


def _by_dcp(path: Path) -> Callable[[State], None]:
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")

    def load(destination: State) -> None:
        dcp.load(dict(destination), checkpoint_id=path, no_dist=True)

    return load


def load(machine: Machine, table: Table) -> None:
    """Loads into tensors of the device that exist."""
    import varve.torch

    loading = Loading(machine)
    size = loading.size
    paths = {name: machine.path(name) for name in ("own", "dcp", "hf")}
    varve.torch.save(loading.state, paths["own"])
    varve.torch.save(loading.state, paths["dcp"], format="dcp")
    varve.torch.save(loading.state, paths["hf"], format="hf")
    pickled = machine.path("state.pt")
    torch.save(loading.state, pickled)
    os.sync()  # Else the disk would still write while it is read.

    raw = largest_file(paths["own"])

    def uncached() -> float:
        drop_cache(paths["own"])
        return loading.by_varve(paths["own"], "not cached")

    def raw_file() -> float:
        drop_cache(raw)
        return raw_read(raw, *machine.read_shape)

    shape = f"{machine.read_shape[0]} x {machine.read_shape[1] // MIB} MiB"
    cold = table.in_turns({"raw": raw_file, "varve": uncached}, 2, 60)
    table.add(f"raw read of the same file, {shape}", cold["raw"], size)
    table.add(
        "varve, not cached",
        cold["varve"],
        size,
        baseline=baseline_of(cold["raw"], size),
        at_most=round(1 / 0.95, 3),
    )

    for path in (*paths.values(), pickled):
        warm_cache(path)
    device = machine.device
    loading.by_varve(paths["own"], "page cache")
    loading.by_varve(paths["dcp"], "page cache, DCP")
    warm = table.in_turns(
        {
            "varve": lambda: loading.by_varve(paths["own"], "page cache"),
            "varve, DCP": lambda: loading.by_varve(paths["dcp"], "page cache, DCP"),
            "safetensors": lambda: loading.timed(_by_safetensors(paths["hf"], device)),
            "torch.load": lambda: loading.timed(_by_torch(pickled, device)),
        },
        3,
        50,
    )
    once = table.in_turns({"DCP": lambda: loading.timed(_by_dcp(paths["dcp"]))}, 1)
    table.speed("varve, from the page cache", warm["varve"], size, 20)
    table.speed("varve, of a DCP checkpoint, from the page cache", warm["varve, DCP"], size, 20)
    base = baseline_of(warm["varve"], size)
    table.add(
        f'safetensors load_file(device="{device}"), then copied (baseline: varve)',
        warm["safetensors"],
        size,
        baseline=base,
    )
    table.add(
        "torch.load(mmap=True), then copied (baseline: varve)",
        warm["torch.load"],
        size,
        baseline=base,
    )
    table.add("torch DCP (baseline: varve)", once["DCP"], size, baseline=base)
    for path in (*paths.values(), pickled):
        remove(path)
    _from_agent(loading, table)
    if loading.growths:
        most = max(growth.host for growth in loading.growths.values()) / MIB
        table.fact("loads, growth of the host's memory", most, "MiB", _MEMORY)
        above = max(growth.device for growth in loading.growths.values()) / size * 100
        table.fact("loads, device memory above the destination", above, "%", 1)
    loading.remarks(table)


def _from_agent(loading: Loading, table: Table) -> None:
    from varve.torch import Stager, async_save

    path = loading.machine.path("held")
    with Stager(executor="process", memory_budget=loading.size + 64 * MIB) as stager:
        stager.prepare(loading.state)
        stager.wait_prepared()
        async_save(loading.state, path, stager=stager).result()
        drop_cache(path)
        took = table.in_turns({"agent": lambda: loading.by_varve(path, "agent's memory")}, 3, 40)[
            "agent"
        ]
    if took and loading.reports["agent's memory"].bytes_from_agent < loading.size:
        table.note("agent's memory", "the agent did not have all of it")
    table.speed("varve, from the agent's memory", took, loading.size, 20)
    remove(path)


def small(machine: Machine, table: Table) -> None:
    """32,768 tensors of 64 KiB."""
    import varve.torch
    from varve.torch import async_save

    count = max(32768 // machine.scale, 64)
    values = torch.randn(count, 16384, device=machine.device)
    state = {f"layers.{i}.w": values[i].clone() for i in range(count)}
    size = bytes_of(state)
    calls: list[float] = []

    def save(staging: str) -> float:
        path = machine.path("small")
        begin = time.perf_counter()
        handle = async_save(state, path, staging=staging)
        if staging == "overlapped":
            calls.append(time.perf_counter() - begin)
        handle.wait_staged()
        took = time.perf_counter() - begin
        handle.result()
        return took

    table.in_turns({"warm-up": lambda: save("blocking")}, 1)
    took = table.in_turns(
        {"stall": lambda: save("blocking"), "overlapped": lambda: save("overlapped")}, 2, 30
    )
    table.add(f"stall, {count:,} x 64 KiB", took["stall"], size)
    if took["stall"]:
        each = sorted(took["stall"])[len(took["stall"]) // 2] / count * 1e6
        table.fact("stall of each tensor", each, "us", 3)
    if calls:
        table.fact("the overlapped call, of each tensor", min(calls) / count * 1e6, "us")
    path = machine.directory / "small"
    destination = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    warm_cache(path)

    def fill() -> float:
        zero(destination)
        took = timed(lambda: varve.torch.load(destination, path))
        if not torch.equal(torch.stack(list(destination.values())), values):
            raise AssertionError("loaded values differ from the saved ones")
        return took

    loads = table.in_turns({"load": fill}, 3, 30)["load"]
    table.add("load from the page cache", loads, size)
    if loads:
        each = sorted(loads)[len(loads) // 2] / count * 1e6
        table.fact("load of each tensor", each, "us", 5)
    remove(path)
