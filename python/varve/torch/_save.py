"""async_save and defer_save: saves in the background.

The engine copies the state in the call and writes the copy on threads of its own, without the GIL
(src/async/job.cc), or submits it to the agent. How a call begins is in _background.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from varve import _hf
from varve._files import Source as FileSource
from varve._hf import HfOptions
from varve._upload import copy_of, refuse_upload_apart
from varve._wrappers import to_save
from varve.errors import InvalidArgumentError
from varve.torch._background import Call, begin
from varve.torch._handle import DeferredSaveHandle, SaveHandle
from varve.torch._stager import Stager


def async_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    executor: str | None = None,
    staging: str = "blocking",
    guard: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    save_id: bytes | None = None,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    progress: Callable[[int, int], None] | None = None,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
    upload_to: str | os.PathLike[str] | None = None,
    on_failure: str = "log",
    on_done: Callable[[SaveHandle], None] | None = None,
) -> SaveHandle:
    """Saves the ranks' states in the background: returns when they have been copied.

    Collective over the process group like `save`. A save that fails does not end the training: its
    handle has the error, on every rank. Rank 0 also logs it (logger "varve"), and the next call with
    the same stager warns of it. Ctrl-C during the call cancels this save on all ranks.

    Args:
        state_dict: As in `save`. Plain values are taken as they are at the call.
        path: As in `save`.
        process_group: As in `save`; the stager's, if one is given.
        stager: Kept by the caller for all saves; by default one is made for each process group and
            kept until the interpreter ends.
        executor: "thread" or "process", as in Stager; the stager's, or "thread".
        staging: "blocking", or "overlapped": return at once and copy while training computes. Nothing
            may then write to the tensors before `handle.wait_staged()`; see `guard`.
        guard: With staging="overlapped": a torch optimizer, or an iterable of optimizers. Their next step
            waits for the copy; an error of the copy is the handle's alone. An object that wraps
            optimizers counts as these: those of accelerate, Lightning and torchtitan do.
        overwrite: As in `save`.
        files: As in `save`; read in the call.
        allow_pickle: As in `save`.
        coordinate: As in `save`.
        format: As in `save`.
        hf: As in `save`.
        strip_wrappers: As in `save`.
        save_id: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `save`, of tensors on CUDA devices too.
        timeout: As in `save`, for each time that ranks wait for each other.
        progress: As in `save`; not with executor="process".
        max_write_bandwidth: Bytes a second that this rank writes at most; 0 for no limit.
        retries: How often a save that failed for want of space or of storage is written again, from
            the copy, after a second, two, and so on.
        deadline: Seconds from the call on after which the save is given up.
        check_torn: Compare samples of every tensor before and after the copy, to find one that was
            written to meanwhile. By default in overlapped saves, and where VARVE_DEBUG is set in the
            environment.
        upload_to: As in `save`; in the background, after the save. The handle ends when both are durable,
            and has the error of an upload that failed. The next save does not wait for the upload.
        on_failure: "log", or "raise": the call raises where an earlier save of the stager has failed
            since the last call, or where this one fails before it returns; on all ranks alike. Nothing
            is then saved.
        on_done: Called with the handle when it has ended, on the thread that writes the next save: it
            must be quick, and neither wait for another save nor start one.

    Returns:
        A future of the AsyncSaveReport; see SaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    if not coordinate:
        refuse_upload_apart(upload_to)
    call = Call(
        kind=SaveHandle,
        state=to_save(state_dict, strip_wrappers),
        path=path,
        upload=copy_of(path, upload_to, overwrite, timeout),
        process_group=process_group,
        stager=stager,
        executor=executor,
        staging=staging,
        guard=guard,
        files=files,
        hf=hf,
        allow_pickle=allow_pickle,
        on_failure=on_failure,
        on_end=on_done,
        timeout=timeout,
        coordinate=coordinate,
        save_id=save_id,
        save={
            "overwrite": overwrite,
            "format": format,
            "shard_size": _hf.shard_size(hf),
            "on_difference": on_difference,
            "check_replicas": check_replicas,
            "max_write_bandwidth": max_write_bandwidth,
            "progress": progress,
        },
        staged={"retries": retries, "deadline": deadline, "check_torn": check_torn},
    )
    return begin(call)


def defer_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    staging: str = "blocking",
    guard: Any = None,
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    format: Literal["varve", "dcp", "hf"] = "varve",
    hf: HfOptions | None = None,
    strip_wrappers: bool = False,
    on_difference: Literal["keep", "first", "error"] = "keep",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
    on_failure: str = "log",
    on_held: Callable[[DeferredSaveHandle], None] | None = None,
) -> DeferredSaveHandle:
    """Gives the agent of this node a copy of the ranks' states and writes nothing.

    The agent writes the copy to `path` only if this process exits, is killed or closes the stager
    before a newer save of the stager replaces the copy: a deferred one that all ranks have submitted,
    or one that has been written. Collective over the process group like `save`. `varve agent
    log` has a failure that comes later, and `varve ls` too unless the name is taken.

    Args:
        state_dict: As in `async_save`.
        path: As in `save`.
        process_group: As in `save`; the stager's, if one is given.
        stager: As in `async_save`, made with executor="process". Its `memory_budget` should have room
            for two copies: then one is whole at any time. A state that is larger is refused.
        staging: As in `async_save`.
        guard: As in `async_save`.
        overwrite: As in `save`.
        files: As in `save`; read in the call.
        allow_pickle: As in `save`.
        format: As in `save`.
        hf: As in `save`.
        strip_wrappers: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `async_save`.
        timeout: As in `save`, for each time that ranks wait for each other.
        max_write_bandwidth: Bytes a second that the agent writes at most; 0 for no limit.
        retries: How often the agent writes the copy again, if that failed for want of space or of
            storage.
        deadline: Seconds from the call on after which the save is given up, if the agent does not hold
            the copy.
        check_torn: As in `async_save`.
        on_failure: As in `async_save`.
        on_held: Called with the handle when the save has ended: the agent holds the copy, or never
            will. It must be quick, and neither wait for another save nor start one.

    Returns:
        A future of the DeferredReport, which speaks of this rank alone; see DeferredSaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    if stager is not None and stager.executor != "process":
        raise InvalidArgumentError(
            f"the stager was made with executor={stager.executor!r}: defer_save needs one with "
            'executor="process"'
        )
    call = Call(
        kind=DeferredSaveHandle,
        state=to_save(state_dict, strip_wrappers),
        path=path,
        process_group=process_group,
        stager=stager,
        executor="process",
        staging=staging,
        guard=guard,
        files=files,
        hf=hf,
        allow_pickle=allow_pickle,
        on_failure=on_failure,
        on_end=on_held,
        timeout=timeout,
        coordinate=True,
        save_id=None,
        save={
            "overwrite": overwrite,
            "format": format,
            "shard_size": _hf.shard_size(hf),
            "on_difference": on_difference,
            "check_replicas": check_replicas,
            "max_write_bandwidth": max_write_bandwidth,
        },
        staged={"retries": retries, "deadline": deadline, "check_torn": check_torn},
    )
    return begin(call)
