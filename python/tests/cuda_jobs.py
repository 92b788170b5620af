"""Run by tests in a process of its own, with the stand-in for CUDA's driver. Arguments: its library, a function's."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import cuda_stand_in
import torch
from cuda_stand_in import on_device, peek

import varve.torch
import varve.torch.dcp as dcp
from varve.torch import Stager, async_save

CONTENTS = {
    "a": torch.arange(3_000_000, dtype=torch.float32).view(3000, 1000),
    "b": torch.arange(50, dtype=torch.int64),
    "c": torch.rand(2_000_000, dtype=torch.float64),
    "host": torch.rand(1000, 1000),
}
DEVICES = {"a": 0, "b": 1, "c": 1}


def a_state() -> dict[str, Any]:
    """A step, tensors on two devices, and one of the host."""
    state: dict[str, Any] = {"step": 3}
    for name, content in CONTENTS.items():
        state[name] = on_device(content, DEVICES[name]) if name in DEVICES else content.clone()
    return state


def is_same(loaded: Any) -> bool:
    """Returns whether a state read on the CPU is that of `a_state`."""
    same = all(torch.equal(loaded[name], content) for name, content in CONTENTS.items())
    return same and loaded["step"] == 3


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
    out["sum"] = sum(CONTENTS[name].nbytes for name in DEVICES)
    return out


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
    out["hf"] = all(torch.equal(t, CONTENTS[n]) for n, t in varve.torch.read(folder).items())
    for name, kind in (("dcp", dcp.save), ("dcp-async", dcp.async_save)):
        where = os.path.join(directory, name)
        done: Any = kind(state, checkpoint_id=where)
        if name == "dcp-async":
            done.result()
        out[name] = is_same(varve.torch.read(where))
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
        "a": torch.equal(peek(wanted["a"].t()).t(), CONTENTS["a"]),
        "b": torch.equal(peek(wanted["b"]), CONTENTS["b"]),
        "c": torch.equal(peek(wanted["c"]), CONTENTS["c"].float()),
        "host": torch.equal(wanted["host"], CONTENTS["host"]),
    }
    into = a_state()
    for name in DEVICES:
        into[name] = on_device(torch.zeros_like(CONTENTS[name]), 0)
    dcp.load(into, checkpoint_id=os.path.join(directory, "dcp"))
    out["dcp-load"] = all(torch.equal(peek(into[name]), CONTENTS[name]) for name in DEVICES)
    return out


if __name__ == "__main__":
    cuda_stand_in.install(sys.argv[1])
    print(json.dumps({"saves": saves, "synchronous": synchronous}[sys.argv[2]](*sys.argv[3:])))
