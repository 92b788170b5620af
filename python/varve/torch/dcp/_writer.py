"""FileSystemWriter: torch's storage interface over Varve's writing and publishing."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from varve._engine import collector_at_rest
from varve.errors import InvalidArgumentError, UnavailableError
from varve.torch._coordinator import name_of as varve_name_of
from varve.torch.dcp._index import complete
from varve.torch.dcp._names import Names, is_object, is_ours, name_of
from varve.torch.dcp._protocol import has_methods_of_its_own
from varve.torch.dcp._publish import Publication, begin
from varve.torch.dcp._replicas import (
    Sent,
    begin_call,
    can_compare,
    check_arrived,
    differing,
    fingerprints,
    warn_of,
)
from varve.torch.dcp._write import split, write_files

_COPY_AHEAD = 10_000_000
#: Torch 2.6 has no formats to choose from.
_FORMATS: Any = getattr(filesystem, "SerializationFormat", None)
_TORCH_SAVE: Any = getattr(_FORMATS, "TORCH_SAVE", None)

#: The plan that came to this thread last, from the coordinator; see Place.
_arrived = threading.local()

#: The writer that has claimed a name, by thread. A thread makes one save after the other: one that it
#: has not ended when it claims the name again is dead.
_claims: weakref.WeakValueDictionary[tuple[int, str], FileSystemWriter] = (
    weakref.WeakValueDictionary()
)


@dataclasses.dataclass
class Place:
    """The place where a rank is to write; the coordinator sends it in SavePlan.storage_data.

    Planners that cache plans throw away a plan that has not changed and take the one of an earlier
    save instead, with that save's directory. So the arrival of a plan is recorded as well: the
    place that arrived last is right, whatever plan the planner then uses.
    """

    prefix: str
    """The beginning of the names of the rank's files."""
    directory: str
    """As the coordinator sees it."""
    first: int
    """Number of the first file."""
    below: str = ""
    """The prefix of the files' names: empty, or a directory in `directory` and "/"."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _arrived.place = self


class FileSystemWriter(filesystem.FileSystemWriter):
    """Writes DCP checkpoints that appear whole or not at all, and that stock PyTorch opens.

    Takes the place of torch's class of this name, of which it is a subclass: with torch's planners,
    `save` and `async_save`, and with its behaviour as a stager.

    All files are written and made durable in a hidden directory beside `path`. `finish` checks that
    every planned item is there and gives the directory its name in one step. Until then a
    checkpoint at `path` stays as it is, and a save that fails or dies changes nothing. A directory
    that holds other files too is kept: data files go there under names that are not taken, and
    replacing `.metadata` makes them the checkpoint. In both cases no file of the old one stays
    afterwards. A second save of the same `path` at once is refused.

    Saves with `use_collectives=False` have no coordinator. Each rank writes its files into `path`
    under names that are not taken and replaces its `__R.metadata` last; its earlier file stays
    whole until then. Two promises do not hold there: that all ranks replace theirs or none does,
    and that files of further ranks of an earlier save are removed. Use a new `path` for each such
    save.

    Args:
        path: A directory on storage that all ranks share, or "s3://bucket/key".
        single_file_per_rank: False writes a file for each item.
        sync_files: Files are made durable in any case. False warns.
        thread_count: Files a rank writes at once; its items are spread over as many by size.
        per_thread_copy_ahead: Bytes of a file's tensors that a planner makes anew, or that torch copies from
            a device, before they are written; for each file that is being written. One tensor more is
            held at most. 0: one tensor at a time. With `_extensions` all of a file's items are resolved
            before it is written.
        cache_staged_state_dict: As in torch: `stage` reuses its buffers.
        overwrite: False refuses to replace a checkpoint.
        _extensions: As in torch; items then pass through Python one by one.
        serialization_format: Only SerializationFormat.TORCH_SAVE. Torch itself cannot read back its
            own writer's SAFETENSORS files.

    Raises:
        InvalidArgumentError: An argument is not valid (a ValueError).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = _COPY_AHEAD,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Sequence[Any] | None = None,
        serialization_format: Any = _TORCH_SAVE,
    ) -> None:
        if type(thread_count) is not int or thread_count < 1:
            raise InvalidArgumentError(f"thread_count={thread_count!r}: want a number from 1 on")
        if type(per_thread_copy_ahead) is not int or per_thread_copy_ahead < 0:
            raise InvalidArgumentError(
                f"per_thread_copy_ahead={per_thread_copy_ahead!r}: want a number of bytes from 0 on"
            )
        if serialization_format is not _TORCH_SAVE:
            raise InvalidArgumentError(
                f"serialization_format={serialization_format}: a checkpoint with .metadata can only "
                "be read back as SerializationFormat.TORCH_SAVE"
            )
        if not sync_files:
            warnings.warn(
                "sync_files=False: Varve makes files durable in any case",
                stacklevel=2,
            )
        newer: dict[str, Any] = {}
        if _extensions is not None:
            newer["_extensions"] = _extensions  # Not in torch 2.6.
        super().__init__(
            name_of(path),
            single_file_per_rank=single_file_per_rank,
            sync_files=sync_files,
            thread_count=thread_count,
            per_thread_copy_ahead=per_thread_copy_ahead,
            cache_staged_state_dict=cache_staged_state_dict,
            overwrite=overwrite,
            **newer,
        )
        self.fs = Names()
        self.path = self.fs.init_path(name_of(path))
        self.rank: int | None = None
        self.use_collectives = True
        self._transforms = bool(_extensions)
        self._publication: Publication | None = None
        self._place: Place | None = None
        self._compared: SavePlanner | None = None
        self._differing: list[str] = []

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns True for paths and for names in object stores that Varve serves."""
        return is_ours(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins anew, under another name if one is given."""
        self.abandon()
        super().reset(name_of(checkpoint_id) if checkpoint_id else None)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begins a save; torch passes this rank and whether ranks exchange messages in `kwargs`."""
        self.abandon()
        self._place = None
        self._differing = []
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)
        if not self.use_collectives and self.rank is None:
            raise InvalidArgumentError(
                "use_collectives=False needs a rank: it is part of the names"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Touches no file, but for a save without collectives, which begins here on each rank."""
        _arrived.place = None
        if self.use_collectives or self.rank is None:
            begin_call()
            planner, self._compared = self._compared, None
            prints = None if planner is None else fingerprints(plan, planner)
            call = varve_name_of("save", self.path)
            return dataclasses.replace(plan, storage_data=Sent(call, prints))
        path, rank = str(self.path), self.rank
        self._publication = self._claim(lambda: begin(path, self.overwrite, rank))
        self._place = self._place_of(rank)
        return dataclasses.replace(plan, storage_data=self._place)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Claims the name and sends the ranks the place to write to."""
        if not self.use_collectives:
            return plans
        check_arrived()
        self._publication = self._claim(lambda: begin(str(self.path), self.overwrite))
        self._differing = differing(plans)
        places = [self._place_of(rank) for rank in range(len(plans))]
        self._place = places[0]
        return [
            dataclasses.replace(plan, storage_data=place)
            for plan, place in zip(plans, places, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's items; durable when it returns. Every failure is raised."""
        place = self._where(plan)
        future: Future[list[WriteResult]] = Future()
        if self.single_file_per_rank:
            groups = split(plan.items, self.thread_count)
        else:
            groups = [[item] for item in plan.items]
        files = [
            (f"{place.below}{place.prefix}{place.first + i}.distcp", group)
            for i, group in enumerate(groups)
        ]
        transform = self.transforms.transform_save_stream if self._transforms else None
        directory = self._seen_from_here(place)
        results = write_files(
            directory, files, planner, self.thread_count, self.per_thread_copy_ahead, transform
        )
        future.set_result(list(results))
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Completes the metadata and publishes the checkpoint."""
        publication = self._publication
        if publication is None:
            raise InvalidArgumentError("finish() without a save that is under way here")
        meta = self.storage_meta() or StorageMeta()
        # As text: a path object names a module that not every version of Python has.
        metadata.storage_meta = dataclasses.replace(meta, checkpoint_id=str(self.path))
        with collector_at_rest():
            index, files = complete(metadata, results, publication.directory)
        publication.publish(files, index)
        self._publication = None
        warn_of(self._differing)

    def writes_plainly(self) -> bool:
        """Returns True where each rank's items become one file, as the engine stores them."""
        return (
            type(self) is FileSystemWriter
            and not has_methods_of_its_own(self)
            and self.single_file_per_rank
            and self.thread_count == 1
            and not self._transforms
        )

    def compare_replicas(self, planner: SavePlanner | None) -> None:
        """Lets the next save warn of replicas that differ; `planner` is the one that it is given.

        Called on all ranks, before the save. None, or a planner whose tensors cannot be compared: the
        next save does not warn.
        """
        self._compared = planner if planner is not None and can_compare(planner) else None

    def abandon(self) -> None:
        """Ends a save that will not be finished: removes its files, frees its name.

        Happens by itself when the writer is reset or begins another save, and when a function of
        `varve.torch.dcp` fails.
        """
        publication, self._publication = self._publication, None
        if publication is not None:
            publication.abandon()

    def __getstate__(self) -> dict[str, Any]:
        """For torch's checkpointing process: a save under way does not move there."""
        return {**self.__dict__, "_publication": None, "_place": None, "_compared": None}

    def _claim(self, begins: Callable[[], Publication]) -> Publication:
        """Begins a publication; the save that this thread has begun and not ended is dead."""
        key = (threading.get_ident(), os.path.realpath(self.path))
        earlier = _claims.get(key)
        if earlier is not None:
            earlier.abandon()
        publication = begins()
        _claims[key] = self
        return publication

    def _place_of(self, rank: int) -> Place:
        made = self._publication
        assert made is not None
        return Place(f"__{rank}_", made.directory, made.first, made.below)

    def _where(self, plan: SavePlan) -> Place:
        """Returns this rank's place in the save that is under way."""
        if not self.use_collectives and self._place is not None:
            return self._place
        current = self._place or getattr(_arrived, "place", None) or plan.storage_data
        # A planner that caches plans may use one of a save through torch's writer; it has a prefix.
        prefix = getattr(plan.storage_data, "prefix", None)
        if not isinstance(current, Place) or prefix is None:
            raise InvalidArgumentError(
                "the plan does not say where to write: its storage_data, as prepare_global_plan "
                "made it, was lost on the way; a planner's create_global_plan and finish_plan have "
                "to keep it"
            )
        return dataclasses.replace(current, prefix=prefix)

    def _seen_from_here(self, place: Place) -> str:
        """Returns the coordinator's directory; this rank may have the storage mounted elsewhere."""
        if is_object(self.path):
            return place.directory
        here = os.path.realpath(self.path)
        name = os.path.basename(place.directory)
        if name == os.path.basename(here):
            return here
        directory = os.path.join(os.path.dirname(here), name)
        if not os.path.isdir(directory):
            raise UnavailableError(
                f"{directory} was made by the coordinator and is not there: the ranks do not share "
                f"the storage of {self.path}"
            )
        return directory
