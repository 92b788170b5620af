"""Finds replicas that differ, before torch's planner chooses which rank's value is stored.

1. Each rank fingerprints the tensors of its local plan (the engine's fingerprints: all bytes up to
   64 KiB, else 64 samples; of many tensors on a device in one call, after what is queued there) and puts
   them into the plan's `storage_data`. So they travel with the plan, and cost no message of their own.
2. The planner of the coordinator drops replicas from the plans; `storage_data` stays.
3. The coordinator compares what ranks hold under one name and offsets. It changes nothing: when the
   checkpoint has been published, it warns.

Beside the fingerprints travels the name of the call, for saves by torch's own functions: their collectives match
calls by their order alone, so a rank that leaves out one save would join the others' with its next one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from varve import _core
from varve._engine import warn_of_differences
from varve.errors import PreconditionError
from varve.torch.dcp._write import add_tensor, is_here, resolves_as_torch


class _Arrived(threading.local):
    """The calls whose plans have come to this thread since its own call began.

    Planners that keep plans hand the coordinator an earlier save's, so what counts is what has arrived.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []


_arrived = _Arrived()


@dataclasses.dataclass
class Sent:
    """The call and the fingerprints that a local plan carries to the coordinator beside its items."""

    call: str
    prints: Fingerprints | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _arrived.calls.append(self.call)


def begin_call() -> None:
    """Forgets what has arrived: this rank begins a call."""
    _arrived.calls = []


def check_arrived() -> None:
    """On the coordinator: raises PreconditionError where the plans that came are of different calls."""
    calls = dict.fromkeys(_arrived.calls)
    begin_call()
    if len(calls) > 1:
        raise PreconditionError(
            f"the ranks are in different calls: {', '.join(calls)}; all ranks must make the same calls "
            "in the same order"
        )


@dataclasses.dataclass
class Fingerprints:
    """The fingerprints of one rank's plan."""

    items: list[tuple[str, Any, Any, int]]
    """Name, offsets, sizes, fingerprint."""


def can_compare(planner: SavePlanner) -> bool:
    """Returns True for planners that resolve tensors as torch's default does and send every plan.

    Items that other planners resolve might take memory, or differ between calls. A planner that keeps
    plans gives the coordinator an earlier save's instead of what this rank has sent.
    """
    return resolves_as_torch(planner) and not getattr(planner, "_enable_plan_caching", False)


def fingerprints(plan: SavePlan, planner: SavePlanner) -> Fingerprints:
    """Returns fingerprints of the tensors of a plan; none of those in memory that the engine cannot read."""
    keep: list[torch.Tensor] = []
    named: list[tuple[str, Any, Any]] = []
    described = _core.DcpItems()
    for item in plan.items:
        if item.tensor_data is None:
            continue
        data = planner.resolve_data(item)
        if not isinstance(data, torch.Tensor) or not is_here(data):
            continue
        if add_tensor(described, item.index.fqn, data, keep):
            chunk = item.tensor_data.chunk
            named.append((item.index.fqn, chunk.offsets, chunk.sizes))
    prints = described.fingerprints()
    return Fingerprints([(*name, mark) for name, mark in zip(named, prints, strict=True) if mark])


def differing(plans: Iterable[SavePlan]) -> list[str]:
    """Returns names of tensors whose content differs between ranks, in the order of the plans."""
    first: dict[tuple[str, Any], tuple[Any, int]] = {}
    names: dict[str, None] = {}
    for plan in plans:
        prints = plan.storage_data.prints if isinstance(plan.storage_data, Sent) else None
        if not isinstance(prints, Fingerprints):
            continue
        for fqn, offsets, sizes, mark in prints.items:
            if first.setdefault((fqn, offsets), (sizes, mark)) != (sizes, mark):
                names[fqn] = None
    return list(names)


def warn_of(names: list[str]) -> None:
    """Warns that replicas differ; nothing when none do."""
    warn_of_differences(
        names,
        "What is saved of each is the value of one of these ranks, which the planner chooses. Give what "
        'each rank has for itself a key of its own, such as f"rank{rank}.name"',
    )
