"""Writes a DCP checkpoint whose ranks write to different disks, from where it is uploaded as one.

Torch's own planner and writer make the files. The plans go over the ranks' channel:
  1. Each rank plans what it holds, and sends the plan to rank 0.
  2. Rank 0 makes the plans of all ranks, of equal pieces one, and sends each rank its own.
  3. Each rank writes its file, `__R_0.distcp`, into the directory on its disk, and sends rank 0 where
     each piece lies in it.
  4. Rank 0 writes the index, `.metadata`, into the directory on its own disk.
Ranks that share a disk write into one directory. No disk has all files unless all ranks share it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem

from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._devices import on_host


class _Planner(DefaultSavePlanner):
    """Gives the writer tensors of the CPU. The engine copies tensors of a device, one at a time."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        found = super().resolve_data(write_item)
        return on_host(found) if isinstance(found, torch.Tensor) else found


def write_dcp(folder: Path, state: dict[str, Any], steps: Steps) -> list[Path]:
    """Writes this rank's part of a state, and on rank 0 the index. Collective.

    Args:
        folder: The directory on this rank's disk; made as needed.
        state: Of this rank: tensors, also DTensors and ShardedTensors, and objects.
        steps: The steps of the save, which all ranks take together.

    Returns:
        The files that this rank has written, synced.
    """
    what = f"write {folder}"
    planner = _Planner()
    writer = FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)  # It copies none.
    made: dict[str, Any] = {}

    def plan() -> None:
        folder.mkdir(exist_ok=True)
        planner.set_up_planner(state, writer.storage_meta(), steps.rank == 0)
        writer.set_up_storage_writer(steps.rank == 0)
        made["plan"] = writer.prepare_local_plan(planner.create_local_plan())

    def plan_all(plans: list[Any]) -> list[Any]:
        plans, made["metadata"] = planner.create_global_plan(plans)
        return writer.prepare_global_plan(plans)

    def write() -> None:
        own = planner.finish_plan(made["plan"])
        made["results"] = writer.write_data(own, planner).wait()

    def finish(results: list[Any]) -> list[Any]:
        writer.finish(made["metadata"], results)
        return [None] * len(results)

    steps.each(what, plan)
    made["plan"] = _by_first(steps, what, made["plan"], plan_all)
    steps.each(what, write)
    _by_first(steps, what, made["results"], finish)
    names = {result.storage_data.relative_path for result in made["results"]}
    return sorted(folder / name for name in (names | {".metadata"} if steps.rank == 0 else names))


def _by_first(
    steps: Steps, what: str, value: Any, function: Callable[[list[Any]], list[Any]]
) -> Any:
    """Gives rank 0 the values of all ranks, and each rank its part of what rank 0 makes of them.

    Collective. The values are pickles: they come from ranks of this job, whose channel has a token.
    """
    coordinator = steps.coordinator
    if coordinator is None:
        return function([value])[0]
    made: list[Any] = []

    def take() -> None:
        rest = [coordinator.receive(rank, TIMEOUT) for rank in range(1, coordinator.size)]
        made.extend(function([value, *(pickle.loads(one) for one in rest)]))

    if steps.rank != 0:
        coordinator.send(0, pickle.dumps(value), TIMEOUT)
    steps.first(what, take)
    if steps.rank != 0:
        return pickle.loads(coordinator.receive(0, TIMEOUT))
    for rank in range(1, coordinator.size):
        coordinator.send(rank, pickle.dumps(made[rank]), TIMEOUT)
    return made[0]
