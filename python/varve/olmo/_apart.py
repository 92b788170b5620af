"""Writes a DCP checkpoint whose ranks write to different disks, from where it is uploaded as one.

The steps are those of varve.torch.dcp, with a writer that publishes nothing: each rank writes its file,
`__R_0.distcp`, into the directory on its disk, and rank 0 the index, `.metadata`. Ranks that share a disk write into
one directory. No disk has all files unless all ranks share it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from varve.olmo._steps import Steps
from varve.torch.dcp._index import complete
from varve.torch.dcp._protocol import save_steps
from varve.torch.dcp._write import write_files


class _Writer(StorageWriter):
    """Writes into a directory on this rank's disk.

    Attributes:
        written: The files that this rank has written.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.written: list[Path] = []
        self._folder = folder
        self._rank = rank

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: a writer is used once."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Is never asked."""
        return True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Makes the directory."""
        self._folder.mkdir(exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns the plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's items; durable when it returns."""
        name = f"__{self._rank}_0.distcp"
        files = [(name, plan.items)] if plan.items else []
        self.written = [self._folder / name for name, _ in files]
        future: Future[list[WriteResult]] = Future()
        future.set_result(list(write_files(str(self._folder), files, planner, 1, 0, None)))
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the index."""
        index, _ = complete(metadata, results, str(self._folder))
        path = self._folder / ".metadata"
        with open(path, "wb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        self.written.append(path)


def write_dcp(folder: Path, state: dict[str, Any], steps: Steps) -> list[Path]:
    """Writes this rank's part of a state, and on rank 0 the index. Collective.

    Args:
        folder: The directory on this rank's disk; made as needed.
        state: Of this rank: tensors, also DTensors and ShardedTensors, and objects.
        steps: The steps of the save, which all ranks take together.

    Returns:
        The files that this rank has written, synced.
    """
    writer = _Writer(folder, steps.rank)
    with steps.raising_alike(f"write {folder}"), torch.no_grad():
        save_steps(steps.ranks, None, state, writer, DefaultSavePlanner())
    return sorted(writer.written)
