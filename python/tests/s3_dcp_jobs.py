"""What ranks and killed processes do in test_s3_dcp.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
from s3_jobs import state_of
from torch.distributed.checkpoint import state_dict_saver

import varve.torch
import varve.torch.dcp


def save_dcp(rank: int, size: int, path: str, value: int, how: str) -> Any:
    state = state_of(value, size)
    if how == "format":
        varve.torch.save(state, path, format="dcp", overwrite=True)
    elif how == "format in the background":
        varve.torch.async_save(state, path, format="dcp", overwrite=True).result(300.0)
    elif how == "format by the agent":
        options: dict[str, Any] = {"format": "dcp", "overwrite": True, "executor": "process"}
        varve.torch.async_save(state, path, **options).result(300.0)
    elif how == "by the agent":
        kind = state_dict_saver.AsyncCheckpointerType.PROCESS
        save = varve.torch.dcp.async_save(state, checkpoint_id=path, async_checkpointer_type=kind)
        save.result(300.0)
    elif how == "in the background":
        varve.torch.dcp.async_save(state, checkpoint_id=path).result(300.0)
    elif how == "apart":
        varve.torch.dcp.save(state, checkpoint_id=path, use_collectives=False)
    elif how == "by threads":
        writer = varve.torch.dcp.FileSystemWriter(path, thread_count=2)
        return varve.torch.dcp.save(state, storage_writer=writer)
    elif how == "installed":
        with varve.torch.dcp.installed():
            torch.distributed.checkpoint.save(state, checkpoint_id=path)
    else:
        return varve.torch.dcp.save(state, checkpoint_id=path)
    return None


def load_dcp(rank: int, size: int, path: str) -> tuple[int, bool]:
    state = state_of(0, size)
    varve.torch.dcp.load(state, checkpoint_id=path)
    want = state_of(state["step"], size)
    same = torch.equal(state["w"].to_local(), want["w"].to_local())
    return state["step"], same and torch.equal(state["b"], want["b"])


def die_in_an_upload(rank: int, size: int, path: str, after: float) -> None:
    """Saves 128 MiB a rank over and over; rank 1 is killed, and the others give up."""
    state = state_of(100, size, 256)  # Once: a mesh that lacks a rank is waited for by torch.

    def kill() -> None:
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1:
        threading.Thread(target=kill, daemon=True).start()
    while True:
        varve.torch.save(state, path, format="dcp", overwrite=True, timeout=20.0)
        state["w"].to_local().add_(1)
        state["b"].add_(1)
        state["step"] += 1
