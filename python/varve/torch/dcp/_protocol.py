"""The steps of a save and of a load, as torch's interfaces of planners and storages have them.

They are those of torch.distributed.checkpoint.storage, in its order, and of src/protocol/ in C++. Torch's own
functions send the messages between ranks by collectives of a process group. These send them over the engine's channel
(_ranks.py), so that a save in the background needs no group of its own, and a rank that fails, dies or misses
a call is named.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from varve.torch.dcp._events import log_step
from varve.torch.dcp._ranks import Ranks

_T = TypeVar("_T")


def has_methods_of_its_own(part: Any) -> bool:
    """Returns True for a planner, writer or reader that a caller has given methods in place of its class's."""
    return any(callable(getattr(type(part), name, None)) for name in vars(part))


def save_steps(
    ranks: Ranks,
    process_group: Any,
    state: dict[str, Any],
    writer: StorageWriter,
    planner: SavePlanner | None,
    use_collectives: bool = True,
    failure: BaseException | None = None,
) -> Metadata:
    """Saves a state by a planner and a writer. Collective.

    `process_group` is for torch's log events. Without `use_collectives` each rank is its own coordinator, and
    the ranks learn at the end whether all have succeeded. A rank with a `failure` of its own takes part, to report it to the others.
    """
    hooks: Any = planner if planner is not None else DefaultSavePlanner()
    step = _Steps(process_group, writer)
    made: list[Metadata] = []

    def local_step() -> Any:
        if failure is not None:
            raise failure
        if "storage_meta" in inspect.signature(hooks.set_up_planner).parameters:
            hooks.set_up_planner(
                state_dict=state,
                storage_meta=writer.storage_meta(),
                is_coordinator=ranks.is_coordinator,
            )
        else:  # A planner for an older torch.
            hooks.set_up_planner(state, ranks.is_coordinator)
        _set_up(writer.set_up_storage_writer, (ranks.is_coordinator,), ranks, use_collectives)
        return writer.prepare_local_plan(hooks.create_local_plan())

    def global_step(plans: list[Any]) -> list[Any]:
        plans, metadata = hooks.create_global_plan(plans)
        made.append(metadata)
        return writer.prepare_global_plan(plans)

    def write_data(plan: Any) -> Any:
        written = writer.write_data(hooks.finish_plan(plan), hooks)
        written.wait()
        return written.value()

    def finish_checkpoint(results: list[Any]) -> list[Metadata]:
        writer.finish(metadata=made[0], results=results)
        return made * ranks.size

    def save_alone() -> Metadata:
        plan = step(global_step, [step(local_step)])[0]
        return step(finish_checkpoint, [step(write_data, plan)])[0]

    if not use_collectives:
        return ranks.each("write", save_alone)
    plan = ranks.combine("plan", lambda: step(local_step), lambda plans: step(global_step, plans))
    return ranks.combine(
        "write", lambda: step(write_data, plan), lambda results: step(finish_checkpoint, results)
    )


def load_steps(
    ranks: Ranks,
    process_group: Any,
    state: dict[str, Any],
    reader: StorageReader,
    planner: LoadPlanner | None,
    failure: BaseException | None = None,
) -> None:
    """Loads into a state by a planner and a reader. Collective. `failure` is as in `save_steps`."""
    hooks: Any = planner if planner is not None else DefaultLoadPlanner()
    step = _Steps(process_group, reader)

    def local_step() -> Any:
        if failure is not None:
            raise failure
        metadata, of_all = _index_of(reader, ranks.rank)
        hooks.set_up_planner(state, metadata, ranks.is_coordinator)
        _set_up(reader.set_up_storage_reader, (metadata, ranks.is_coordinator), ranks, of_all)
        return reader.prepare_local_plan(hooks.create_local_plan())

    def global_step(plans: list[Any]) -> list[Any]:
        return reader.prepare_global_plan(hooks.create_global_plan(plans))

    def read_data(plan: Any) -> None:
        reader.read_data(hooks.finish_plan(plan), hooks).wait()

    with getattr(reader, "_varve_reads_together", contextlib.nullcontext)():
        plan = ranks.combine(
            "plan", lambda: step(local_step), lambda plans: step(global_step, plans)
        )
        ranks.each("read", lambda: step(read_data, plan))


class _Steps:
    """Runs steps between torch's log events for them."""

    def __init__(self, process_group: Any, storage: Any) -> None:
        self._fields: dict[str, Any] = {"log_exceptions": False}
        checkpoint_id = getattr(storage, "checkpoint_id", None)
        if checkpoint_id is not None:
            named = {"checkpoint_id": checkpoint_id, "process_group": process_group}
            self._fields |= named

    def __call__(self, step: Callable[..., _T], *arguments: Any) -> _T:
        return log_step(step.__name__, lambda: step(*arguments), **self._fields)


def _set_up(
    set_up: Callable[..., None], arguments: tuple[Any, ...], ranks: Ranks, use_collectives: bool
) -> None:
    """Sets a storage up, one of an older torch's interface too."""
    newer: dict[str, Any] = {}
    if "kwargs" in inspect.signature(set_up).parameters:
        newer = {"rank": ranks.rank, "use_collectives": use_collectives}
    set_up(*arguments, **newer)


def _index_of(reader: Any, rank: int) -> tuple[Metadata, bool]:
    """Returns the index; the rank's own, and False, where a reader of torch's has none of all ranks."""
    try:
        metadata = reader.read_metadata()
        if metadata is None:
            raise ValueError("the reader has no metadata")
        return metadata, True
    except Exception:
        if "kwargs" not in inspect.signature(reader.read_metadata).parameters:
            raise
        try:
            return reader.read_metadata(rank=rank), False
        except Exception:
            pass  # What is missing is the index of all.
        raise
