"""async_save: torch's, over Varve's writer, with Varve's exceptions in its future."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import Future
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict_saver import async_save as torch_async_save
from torch.distributed.checkpoint.storage import StorageWriter

from varve.torch.dcp._compat import arguments_of
from varve.torch.dcp._errors import Group, checkpoint_error
from varve.torch.dcp._failed import FailedWriter
from varve.torch.dcp._functions import _find, _name, _plain
from varve.torch.dcp._writer import FileSystemWriter

#: Torch 2.6 saves in threads only and has no name for it.
_THREAD: Any = getattr(getattr(state_dict_saver, "AsyncCheckpointerType", None), "THREAD", None)


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    async_checkpointer_type: Any = _THREAD,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Any:
    """Copies a state and saves the copy in torch's thread or process for it.

    Args are those of `save` and of torch's `async_save`. Where neither a writer nor a stager is
    given, Varve's writer makes the copy.

    Returns:
        As torch: a Future of the Metadata, or an AsyncSaveResponse when `async_stager` stages in the
        background. A failed save raises CheckpointError from the future, on every rank.
    """
    what = f"save {_name(checkpoint_id, storage_writer)}"
    group = Group(process_group, no_dist)
    options = arguments_of(
        torch_async_save,
        process_group=process_group,
        async_checkpointer_type=(async_checkpointer_type, _THREAD),
        async_stager=async_stager,
        no_dist=(no_dist, False),
        use_collectives=(use_collectives, True),
    )
    writer = storage_writer
    if writer is None and checkpoint_id:
        writer = _find(checkpoint_id, FileSystemWriter, reader=False)
    try:
        plain = _plain(state_dict)
    except Exception as error:
        # The others are going to wait for this rank in their threads.
        options.pop("async_stager", None)
        made = torch_async_save({}, storage_writer=FailedWriter(error), **options)
    else:
        made = torch_async_save(
            plain, checkpoint_id=checkpoint_id, storage_writer=writer, planner=planner, **options
        )
    response: Any = made
    if isinstance(made, Future):
        return _translated(what, group, made, writer)
    return dataclasses.replace(
        response, upload_completion=_translated(what, group, response.upload_completion, writer)
    )


def _translated(
    what: str, group: Group, upload: Future[Metadata], writer: StorageWriter | None
) -> Future[Metadata]:
    """A future that raises what `save` would raise."""
    out: Future[Metadata] = Future()
    out.set_running_or_notify_cancel()
    rank = group.rank

    def pass_on(done: Future[Metadata]) -> None:
        error = done.exception()
        if error is None:
            out.set_result(done.result())
            return
        if isinstance(writer, FileSystemWriter):
            writer.abandon()
        if isinstance(error, CheckpointException):
            error = checkpoint_error(what, error, rank)
        out.set_exception(error)

    upload.add_done_callback(pass_on)
    return out
