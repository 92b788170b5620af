"""The handles of saves in the background."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from varve._core import AsyncSaveReport, DeferredReport
from varve.errors import CancelledError, PreconditionError
from varve.torch._failures import log_dropped
from varve.torch._guard import Guard, guards_of, optimizers_of

Report = TypeVar("Report")


@dataclass(frozen=True)
class Differing:
    """Names under which the ranks hold different values, as a report has them."""

    differing_tensors: list[str] = field(default_factory=list)
    differing_objects: list[str] = field(default_factory=list)


class Handle(Future[Report]):
    """The base of the handles of all saves in the background: a future of a report, and one of the copy.

    A handle that is dropped when its save has failed, before `result` or `exception` was called, logs
    that error.

    Attributes:
        staging_completion: Ends when the copy has been made: tensors may change.
    """

    #: The save ends when the agent holds the copy.
    _deferred: ClassVar[bool]
    #: The argument of the call that is a function of the handle.
    _hook: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.staging_completion: Future[None] = Future()
        self.staging_completion.set_running_or_notify_cancel()
        self.path = ""
        self._process = os.getpid()
        self._ended = False  # As done(), without a lock that Ctrl-C could leave taken.
        self._engine: Any = None
        self._keep: Any = None
        self._looked_at = False
        self._failed = False
        self._saved = False  # And its upload is under way.
        self._raised_by_call = False  # Nothing was copied, and the call raises why.
        self._asked_to_end = False
        self._differing = Differing()
        self._warning = ""  # What the call has warned of; "" where nothing was new.

    def result(self, timeout: float | None = None) -> Report:
        """Waits for the end of the save, `timeout` seconds at most. Raises the save's error."""
        self._looked_at = True
        self._check_owner(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits likewise; returns the error that the save failed with, or None."""
        self._looked_at = True
        self._check_owner(self)
        return super().exception(timeout)

    def __del__(self) -> None:
        if self._failed and not self._looked_at and self._exception is not None:
            log_dropped(self.path, self._exception)

    def wait_staged(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change. Raises the error of the copy."""
        self._check_owner(self.staging_completion)
        self.staging_completion.result(timeout)

    def wait_staged_before(self, optimizer: Any) -> None:
        """Makes the next step of a torch optimizer, or of several, wait for the copy.

        The step only waits: an error of the copy is the handle's, and does not end the training.

        Args:
            optimizer: As `guard` of `async_save`.
        """
        self._guard(guards_of(optimizers_of(optimizer)))

    def _guard(self, guards: Iterable[Guard]) -> None:
        for guard in guards:
            guard.hold(self.staging_completion)

    def cancel(self) -> bool:
        """Gives the save up; its result is then a CancelledError. Returns False when it has ended."""
        if self._process != os.getpid() or self.done():
            return False
        self._asked_to_end = True
        if self._engine is not None:
            self._engine.cancel()
        return True

    def _check_owner(self, awaited: Future[Any]) -> None:
        """Raises PreconditionError in a forked child, where nothing would ever end the wait."""
        if self._process != os.getpid() and not awaited.done():
            raise PreconditionError(
                f"save {self.path}: it is a save of the parent of this process, which was forked since",
                path=self.path,
            )

    def cancelled(self) -> bool:
        """Returns True when it ended because it was cancelled, skipped or replaced."""
        return self.done() and isinstance(self._exception, CancelledError)

    def _end_staging(self, error: BaseException | None) -> None:
        self._keep = None
        if error is None:
            self.staging_completion.set_result(None)
        else:
            self.staging_completion.set_exception(error)

    def _end(self, report: Report | None, error: BaseException | None) -> None:
        if error is None:
            assert report is not None
            self.set_result(report)
        else:
            self.set_exception(error)
        # Before the next line: the call that began the save sets `_engine`, then looks here.
        self._ended = True
        self._engine = None  # It holds the caller of this: a circle that Python cannot see.


class SaveHandle(Handle[AsyncSaveReport]):
    """A save under way: a future of its AsyncSaveReport, and one of its copy.

    As a future it ends when the checkpoint is durable and visible, with the error on every rank if the
    save failed. It has the two futures of torch's AsyncSaveResponse as well. A handle that is dropped
    when its save has failed, before `result` or `exception` was called, logs that error.

    Attributes:
        staging_completion: Ends when the copy has been made: tensors may change.
        upload_completion: This future.
    """

    _deferred = False
    _hook = "on_done"

    @property
    def upload_completion(self) -> SaveHandle:
        """This future."""
        return self

    def cancel(self) -> bool:
        """Gives the save up on all ranks; its result is then a CancelledError.

        Other ranks learn of it when they have written their part. Returns False when it has already
        ended. It may still succeed if it was about to be visible.
        """
        return super().cancel()


class DeferredSaveHandle(Handle[DeferredReport]):
    """A deferred save under way: a future of its DeferredReport, and one of its copy.

    As a future it ends when the agent holds this rank's copy, or never will. It says nothing about
    other ranks. A handle that is dropped when its save has failed, before `result` or `exception` was
    called, logs that error.

    Attributes:
        staging_completion: Ends when the copy has been made: tensors may change.
    """

    _deferred = True
    _hook = "on_held"

    def cancel(self) -> bool:
        """Gives the save up on this rank; its result is then a CancelledError.

        The agents of other ranks then never write it. Returns False when it has already ended: the
        agent keeps what it holds.
        """
        return super().cancel()
