"""async_save: saves in the background.

The engine copies the state in the call and writes the copy on threads of its own, without the GIL
(src/async/job.cc). This file chooses the stager of a call, makes the handle's futures, and handles
failures.

A stager that has lost a message of other ranks refuses further saves. The refusal goes through the
plans that all ranks exchange, so all learn of it in the same call; stagers that were made by
`async_save` itself are then replaced on all ranks together, and the call is made once more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, cast

from varve import _core, _engine
from varve._core import SaveReport
from varve._engine import Coordinator
from varve._files import Source as FileSource
from varve.errors import STAGER_LOST, Error, InvalidArgumentError
from varve.torch import _run
from varve.torch._coordinator import collective, name_of
from varve.torch._failures import is_failure, warn_of_earlier
from varve.torch._handle import SaveHandle
from varve.torch._stager import Stager, retire, stager_of
from varve.torch._tensors import TorchArrays

_LOST = "the stager has lost a message of other ranks in an earlier save"


def async_save(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any = None,
    stager: Stager | None = None,
    executor: str | None = None,
    staging: str = "blocking",
    write: str = "now",
    overwrite: bool | Literal["damaged"] = False,
    files: Mapping[str, FileSource] | None = None,
    allow_pickle: bool = False,
    coordinate: bool = True,
    format: Literal["varve", "dcp"] = "varve",
    save_id: bytes | None = None,
    on_difference: Literal["warn", "error"] = "warn",
    check_replicas: Literal["samples", "full"] = "samples",
    timeout: float = 1800.0,
    progress: Callable[[int, int], None] | None = None,
    max_write_bandwidth: int = 0,
    retries: int = 1,
    deadline: float | None = None,
    check_torn: bool | None = None,
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
            may then write to the tensors before `handle.wait_staged()`; see `wait_staged_before`.
        write: "now", or "deferred": the agent keeps the copy in memory and writes it only if this process
            exits or is killed before a newer save replaces the copy. The handle's result is then that
            of this rank's copy alone. Only with executor="process".
        overwrite: As in `save`.
        files: As in `save`; read in the call.
        allow_pickle: As in `save`.
        coordinate: As in `save`.
        format: As in `save`.
        save_id: As in `save`.
        on_difference: As in `save`; the warning comes in this call.
        check_replicas: As in `save`. Tensors are not compared where the stager copies them from devices.
        timeout: As in `save`, for each time that ranks wait for each other.
        progress: As in `save`; not with executor="process".
        max_write_bandwidth: Bytes a second that this rank writes at most; 0 for no limit.
        retries: How often a save that failed for want of space or of storage is written again, from
            the copy, after a second, two, and so on.
        deadline: Seconds from the call on after which the save is given up.
        check_torn: Compare samples of every tensor before and after the copy, to find one that was
            written to meanwhile. By default where VARVE_DEBUG is set in the environment.
        on_failure: "log", or "raise": the call raises where an earlier save of the stager has failed
            since the last call, or where this one fails before it returns; on all ranks alike. Nothing
            is then saved.
        on_done: Called with the handle when it has ended, on the thread that writes the next save: it
            must be quick, and neither wait for another save nor start one.

    Returns:
        A future of the SaveReport; see SaveHandle.

    Raises:
        InvalidArgumentError: The arguments themselves make no sense.
    """
    if staging not in ("blocking", "overlapped"):
        raise InvalidArgumentError(f'staging={staging!r}: want "blocking" or "overlapped"')
    if on_done is not None and not callable(on_done):
        raise InvalidArgumentError(f"on_done={on_done!r}: want a function of the handle")
    if on_failure not in ("log", "raise"):
        raise InvalidArgumentError(f'on_failure={on_failure!r}: want "log" or "raise"')
    if stager is not None:
        if process_group is None:
            process_group = stager.process_group
        elif process_group is not stager.process_group:
            raise InvalidArgumentError("the stager was made for another process_group")
        if executor not in (None, stager.executor):
            raise InvalidArgumentError(f"the stager was made with executor={stager.executor!r}")
    if write not in ("now", "deferred"):
        raise InvalidArgumentError(f'write={write!r}: want "now" or "deferred"')
    if write == "deferred" and "process" not in (executor, stager.executor if stager else None):
        raise InvalidArgumentError('write="deferred" needs executor="process"')
    where = _engine.path_text(path)
    own_id = None if coordinate else _run.save_id(where, process_group, save_id)

    def begin_with(stager: Stager, coordinator: Coordinator | None) -> SaveHandle:
        options = _core.AsyncSaveOptions(
            save=_core.SaveOptions(
                overwrite=overwrite,
                coordinate=coordinate,
                format=format,
                save_id=own_id,
                on_difference=on_difference,
                check_replicas=check_replicas,
                timeout=timeout,
                progress=progress,
                max_write_bandwidth=max_write_bandwidth,
            ),
            overlapped=staging == "overlapped",
            retries=retries,
            deadline=deadline,
            check_torn=check_torn,
            deferred=write == "deferred",
        )
        save = Save(state_dict, where, files, allow_pickle, on_failure, options)
        return save.start(stager, coordinator)

    def begin(stager: Stager) -> SaveHandle:
        if not coordinate:
            return begin_with(stager, _run.me(process_group))
        with collective(process_group, timeout, name_of("save", path)) as coordinator:
            return begin_with(stager, coordinator)

    if stager is not None:
        handle = begin(stager)
    else:
        handle = with_shared(process_group, executor or "thread", timeout, begin)
    _engine.warn_of_differences(handle._differing_tensors)
    copied = handle.staging_completion
    if on_failure == "raise" and handle.done() and copied.done() and copied.exception():
        handle.result()
    if on_done is not None:
        handle.add_done_callback(cast("Callable[[Future[SaveReport]], object]", on_done))
    return handle


def with_shared(
    process_group: Any,
    executor: str,
    timeout: float,
    begin: Callable[[Stager], SaveHandle],
    *owner: str,
) -> SaveHandle:
    """Begins a save on the stager that calls without one share; on a new one where that is lost.

    `owner` is the package whose stager it is, as in `stager_of`.
    """
    handle = begin(stager_of(process_group, executor, timeout, *owner))
    if _was_lost(handle):
        handle._looked_at = True
        retire(process_group, executor, *owner)
        handle = begin(stager_of(process_group, executor, timeout, *owner))
    return handle


@dataclass(frozen=True)
class Save:
    """The arguments of a call."""

    state: Mapping[Any, Any]
    path: str
    files: Mapping[str, FileSource] | None
    allow_pickle: bool
    on_failure: str
    options: _core.AsyncSaveOptions

    def start(self, stager: Stager, coordinator: Coordinator | None) -> SaveHandle:
        """Begins the save on a stager."""
        stager_engine = stager._usable()
        handle = SaveHandle()
        handle.path = self.path
        refusal, cause = self._refusal(stager)
        limit = self.options.deadline
        deadline = None if limit is None else time.monotonic() + limit
        rank = 0 if coordinator is None else coordinator.rank
        parts = _engine.Gathered()
        if refusal is None:
            try:
                arrays = TorchArrays(stager.copy_from_devices)
                parts = _engine.gather(self.state, arrays, rank, self.allow_pickle, self.files)
            except Exception as error:
                cause = error
                refusal = error if isinstance(error, Error) else _ours(error)

        def end(report: SaveReport | None, error: BaseException | None) -> None:
            if report is not None:
                _engine.log_conflicts(self.path, report.conflicts)
            if error is not None:
                if cause is not None:
                    error.__cause__ = cause
                if is_failure(error, handle._asked_to_end or stager._aborted, deadline):
                    handle._failed = True
                    tells = rank == 0 or stager._lost or not self.options.save.coordinate
                    stager._failures.add(self.path, error, tells)
            handle._end(report, error)

        handle._keep = parts
        engine = _core.async_save(
            stager_engine,
            parts.engine,
            self.path,
            self.options,
            coordinator,
            handle._end_staging,
            end,
            refusal,
        )
        handle._engine = engine
        if handle.done():
            handle._engine = None
        handle._differing_tensors = engine.differing_tensors
        return handle

    def _refusal(self, stager: Stager) -> tuple[Error | None, BaseException | None]:
        """Why a stager takes no save of this rank, and what that comes from."""
        if self.on_failure != "raise":
            warn_of_earlier(stager._failures)
        known = stager._failures.take() if self.on_failure == "raise" else None
        if stager._lost:
            return InvalidArgumentError(_LOST, path=self.path, reason=STAGER_LOST), None
        if known is None:
            return None, None
        return InvalidArgumentError(known[0], path=self.path), known[1]


def _was_lost(handle: SaveHandle) -> bool:
    error = handle._exception if handle.done() else None
    return isinstance(error, Error) and error.reason == STAGER_LOST


def _ours(error: Exception) -> InvalidArgumentError:
    """Returns an error of ours for one of other software, such as of a `state_dict` that failed."""
    return InvalidArgumentError(f"{type(error).__name__}: {error}")
