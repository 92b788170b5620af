"""async_save by torch's own function: for saves that neither this package's threads nor the agent make."""

from __future__ import annotations

import dataclasses
import inspect
import os
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter

from varve.torch.dcp._errors import Group, checkpoint_error
from varve.torch.dcp._failed import FailedWriter
from varve.torch.dcp._functions import plain_of
from varve.torch.dcp._writer import FileSystemWriter

#: Without its own log events: ours are there already.
torch_async_save: Any = inspect.unwrap(state_dict_saver.async_save)


def save_by_torch(
    what: str,
    group: Group,
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str] | None,
    writer: StorageWriter | None,
    planner: SavePlanner | None,
    options: dict[str, Any],
) -> Any:
    try:
        plain = plain_of(state_dict)
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
