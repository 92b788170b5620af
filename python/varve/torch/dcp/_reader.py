"""FileSystemReader: torch's storage interface over Varve's reading."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from varve import _core
from varve._arguments import first_names
from varve._core import states
from varve._engine import collector_at_rest
from varve._warn import warn
from varve.errors import ReplicasDifferWarning, UnsupportedError
from varve.torch.dcp._metadata import metadata_of
from varve.torch.dcp._names import Names, is_object, is_ours, name_of
from varve.torch.dcp._plain_plan import PlainLoadPlanner
from varve.torch.dcp._protocol import has_methods_of_its_own
from varve.torch.dcp._read import PlanReader


@dataclasses.dataclass(frozen=True)
class _Reads:
    """Travels in `LoadPlan.storage_data`: what a rank needs to read, and then with whom it reads."""

    need: bytes
    sharing: bytes = b""


class FileSystemReader(filesystem.FileSystemReader):
    """Reads checkpoints of DCP and of all other formats that Varve opens, for torch's planners.

    Takes the place of torch's class of this name, of which it is a subclass. Reads only the bytes
    that a plan needs, in parallel, straight into the tensors where their dtype and device allow it,
    and compares the checksums that the checkpoint has. The index is decoded without running a
    pickle. (Torch's planner gets the bytes of plain values and unpickles them.) Checkpoints that
    ranks saved without collectives are read as one and loaded by any number of ranks.

    Tensors of another dtype than the stored one are converted, as torch does.

    Args:
        path: The checkpoint: a directory, or "s3://bucket/key".
        _extension_registry: As in torch. Varve undoes `stream.zstd` itself. A checkpoint that has
            other transforms is read by torch's own reader, if a registry is given: that unpickles
            its index. Not from an object store.
    """

    def __init__(
        self, path: str | os.PathLike[str], _extension_registry: Any | None = None
    ) -> None:
        newer = () if _extension_registry is None else (_extension_registry,)  # Not in torch 2.6.
        super().__init__(name_of(path), *newer)
        self.fs = Names()
        self.path = self.fs.init_path(name_of(path))
        self.rank = None
        self.use_collectives = True
        self._by_torch = False
        self.falls_back = bool(newer)  # Torch reads what Varve cannot read.
        self._serves = False
        self._serving: _core.Reader | None = None
        self._forget()

    def _forget(self) -> None:
        self._reader: _core.Reader | None = None
        self._by_torch = False
        self._index: Metadata | None = None
        self._planned: states.LoadRequest | None = None

    @contextlib.contextmanager
    def _varve_reads_together(self) -> Iterator[None]:
        """Lets ranks read for those of other nodes; it ends when all have read, or one has failed."""
        self._serves = True
        try:
            yield
        finally:
            self._serves = False
            for reader in (self._reader, self._serving):
                if reader is not None:
                    reader.end_sharing()
            self._serving = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns True for paths and for names in object stores that Varve serves."""
        return is_ours(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins anew, with another checkpoint if one is given."""
        self._forget()
        super().reset(name_of(checkpoint_id) if checkpoint_id else None)

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Returns the index of the checkpoint, one for all ranks.

        (`options` is not called `kwargs`, by which torch knows readers that can be asked for the index
        of one rank when there is none of all.)
        """
        index, self._index = self._index, None
        if index is not None:
            return index
        self._forget()
        try:
            self._reader = _core.Reader(str(self.path))
            with collector_at_rest():
                return metadata_of(self._reader, self.load_id)
        except UnsupportedError:
            if not self.falls_back or is_object(self.path):
                raise
            self._by_torch = True
            return super().read_metadata(*args, **options)

    def open(self, state: dict[str, Any] | None = None) -> PlainLoadPlanner | None:
        """Reads the index that the next `read_metadata` returns.

        torch logs a failure of `read_metadata` with its traceback, and asks for another index. A caller
        that opens the checkpoint first gets the failure alone.

        `state` is what torch's default planner is to fill. Returns a planner that does the same in less time,
        where the state is plain: that needs no index.
        """
        self._forget()
        try:
            self._reader = _core.Reader(str(self.path))
            planner = None
            is_ours = type(self) is FileSystemReader and not has_methods_of_its_own(self)
            if state is not None and is_ours:
                planner = PlainLoadPlanner.of(state, self._reader)
            if planner is None:
                with collector_at_rest():
                    self._index = metadata_of(self._reader, self.load_id)
            else:
                self._index = Metadata({})
                self._planned = planner.request
        except UnsupportedError:
            self._index = FileSystemReader.read_metadata(self)
            return None
        return planner

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Takes the metadata that plans will refer to."""
        self.storage_data = metadata.storage_data or {}
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Notes in the plan's `storage_data` what this rank needs to read."""
        plan = super().prepare_local_plan(plan)
        alone = not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
        if self._reader is None or alone:
            return plan
        request = self._planned or PlanReader(self._reader, self.storage_data).needed(plan)
        need = self._reader.need(request, self._serves)
        return dataclasses.replace(plan, storage_data=_Reads(need))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Decides which ranks share their reads: they read what they all need once."""
        plans = super().prepare_global_plan(plans)
        reads = [plan.storage_data for plan in plans if isinstance(plan.storage_data, _Reads)]
        if self._reader is None or len(reads) < len(plans):
            return plans
        shared = self._reader.share_needs([one.need for one in reads])
        return [
            dataclasses.replace(plan, storage_data=_Reads(one.need, sharing))
            for plan, one, sharing in zip(plans, reads, shared, strict=True)
        ]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads all items of the plan; every planned element has been filled when it returns."""
        if self._by_torch:
            return super().read_data(plan, planner)
        reader = self._reader or _core.Reader(str(self.path))
        self._reader = self._planned = None  # Frees memory and open files once this is done.
        request = None
        if isinstance(planner, PlainLoadPlanner):
            reader, request = planner.reader, planner.request
        if isinstance(plan.storage_data, _Reads) and plan.storage_data.sharing:
            self._serving = reader if self._serves else None
            reader.begin_sharing(plan.storage_data.sharing)
        self._choose_values(reader)
        PlanReader(reader, self.storage_data).read(plan, planner, request)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @staticmethod
    def _choose_values(reader: _core.Reader) -> None:
        """Chooses this rank's own values of what differed between as many ranks; else the lowest's."""
        differing = list(reader.variants())
        if not differing:
            return
        joined = dist.is_available() and dist.is_initialized()
        if joined and dist.get_world_size() == reader.world_size:
            reader.take_values_of(dist.get_rank())
            return
        warn(
            f"load {reader.directory}: the {reader.world_size} ranks that saved held different values "
            f"under one name: {first_names(differing)}. The lowest rank's value is loaded",
            ReplicasDifferWarning,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Without the open checkpoint, which stays in its process."""
        return {**self.__dict__, "_reader": None, "_index": None}
