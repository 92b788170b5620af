"""The handle of a save in the background."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from varve._core import SaveReport
from varve.errors import CancelledError
from varve.torch._failures import log_dropped


class SaveHandle(Future[SaveReport]):
    """A save under way: a future of its report, and one of its copy.

    As a future it ends when the checkpoint is durable and visible, with the error on every rank if the
    save failed. It has the two futures of torch's AsyncSaveResponse as well. A handle that is dropped
    when its save has failed, before `result` or `exception` was called, logs that error.

    Attributes:
        staging_completion: Ends when the copy has been made: tensors may change.
        upload_completion: This future.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.staging_completion: Future[None] = Future()
        self.staging_completion.set_running_or_notify_cancel()
        self.path = ""
        self._engine: Any = None
        self._keep: Any = None
        self._looked_at = False
        self._failed = False
        self._asked_to_end = False
        self._differing_tensors: list[str] = []

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits for the end of the save, `timeout` seconds at most. Raises the save's error."""
        self._looked_at = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits likewise; returns the error that the save failed with, or None."""
        self._looked_at = True
        return super().exception(timeout)

    def __del__(self) -> None:
        if self._failed and not self._looked_at and self._exception is not None:
            log_dropped(self.path, self._exception)

    @property
    def upload_completion(self) -> SaveHandle:
        """This future."""
        return self

    def wait_staged(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change. Raises the error of the copy."""
        self.staging_completion.result(timeout)

    def wait_staged_before(self, optimizer: Any) -> None:
        """Makes the next step of a torch optimizer wait for the copy, once."""

        def wait(*_: Any) -> None:
            hook.remove()
            self.wait_staged()

        hook = optimizer.register_step_pre_hook(wait)

    def cancel(self) -> bool:
        """Gives the save up on all ranks; its result is then a CancelledError.

        Other ranks learn of it when they have written their part. Returns False when it has already
        ended. It may still succeed if it was about to be visible.
        """
        if self.done():
            return False
        self._asked_to_end = True
        if self._engine is not None:
            self._engine.cancel()
        return True

    def cancelled(self) -> bool:
        """Returns True when it ended because it was cancelled, skipped or replaced."""
        return self.done() and isinstance(self._exception, CancelledError)

    def _end_staging(self, error: BaseException | None) -> None:
        self._keep = None
        if error is None:
            self.staging_completion.set_result(None)
        else:
            self.staging_completion.set_exception(error)

    def _end(self, report: SaveReport | None, error: BaseException | None) -> None:
        if error is None:
            assert report is not None
            self.set_result(report)
        else:
            self.set_exception(error)
        self._engine = None  # It holds the caller of this: a circle that Python cannot see.
