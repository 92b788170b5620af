"""async_save by torch's own function: for saves that neither this package's threads nor the agent make."""

from __future__ import annotations

import dataclasses
import inspect
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import StorageWriter

from varve.torch.dcp._errors import checkpoint_error
from varve.torch.dcp._job import Job
from varve.torch.dcp._ranks import Group
from varve.torch.dcp._writer import FileSystemWriter

#: Without its own log events: this package logs them already.
torch_async_save: Any = inspect.unwrap(state_dict_saver.async_save)


def save_by_torch(job: Job, options: dict[str, Any]) -> Any:
    """Saves by torch's `async_save`, with these further arguments."""
    failed = job.failed()
    if failed is not None:
        return failed
    made = torch_async_save(
        job.state,
        checkpoint_id=job.checkpoint_id,
        storage_writer=job.writer,
        planner=job.planner,
        **options,
    )
    response: Any = made
    if isinstance(made, Future):
        return _translated(job.what, job.group, made, job.writer)
    upload = _translated(job.what, job.group, response.upload_completion, job.writer)
    return dataclasses.replace(response, upload_completion=upload)


def _translated(
    what: str, group: Group, upload: Future[Metadata], writer: StorageWriter | None
) -> Future[Metadata]:
    """Returns a future that raises what `save` would raise."""
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
