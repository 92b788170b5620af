"""Copies of checkpoints in another storage: `upload`, and the argument `upload_to` of saves.

A save with `upload_to` takes these steps:
  1. Rank 0 writes a note beside the checkpoint that an upload is to be made (src/upload/pending.cc):
     from here on no retention removes the checkpoint, also after a crash.
  2. The save, as without. If it fails, the note goes.
  3. The upload, by all ranks (src/upload/upload.cc). If it fails, the checkpoint and the note stay, and
     the save raises.
  4. Rank 0 removes the note.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from varve import _core
from varve._arguments import first_names
from varve._core import Coordinator, SaveOptions
from varve._core.uploads import UploadOptions
from varve._engine import local_path_text, path_text
from varve.errors import Error, InvalidArgumentError, UnavailableError

_LOG = logging.getLogger("varve")


def upload(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    in_place: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> _core.uploads.UploadReport:
    """Copies a checkpoint that is published to another storage, where it becomes visible when it is whole.

    Bytes are checked as they are sent: by the checksums that the files carry.
    Files of the directory that are no part of the checkpoint are not copied; they are logged as a warning and
    are in the report's `left_out`. If the target holds the same save already, there is nothing to do. The note of a pending upload of
    `source` to `target`, if there is one, is removed.

    Args:
        source: A checkpoint, as a rule in a local directory.
        target: The name of its copy, such as "s3://bucket/run/step-100".
        overwrite: Replace another checkpoint at `target`.
        in_place: Only for layouts with fixed names of files (DCP, OLMo, Hugging Face) in an object store: remove
            the old checkpoint's index first, and write over its files. Until the end there is no checkpoint
            of the name.
        progress: Called from other threads with bytes sent and bytes in all, such as `Progress()`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at `source`.
        CorruptCheckpointError: A file is damaged; nothing has become visible.
        CheckpointExistsError: `target` holds another checkpoint.
        UnavailableError: The storage does not answer, or refuses.
    """
    options = UploadOptions(overwrite=overwrite, in_place=in_place, progress=progress)
    copy = Copy(path_text(source), path_text(target), options)
    report = copy.make(None)
    if report.left_out and not report.was_there:
        _LOG.warning(
            "upload %s: %s are no part of the checkpoint, and are not in the copy",
            copy.source,
            first_names(report.left_out),
        )
    if _core.uploads.pending_upload(copy.source) == os.fsencode(copy.target):
        _core.uploads.forget_pending_upload(copy.source)
    return report


@dataclass(frozen=True)
class Copy:
    """An upload of one checkpoint."""

    source: str
    target: str
    options: UploadOptions

    def make(
        self, coordinator: Coordinator | None, stop: _core.uploads.UploadStop | None = None
    ) -> _core.uploads.UploadReport:
        """Uploads, by all ranks of the coordinator. Raises what `upload` raises, on all of them."""
        return _core.uploads.upload(self.source, self.target, self.options, coordinator, stop)

    def promise(self) -> Promise:
        """Step 1. On rank 0."""
        return Promise(self)

    def make_after_save(
        self, coordinator: Coordinator | None, stop: _core.uploads.UploadStop | None = None
    ) -> None:
        """Steps 3 and 4. Raises the error of the upload, with what is to be done."""
        try:
            self.make(coordinator, stop)
        except Error as error:
            raise explained(error, self) from error
        if coordinator is None or coordinator.rank == 0:
            _core.uploads.forget_pending_upload(self.source)


class Promise:
    """Steps 1 and 2, on rank 0: the note of an upload, which a save that fails takes back."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._before = _core.uploads.pending_upload(
            copy.source
        )  # Of the checkpoint that is replaced.
        _core.uploads.note_pending_upload(copy.source, copy.target)

    def take_back(self) -> None:
        """Called where the save has failed."""
        try:
            if self._before is None:
                _core.uploads.forget_pending_upload(self._copy.source)
            else:
                _core.uploads.note_pending_upload(self._copy.source, os.fsdecode(self._before))
        except Error as error:  # The save's own error is raised.
            _LOG.warning("the note of an upload of %s stays: %s", self._copy.source, error)


def target_of(upload_to: str | os.PathLike[str] | None) -> str:
    """Returns the engine's name of what a save's argument `upload_to` names; "" where it names nothing."""
    return "" if upload_to is None else path_text(upload_to)


def copy_of(
    path: str | os.PathLike[str], upload_to: str | os.PathLike[str] | None, save: SaveOptions
) -> Copy | None:
    """Returns the upload that a save's argument `upload_to` asks for. Raises InvalidArgumentError."""
    if upload_to is None:
        return None
    if not save.coordinate:
        raise InvalidArgumentError(
            "upload_to: not with coordinate=False, where no rank knows when all files are there; "
            "`varve.upload` copies the checkpoint when it is whole"
        )
    options = UploadOptions(overwrite=save.overwrite, timeout=save.timeout)
    copy = Copy(local_path_text(path), save.upload_to, options)
    if copy.target.lower().startswith(("http://", "https://")):
        raise InvalidArgumentError(f"upload_to={upload_to!r}: a web server can only be read from")
    if copy.source == copy.target:
        raise InvalidArgumentError(f"upload_to={upload_to!r} is where the checkpoint is saved")
    return copy


def explained(error: Error, copy: Copy) -> Error:
    """Returns the error of an upload after a save, saying what there is and what to do."""
    # A layout whose files have fixed names is replaced in place alone, and its error says so.
    fixed = "Objects have fixed names in this layout" in str(error)
    overwrites = copy.options.overwrite is True
    in_place = copy.options.in_place or (overwrites and fixed)
    options = ["--in-place"] if in_place else ["--overwrite"] if overwrites else []
    command = shlex.join(["varve", "upload", *options, copy.source, copy.target])
    text = f"{error}. The checkpoint {copy.source} is published and stays; its upload is pending"
    if in_place or not fixed:  # Else the error says what there is to choose from.
        text += f": `{command}` makes it"
    made = type(error)(text, path=error.path, rank=error.rank, reason=error.reason)
    made.of_ranks = error.of_ranks
    return made


class Background:
    """A thread that uploads, one after the other, in the same order on all ranks.

    Attributes:
        coordinator: Its channel to the threads of the other ranks; None in one process.
    """

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator
        self._guard = threading.Lock()  # Guards what follows.
        self._waiting = 0
        self._stops: set[_core.uploads.UploadStop] = set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="varve uploads", daemon=True)
        self._thread.start()

    def later(self, work: Callable[[], None]) -> None:
        """Lets the thread do something, after what it was given before."""
        with self._guard:
            self._waiting += 1
        self._work.put(work)

    @property
    def busy(self) -> bool:
        """True while something that it was given is not done."""
        with self._guard:
            return self._waiting > 0

    def check_in_step(self, copy: Copy) -> None:
        """Raises UnavailableError where a message of another rank did not come before."""
        if self.coordinator is not None and self.coordinator.lost:
            raise explained(
                UnavailableError("upload: a message of other ranks was lost in an earlier one"),
                copy,
            )

    def drain(self) -> None:
        """Waits for what it was given."""
        done = threading.Event()
        self.later(done.set)
        while self._thread.is_alive() and not done.wait(1.0):  # Ctrl-C gets through.
            pass

    def upload_later(
        self,
        copy: Copy,
        ended: Callable[[Exception | None], None],
        first: Callable[[Copy], None],
    ) -> _core.uploads.UploadStop:
        """Uploads a checkpoint that has been saved, and calls `ended` with the error, if there is one.

        `first` may wait, and raises where nothing can be uploaded.
        """
        stop = _core.uploads.UploadStop()

        def run() -> None:
            error: Exception | None = None
            try:
                first(copy)
                self.check_in_step(copy)
                copy.make_after_save(self.coordinator, stop)
            except Exception as raised:
                error = raised
            finally:
                with self._guard:
                    self._stops.discard(stop)
            ended(error)

        with self._guard:
            self._stops.add(stop)
        self.later(run)
        return stop

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[_core.uploads.UploadStop]:
        """Gives what ends an upload that the block makes, on `abort`."""
        stop = _core.uploads.UploadStop()
        with self._guard:
            self._stops.add(stop)
        try:
            yield stop
        finally:
            with self._guard:
                self._stops.discard(stop)

    def abort(self) -> None:
        """Ends the upload under way, on all ranks, and those that wait."""
        with self._guard:
            stops = list(self._stops)
        for stop in stops:
            stop.cancel()
        if self.coordinator is not None:
            self.coordinator.interrupt()

    def close(self) -> None:
        """Waits, and ends the thread."""
        self.drain()
        self._work.put(None)
        if self.coordinator is not None:
            self.coordinator.flush(10.0)
            self.coordinator.hang_up()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            try:
                work()
            except Exception:
                _LOG.exception("an upload in the background has failed")
            finally:
                with self._guard:
                    self._waiting -= 1
