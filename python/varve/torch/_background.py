"""How saves in the background begin: which stager a call uses, its options, the handle, failures.

A stager that has lost a message of other ranks refuses further saves. The refusal goes through the
plans that all ranks exchange, so all learn of it in the same call; stagers that were made by the call
itself are then replaced on all ranks together, and the call is made once more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from varve import _core, _engine
from varve._core import Coordinator, background
from varve._files import Source as FileSource
from varve._hf import HfOptions
from varve._upload import Copy, Promise
from varve.errors import STAGER_LOST, Error, InvalidArgumentError
from varve.torch import _run
from varve.torch._coordinator import background_in, collective, name_of
from varve.torch._failures import Failures, is_failure, owners_or, warn_of_earlier
from varve.torch._guard import guards_of, optimizers_of
from varve.torch._handle import Differing, Handle
from varve.torch._later import Meeting
from varve.torch._stager import Stager, retire, stager_of
from varve.torch._tensors import TorchArrays

_LOST = "the stager has lost a message of other ranks in an earlier save"

#: The handle of one kind of save.
AnyHandle = TypeVar("AnyHandle", bound=Handle[Any])


@dataclass(frozen=True)
class Call(Generic[AnyHandle]):
    """The arguments that all saves in the background have."""

    kind: type[AnyHandle]
    state: Mapping[Any, Any]
    path: str | os.PathLike[str]
    process_group: Any
    stager: Stager | None
    executor: str | None
    """None: the stager's, or "thread"."""
    staging: str
    files: Mapping[str, FileSource] | None
    allow_pickle: bool
    on_failure: str
    on_end: Callable[[AnyHandle], None] | None
    timeout: float
    coordinate: bool
    save_id: bytes | None
    save: dict[str, Any]
    """More fields of the engine's SaveOptions."""
    staged: dict[str, Any]
    """More fields of its AsyncSaveOptions or DeferSaveOptions."""
    hf: HfOptions | None = None
    upload: Copy | None = None
    guard: Any = None
    """Optimizers whose next step waits for an overlapped copy."""

    def made_options(self, save_id: bytes | None) -> Any:
        """The engine's options. Raises InvalidArgumentError for a value that one cannot have."""
        save = _core.SaveOptions(
            **self.save,
            coordinate=self.coordinate,
            timeout=self.timeout,
            save_id=save_id,
            upload_to="" if self.upload is None else self.upload.target,
        )
        return self.kind._options(**self.staged, save=save, overlapped=self.staging == "overlapped")


def begin(call: Call[AnyHandle]) -> AnyHandle:
    """Checks the arguments, begins the save and returns its handle."""
    if call.staging not in ("blocking", "overlapped"):
        raise InvalidArgumentError(f'staging={call.staging!r}: want "blocking" or "overlapped"')
    optimizers = optimizers_of(call.guard)
    if call.on_end is not None and not callable(call.on_end):
        raise InvalidArgumentError(
            f"{call.kind._hook}={call.on_end!r}: want a function of the handle"
        )
    if call.on_failure not in ("log", "raise"):
        raise InvalidArgumentError(f'on_failure={call.on_failure!r}: want "log" or "raise"')
    group = call.process_group
    if call.stager is not None:
        if group is None:
            group = call.stager.process_group
        elif group is not call.stager.process_group:
            raise InvalidArgumentError("the stager was made for another process_group")
        if call.executor not in (None, call.stager.executor):
            raise InvalidArgumentError(
                f"the stager was made with executor={call.stager.executor!r}"
            )
    where = _engine.path_text(call.path)
    own_id = None if call.coordinate else _run.save_id(where, group, call.save_id)

    def begin_with(stager: Stager, coordinator: Coordinator | None) -> AnyHandle:
        save = Save(
            call.kind,
            call.state,
            where,
            call.files,
            call.allow_pickle,
            call.on_failure,
            call.made_options(own_id),
            call.hf,
            call.save["format"],
            call.upload,
        )
        return save.start(stager, coordinator)

    def start(stager: Stager) -> AnyHandle:
        if not call.coordinate:
            return begin_with(stager, _run.me(group))
        with collective(group, call.timeout, name_of("save", call.path)) as coordinator:
            return begin_with(stager, coordinator)

    guards = guards_of(optimizers) if call.staging == "overlapped" else []
    if call.stager is not None:
        handle = start(call.stager)
    else:
        handle = with_shared(group, call.executor or "thread", call.timeout, start)
    handle._guard(guards)
    handle._warning = _engine.warn_of_values(
        where, handle._differing, call.save["format"], call.save["on_difference"]
    )
    if handle._raised_by_call:
        handle.result()
    if call.on_end is not None:
        handle.add_done_callback(cast("Callable[[Future[Any]], object]", call.on_end))
    return handle


def with_shared(
    process_group: Any,
    executor: str,
    timeout: float,
    begin: Callable[[Stager], AnyHandle],
    *owner: str,
) -> AnyHandle:
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
class Save(Generic[AnyHandle]):
    """The arguments of a call."""

    kind: type[AnyHandle]
    state: Mapping[Any, Any]
    path: str
    files: Mapping[str, FileSource] | None
    allow_pickle: bool
    on_failure: str
    options: background.AsyncSaveOptions | background.DeferSaveOptions
    hf: HfOptions | None = None
    format: str = "varve"
    upload: Copy | None = None

    def start(self, stager: Stager, coordinator: Coordinator | None) -> AnyHandle:
        """Begins the save on a stager."""
        stager_engine = stager._usable()
        handle = self.kind()
        handle.path = self.path
        failures = owners_or(stager._failures)
        refusal, cause = self._refusal(stager, failures)
        limit = self.options.deadline
        deadline = None if limit is None else time.monotonic() + limit
        rank = 0 if coordinator is None else coordinator.rank
        parts = _engine.Gathered()
        promise: Promise | None = None
        meeting = Meeting(None if self.upload is None else stager._prepared_uploads())
        if refusal is None:
            try:
                if self.upload is not None and rank == 0:
                    promise = self.upload.promise()
                arrays = TorchArrays(stager.copy_from_devices)
                parts = _engine.gather(
                    self.state,
                    arrays,
                    rank,
                    self.allow_pickle,
                    self.files,
                    self.hf,
                    self.format,
                )
            except Exception as error:
                cause = error
                refusal = error if isinstance(error, Error) else _ours(error)

        def end(report: Any, error: BaseException | None) -> None:
            if report is not None:
                _engine.log_conflicts(self.path, getattr(report, "conflicts", []))
            if error is not None:
                if cause is not None:
                    error.__cause__ = cause
                if is_failure(error, handle._asked_to_end or stager._aborted, deadline):
                    handle._failed = True
                    tells = rank == 0 or stager._lost or not self.options.save.coordinate
                    failures.add(self.path, error, tells)
                if promise is not None:
                    promise.take_back()
            if error is None and self.upload is not None:
                self._upload(stager, handle, report, failures, meeting)
                return
            handle._end(report, error)

        handle._keep = parts
        with meeting.ends():
            engine = self.kind._begin(
                stager_engine,
                parts.engine,
                self.path,
                self.options,
                coordinator,
                handle._end_staging,
                end,
                refusal,
            )
            if self.upload is not None and engine.agreed:
                self._connect_uploads(meeting, engine, coordinator)
        if not handle._saved:
            handle._engine = engine
        if handle.done():
            handle._engine = None
        copied = handle.staging_completion
        if self.on_failure == "raise" and handle.done() and copied.done() and copied.exception():
            handle._raised_by_call = True
            failures.forget(cast("BaseException", handle._exception))
        handle._differing = Differing(engine.differing_tensors, engine.differing_objects)
        return handle

    def _connect_uploads(
        self, meeting: Meeting, engine: Any, coordinator: Coordinator | None
    ) -> None:
        timeout = self.options.save.timeout
        try:
            meeting.connect(lambda: background_in(coordinator, timeout))
        except BaseException:  # Ctrl-C.
            engine.cancel()
            raise

    def _upload(
        self, stager: Stager, handle: AnyHandle, report: Any, failures: Failures, meeting: Meeting
    ) -> None:
        """Uploads what has been saved, on the stager's thread for that, and ends the handle."""
        copy, uploads = self.upload, stager._uploads
        assert copy is not None and uploads is not None

        def ended(error: Exception | None) -> None:
            if error is not None and not (handle._asked_to_end or stager._aborted):
                handle._failed = True
                tells = uploads.coordinator is None or uploads.coordinator.rank == 0
                failures.add(self.path, error, tells)
            handle._end(None if error else report, error)

        handle._saved = True
        handle._engine = uploads.upload_later(copy, ended, meeting.check)  # What `cancel` ends now.

    def _refusal(
        self, stager: Stager, failures: Failures
    ) -> tuple[Error | None, BaseException | None]:
        """Why a stager takes no save of this rank, and what that comes from."""
        if self.on_failure != "raise":
            warn_of_earlier(failures)
        known = failures.take() if self.on_failure == "raise" else None
        if stager._lost:
            return InvalidArgumentError(_LOST, path=self.path, reason=STAGER_LOST), None
        if known is None:
            return None, None
        return InvalidArgumentError(known[0], path=self.path), known[1]


def _was_lost(handle: Handle[Any]) -> bool:
    error = handle._exception if handle.done() else None
    return isinstance(error, Error) and error.reason == STAGER_LOST


def _ours(error: Exception) -> InvalidArgumentError:
    """An error of ours for one of other software, such as of a `state_dict` that failed."""
    return InvalidArgumentError(f"{type(error).__name__}: {error}")
