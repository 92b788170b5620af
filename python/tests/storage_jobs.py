"""What ranks do with a store that a program has registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from storage_stores import sqlite_store

import varve.torch


def registered(kind: str, folder: str) -> Any:
    """Registers, as "own", a store that the processes of this host share, and returns it."""
    if kind == "sqlite":
        store: Any = sqlite_store()(str(Path(folder) / "objects.db"))
    else:
        from obstore.store import LocalStore

        from varve.storage.obstore import ObstoreStore

        store = ObstoreStore(LocalStore(folder, automatic_cleanup=True), spool=folder)
    varve.register_storage("own", store, replace=True)
    return store


def _state(rank: int, value: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(value)
    own = torch.randint(0, 256, (20 << 20,), dtype=torch.uint8, generator=generator)
    return {"own": {str(rank): own + rank}, "step": value}


def save_ranks(
    rank: int, size: int, kind: str, folder: str, path: str, value: int, asynchronous: bool
) -> None:
    registered(kind, folder)
    if asynchronous:
        varve.torch.async_save(_state(rank, value), path, overwrite=value > 1).result(120)
    else:
        varve.torch.save(_state(rank, value), path, overwrite=value > 1)


def load_ranks(rank: int, size: int, kind: str, folder: str, path: str) -> tuple[int, bool]:
    registered(kind, folder)
    want = _state(rank, varve.torch.read(path, "step")["step"])
    state = {"own": {str(rank): torch.zeros_like(want["own"][str(rank)])}, "step": 0}
    varve.torch.load(state, path)
    return state["step"], bool(torch.equal(state["own"][str(rank)], want["own"][str(rank)]))
