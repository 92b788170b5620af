"""The saves of one training run in the background, their failures, and the thread that rotates."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import varve.torch
from varve._engine import path_text
from varve._manage._os_errors import as_error
from varve.errors import STAGER_LOST, Error, InvalidArgumentError
from varve.integrations import _hf_folders
from varve.integrations._staging import Staging, checked, choose
from varve.torch._background import with_shared
from varve.torch._failures import Failures, kept_in
from varve.torch._stager import close_made, retire, stager_of

_log = logging.getLogger("varve")

#: The owner of the stager, among those that are made without being asked for.
_OWNER = "varve.integrations"


@dataclasses.dataclass(frozen=True)
class VarveSaving:
    """How an adapter saves and loads.

    Attributes:
        on_failure: The reaction to a save that failed in the background. "raise": the next save raises it,
            or the end of training, on all ranks. "log": rank 0 logs it, and training goes on.
        verify: Read and check every byte of a checkpoint before it is chosen as the newest good one.
            False checks its index and the sizes of its files. A load checks the bytes in any case.
        executor: "thread", or "process": an agent writes the checkpoints, also when the trainer is killed.
        staging: "blocking": a save returns when the state is copied. "overlapped": it returns at once, and the
            next step of each optimizer waits for the copy. None: "overlapped" if the model is on a CUDA
            device and every tensor of the save is a parameter or a state of an optimizer, else "blocking".
        stager: The stager of all saves; by default one is made, and closed when training ends.
        max_write_bandwidth: Bytes a second that each rank writes at most; 0 for no limit.
        timeout: Seconds any rank waits for the others in a save or load.
        allow_pickle: Store and open values of unknown types, as a scheduler's state may have, as pickles.
        upload_to: A place such as "s3://bucket/run". Each checkpoint is copied there under its own name, and counts
            as durable when both are. A failed upload is a failed save; the local checkpoint stays.
    """

    on_failure: Literal["raise", "log"] = "raise"
    verify: bool = True
    executor: Literal["thread", "process"] = "thread"
    staging: Staging = None
    stager: varve.torch.Stager | None = None
    max_write_bandwidth: int = 0
    timeout: float = 1800.0
    allow_pickle: bool = False
    upload_to: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.on_failure not in ("raise", "log"):
            raise InvalidArgumentError(f'on_failure={self.on_failure!r}: want "raise" or "log"')
        checked(self.staging)

    def copy_of(self, path: str) -> str | None:
        """Returns where the checkpoint `path` is copied to; None where none is."""
        if self.upload_to is None:
            return None
        return os.path.join(path_text(self.upload_to), os.path.basename(path))


#: The state that a rank saves; and, on rank 0, the files beside it by name.
Content = tuple[dict[str, Any], dict[str, bytes] | None]


class _Failed:
    """Stands for a state that could not be made. The save raises its error, and so fails on all ranks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def state_dict(self) -> Any:
        raise self._error

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


def prepared(make: Callable[[], Content]) -> Content:
    """Returns what `make` returns; where that fails on this rank, content whose save fails so on all ranks."""
    try:
        return make()
    except Exception as error:
        failure = error
        if isinstance(error, OSError) and not isinstance(error, Error):
            place = "" if error.filename else f" (in {tempfile.tempdir or 'TMPDIR'})"
            failure = as_error(f"prepare the files of the save{place}", error)
        return {"failed": _Failed(failure)}, None


class Saves:
    """The saves of a run that have not been reported yet.

    Args:
        on_durable: Called on the training thread with the path and the report of a save that has ended well.
    """

    def __init__(
        self, on_durable: Callable[[str, varve.torch.AsyncSaveReport], None] | None = None
    ) -> None:
        self._on_durable = on_durable
        self._handles: dict[str, varve.torch.SaveHandle] = {}
        self._rotation: ThreadPoolExecutor | None = None
        self._failures = Failures()  # Other adapters of this process use the same stager.

    def begin(
        self,
        state: dict[str, Any],
        path: str,
        saving: VarveSaving,
        *,
        optimizers: Any,
        files: Mapping[str, bytes] | None = None,
        overwrite: bool | Literal["damaged"] = False,
    ) -> varve.torch.SaveHandle:
        """Copies the state and begins to write it; `optimizers` write to its tensors. Collective."""
        earlier = self._handles.get(path)
        if earlier is not None:
            earlier.exception()  # Two saves of one name at once would be refused.
        self.report_ended()
        state, staging = choose(saving.staging, state, optimizers)

        def start(stager: varve.torch.Stager) -> varve.torch.SaveHandle:
            with kept_in(self._failures):
                return varve.torch.async_save(
                    state,
                    path,
                    files=files,
                    overwrite=overwrite,
                    stager=stager,
                    allow_pickle=saving.allow_pickle,
                    max_write_bandwidth=saving.max_write_bandwidth,
                    timeout=saving.timeout,
                    on_failure=saving.on_failure,
                    upload_to=saving.copy_of(path),
                    **staging,
                )

        if saving.stager is not None:
            handle = start(saving.stager)
        else:
            try:
                handle = with_shared(None, saving.executor, saving.timeout, start, _OWNER)
            except Error as error:
                if error.reason != STAGER_LOST:  # The refusal of a lost stager, raised.
                    raise
                retire(None, saving.executor, _OWNER)
                handle = start(stager_of(None, saving.executor, saving.timeout, _OWNER))
        self._handles[path] = handle
        return handle

    def supersede(self, path: str) -> None:
        """Waits for a save of `path`, and forgets its failure: the caller saves the same step again. Collective."""
        earlier = self._handles.get(path)
        failure = None if earlier is None else earlier.exception()
        if failure is not None:
            del self._handles[path]
            self._failures.forget(failure)

    def rotate_after(
        self, path: str, folder: str, prefix: str, limit: int | None, keep: Collection[str]
    ) -> None:
        """Rotates in the background once the save of `path` is durable. Rank 0 calls it."""
        if limit is None or limit <= 0:
            return
        if self._rotation is None:
            self._rotation = ThreadPoolExecutor(1, "varve-rotation")
        handle = self._handles[path]

        def rotate() -> None:
            try:
                if handle.exception() is None:
                    _hf_folders.rotate(folder, prefix, limit, keep)
            except Exception:
                _log.exception("the rotation of %s failed; its checkpoints stay", folder)

        self._rotation.submit(rotate)

    def report_ended(self) -> None:
        """Reports the saves that are durable now. Failures are left to the next save and to `finish`."""
        for path, handle in list(self._handles.items()):
            if handle.done() and handle.exception() is None:
                self._report(path, handle)

    def _report(self, path: str, handle: varve.torch.SaveHandle) -> None:
        del self._handles[path]
        if self._on_durable is not None:
            self._on_durable(path, handle.result())

    def finish(self, saving: VarveSaving) -> None:
        """Waits until all saves are durable and rotation is done.

        Raises:
            Error: The failure of the newest save that failed, where `on_failure` is "raise".
        """
        error = None
        for path, handle in list(self._handles.items()):
            failure = handle.exception()
            if failure is None:
                self._report(path, handle)
            else:
                del self._handles[path]
                error = failure
        if self._rotation is not None:
            self._rotation.shutdown()
            self._rotation = None
        self._failures.take()  # The next save would report them again.
        if error is not None:
            self.close()
            if saving.on_failure == "raise":
                raise error

    def close(self) -> None:
        """Gives the memory back that is kept from save to save, when the saves under way have ended."""
        close_made(_OWNER)
