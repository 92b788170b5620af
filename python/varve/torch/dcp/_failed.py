"""Storages by which a rank that failed before torch's first step reports it to the others."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from varve.torch.dcp._errors import portable


class _Failed:
    """Raises the failure in the first step; torch then reports it to all ranks."""

    def __init__(self, error: BaseException) -> None:
        self.error = portable(error)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never asked."""
        return True

    def _fail(self) -> NoReturn:
        raise self.error


class FailedWriter(_Failed, StorageWriter):
    """For a save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raises the failure."""
        self._fail()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Never reached, like what follows."""
        self._fail()

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Never reached."""
        self._fail()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Never reached."""
        self._fail()

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Never reached."""
        self._fail()


class FailedReader(_Failed, StorageReader):
    """For a load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns an empty index: without one torch would hide the cause."""
        return Metadata({})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Raises the failure."""
        self._fail()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Never reached, like what follows."""
        self._fail()

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Never reached."""
        self._fail()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Never reached."""
        self._fail()
