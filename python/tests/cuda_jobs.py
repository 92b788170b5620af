"""Run by tests in a process of its own, with the stand-in for CUDA's driver. Arguments: its library, a function's."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

import cuda_stand_in
import torch
from async_jobs import LONG
from cuda_stand_in import on_device, peek
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import varve.agent
import varve.torch
import varve.torch.dcp as dcp
from varve.torch import Stager, async_save

DEVICES = {"a": 0, "b": 1, "c": 1}


@functools.cache
def contents() -> dict[str, torch.Tensor]:
    """Tensors by name. Not made by the import: torch's threads would not outlive the fork of a rank."""
    return {
        "a": torch.arange(3_000_000, dtype=torch.float32).view(3000, 1000),
        "b": torch.arange(50, dtype=torch.int64),
        "c": torch.rand(2_000_000, dtype=torch.float64),
        "host": torch.rand(1000, 1000),
    }


class _Planner(DefaultSavePlanner):
    """One of a caller's, which no save by the engine takes."""


def a_state() -> dict[str, Any]:
    """A step, tensors on two devices, and one of the host."""
    state: dict[str, Any] = {"step": 3}
    for name, content in contents().items():
        state[name] = on_device(content, DEVICES[name]) if name in DEVICES else content.clone()
    return state


def is_same(loaded: Any) -> bool:
    """Returns whether a state read on the CPU is that of `a_state`."""
    same = all(torch.equal(loaded[name], content) for name, content in contents().items())
    return same and loaded["step"] == 3


def _drop_while_copied(state: dict[str, Any], path: str, stager: Stager) -> list[Any]:
    """Drops all tensors of a state while they are copied: what is freed too early reads as 0xDD.

    Returns the number of tensors on devices at the call and after the copy, and whether the save is right.
    """
    before = cuda_stand_in.tensors_alive()
    cuda_stand_in.driver.fake_cuda_slow_copies(20_000)
    handle = async_save(state, path, stager=stager, staging="overlapped")
    state.clear()
    handle.wait_staged()
    cuda_stand_in.driver.fake_cuda_slow_copies(0)
    handle.result()
    return [before, cuda_stand_in.tensors_alive(), is_same(varve.torch.read(path))]


def _load_from_agent(path: str) -> list[Any]:
    """Fills tensors of devices from the agent's memory; returns the bytes from there, and whether it is right."""
    into: dict[str, Any] = {
        n: on_device(torch.zeros_like(contents()[n]), d) for n, d in DEVICES.items()
    }
    report = varve.torch.load(into, path)
    same = all(torch.equal(peek(into[name]), contents()[name]) for name in DEVICES)
    return [report.bytes_from_agent >= report.device_bytes > 0, same]


def saves(directory: str, executor: str) -> dict[str, Any]:
    """Saves in the background in both formats, fails once, and saves again."""
    state = a_state()
    out: dict[str, Any] = {}
    with Stager(executor=executor) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        for format in ("varve", "dcp"):
            path = os.path.join(directory, format)
            report = async_save(state, path, stager=stager, format=format).result()
            memory = report.staging_memory
            out[format] = {
                "device_bytes": report.device_bytes,
                "pageable_bytes": report.pageable_bytes,
                "copied_ahead": report.copied_ahead.tensors,
                "registrations": memory.registrations,
                "same": is_same(varve.torch.read(path)),
            }
        cuda_stand_in.driver.fake_cuda_fail(b"cuMemcpyDtoHAsync", 719, 0)
        cuda_stand_in.driver.fake_cuda_fail(b"cuMemcpyBatchAsync", 719, 0)
        failed = async_save(state, os.path.join(directory, "failed"), stager=stager)
        out["error"] = str(failed.exception())
        again = async_save(state, os.path.join(directory, "failed"), stager=stager)
        out["again"] = again.exception() is None
        out["dropped"] = _drop_while_copied(state, os.path.join(directory, "dropped"), stager)
        if executor == "process":
            out["memory"] = _load_from_agent(os.path.join(directory, "dropped"))
            varve.torch.defer_save(
                a_state(), os.path.join(directory, "later"), stager=stager
            ).result()
    if executor == "process":
        varve.agent.drain(LONG)
        out["deferred"] = is_same(
            varve.torch.read(os.path.join(directory, "later"), use_agent=False)
        )
    out["sum"] = sum(contents()[name].nbytes for name in DEVICES)
    return out


class SlowPlanner(DefaultSavePlanner):
    """A planner of the caller's, whose tensors are asked for one by one, all files at once."""

    def resolve_data(self, write_item: Any) -> Any:
        """Takes so long that all files are begun."""
        time.sleep(0.2)
        return super().resolve_data(write_item)


def many_files(directory: str, _: str) -> dict[str, Any]:
    """Saves more files at once than the engine has blocks, each of one tensor of a device."""
    contents = {f"w{i}": torch.rand(1000) for i in range(40)}
    state = {name: on_device(tensor, 0) for name, tensor in contents.items()}
    path = os.path.join(directory, "many")
    dcp.save(
        state, storage_writer=dcp.FileSystemWriter(path, thread_count=40), planner=SlowPlanner()
    )
    into = {name: torch.zeros(1000) for name in contents}
    dcp.load(into, checkpoint_id=path)
    return {"same": all(torch.equal(into[name], tensor) for name, tensor in contents.items())}


def synchronous(directory: str, _: str) -> dict[str, Any]:
    """Saves at once in three formats, by the drop-in too, and loads into tensors of devices."""
    state = a_state()
    out: dict[str, Any] = {}
    path = os.path.join(directory, "varve")
    report = varve.torch.save(state, path)
    out["save"] = [report.device_bytes, report.pageable_bytes, is_same(varve.torch.read(path))]
    tensors = {name: tensor for name, tensor in state.items() if name != "step"}
    folder = os.path.join(directory, "hf")
    varve.torch.save(tensors, folder, format="hf")
    out["hf"] = all(torch.equal(t, contents()[n]) for n, t in varve.torch.read(folder).items())
    ways: dict[str, Any] = {
        "dcp": dcp.save,
        "dcp-async": lambda *a, **k: dcp.async_save(*a, **k).result(),
        "dcp-async, a planner": lambda *a, **k: dcp.async_save(
            *a, planner=_Planner(), **k
        ).result(),
    }
    for name, save in ways.items():
        where = os.path.join(directory, name)
        save(state, checkpoint_id=where)
        out[name] = is_same(varve.torch.read(where))
    cuda_stand_in.driver.fake_cuda_fail(b"cuEventSynchronize", 719, 0)
    try:
        dcp.async_save(
            state, planner=_Planner(), checkpoint_id=os.path.join(directory, "no")
        ).result()
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {error}"
    # Strided destinations, and one of another floating-point type.
    wanted = {
        "a": on_device(torch.zeros(1000, 3000), 1).t(),
        "b": on_device(torch.zeros(50, dtype=torch.int64), 0),
        "c": on_device(torch.zeros(2_000_000, dtype=torch.float32), 0),
        "host": torch.zeros(1000, 1000),
        "step": 0,
    }
    loaded = varve.torch.load(wanted, path, cast=True)
    out["load"] = {
        "device_bytes": loaded.device_bytes,
        "a": torch.equal(peek(wanted["a"].t()).t(), contents()["a"]),
        "b": torch.equal(peek(wanted["b"]), contents()["b"]),
        "c": torch.equal(peek(wanted["c"]), contents()["c"].float()),
        "host": torch.equal(wanted["host"], contents()["host"]),
    }
    into = a_state()
    for name in DEVICES:
        into[name] = on_device(torch.zeros_like(contents()[name]), 0)
    dcp.load(into, checkpoint_id=os.path.join(directory, "dcp"))
    out["dcp-load"] = all(torch.equal(peek(into[name]), contents()[name]) for name in DEVICES)
    return out


if __name__ == "__main__":
    cuda_stand_in.install(sys.argv[1])
    print(
        json.dumps(
            {"saves": saves, "synchronous": synchronous, "many_files": many_files}[sys.argv[2]](
                *sys.argv[3:]
            )
        )
    )
