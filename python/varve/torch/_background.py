"""How saves in the background begin: which stager a call uses, its options, the handle, failures.

A stager that has lost a message of other ranks refuses further saves. The refusal goes through the
plans that all ranks exchange, so all learn of it in the same call; stagers that were made by the call
itself are then replaced on all ranks together, and the call is made once more.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from varve import _engine
from varve._core import Coordinator, background
from varve._upload import Copy, Promise, copy_of
from varve.errors import STAGER_LOST, Error, InvalidArgumentError
from varve.torch import _run
from varve.torch._coordinator import background_in
from varve.torch._failures import Failures, is_failure, owners_or, raised_again, warn_of_earlier
from varve.torch._guard import guards_of, optimizers_of
from varve.torch._handle import Differing, Handle
from varve.torch._later import Meeting
from varve.torch._stager import Stager, retire, stager_of
from varve.torch._tensors import TorchArrays

_LOST = "the stager has lost a message of other ranks in an earlier save"

#: The handle of one kind of save.
AnyHandle = TypeVar("AnyHandle", bound=Handle[Any])


def begin(
    kind: type[AnyHandle],
    content: _engine.Content,
    path: str | os.PathLike[str],
    made_options: Callable[[bytes | None], background.AsyncSaveOptions],
    *,
    process_group: Any,
    stager: Stager | None,
    executor: str | None,
    staging: str,
    guard: Any,
    timeout: float,
    on_failure: str,
    on_end: Callable[[AnyHandle], None] | None,
    coordinate: bool = True,
    save_id: bytes | None = None,
    upload_to: str | os.PathLike[str] | None = None,
) -> AnyHandle:
    """Checks the arguments, begins the save and returns its handle.

    `made_options` is called in the ranks' call with the id of an uncoordinated save: where one rank has an
    option that makes no sense, the others learn of it. The other arguments are as in `async_save`, but
    `executor` is None for the stager's, or "thread".
    """
    if staging not in ("blocking", "overlapped"):
        raise InvalidArgumentError(f'staging={staging!r}: want "blocking" or "overlapped"')
    optimizers = optimizers_of(guard)
    if on_end is not None and not callable(on_end):
        raise InvalidArgumentError(f"{kind._hook}={on_end!r}: want a function of the handle")
    if on_failure not in ("log", "raise"):
        raise InvalidArgumentError(f'on_failure={on_failure!r}: want "log" or "raise"')
    if stager is not None:
        if process_group is not None and process_group is not stager.process_group:
            raise InvalidArgumentError("the stager was made for another process_group")
        process_group = stager.process_group
        if executor not in (None, stager.executor):
            raise InvalidArgumentError(f"the stager was made with executor={stager.executor!r}")
    where = _engine.path_text(path)
    own_id = _run.save_id(path, process_group, save_id, coordinate)
    guards = guards_of(optimizers) if staging == "overlapped" else []

    def start(stager: Stager) -> AnyHandle:
        handle = kind()
        with cancelled_by_errors(handle):
            with _run.ranks(path, process_group, timeout, coordinate) as coordinator:
                options = made_options(own_id)
                upload = copy_of(path, upload_to, options.save)
                save = Save(handle, content, where, options, on_failure, upload)
                save.start(stager, coordinator)
            handle._guard(guards)
            handle._warning = _engine.warn_of_values(where, handle._differing, options.save)
        return handle

    if stager is not None:
        handle = start(stager)
    else:
        handle = with_shared(process_group, executor or "thread", timeout, start)
    if handle._raised_by_call:
        handle.result()
    if on_end is not None:
        handle.add_done_callback(cast("Callable[[Future[Any]], object]", on_end))
    return handle


@contextlib.contextmanager
def cancelled_by_errors(save: Any) -> Iterator[None]:
    """Cancels a save that has begun where the block raises: its caller gets no handle. As a rule it is Ctrl-C."""
    try:
        yield
    except BaseException:
        save.cancel()
        raise


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
    """One save in the background."""

    handle: AnyHandle
    content: _engine.Content
    path: str
    options: background.AsyncSaveOptions
    on_failure: str = "log"
    upload: Copy | None = None

    def start(self, stager: Stager, coordinator: Coordinator | None) -> AnyHandle:
        """Begins the save on a stager, and returns its handle."""
        stager_engine = stager._usable()
        handle = self.handle
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
                parts = _engine.gather(self.content, arrays, rank, self.options.save.format)
            except Exception as error:
                cause = error
                refusal = error if isinstance(error, Error) else _ours(error)
            except BaseException:  # Ctrl-C.
                if promise is not None:
                    promise.take_back()
                raise

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

        def begun(engine: background.AsyncSaveHandle) -> None:
            if not handle._saved:
                handle._engine = engine
            if handle._ended:
                handle._engine = None

        handle._keep = parts
        with cancelled_by_errors(handle), meeting.ends():
            engine = background.begin_save(
                stager_engine,
                parts.engine,
                self.path,
                self.options,
                handle._deferred,
                coordinator,
                begun,
                handle._end_staging,
                end,
                refusal,
            )
            if self.upload is not None and engine.agreed:
                timeout = self.options.save.timeout
                meeting.connect(lambda: background_in(coordinator, timeout))
        copied = handle.staging_completion
        if self.on_failure == "raise" and handle.done() and copied.done() and copied.exception():
            handle._raised_by_call = True
            failures.forget(cast("BaseException", handle._exception))
        handle._differing = Differing(engine.differing_tensors, engine.differing_objects)
        return handle

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
        return raised_again(*known), known[1]


def _was_lost(handle: Handle[Any]) -> bool:
    error = handle._exception if handle._ended else None
    return isinstance(error, Error) and error.reason == STAGER_LOST


def _ours(error: Exception) -> InvalidArgumentError:
    """An error of ours for one of other software, such as of a `state_dict` that failed."""
    return InvalidArgumentError(f"{type(error).__name__}: {error}")
