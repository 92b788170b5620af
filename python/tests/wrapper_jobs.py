"""What ranks run in test_wrappers.py."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

import varve.torch


def net(seed: int) -> torch.nn.Sequential:
    """A small net."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Returns True for two modules with the same values."""
    pairs = list(zip(a.parameters(), b.parameters(), strict=True))
    return bool(pairs) and all(torch.equal(x, y) for x, y in pairs)


def ddp_round(rank: int, size: int, folder: str) -> bool:
    """Saves a module under DDP and loads it into a bare one, and the other way round."""
    wrapped = DistributedDataParallel(net(1))
    varve.torch.save({"model": wrapped}, f"{folder}/ddp")
    varve.torch.save({"model": wrapped}, f"{folder}/stripped", strip_wrappers=True)
    bare = net(2)
    varve.torch.load({"model": bare}, f"{folder}/ddp")
    back = DistributedDataParallel(net(3))
    varve.torch.load({"model": back}, f"{folder}/stripped")
    return same(bare, wrapped) and same(back, wrapped)
