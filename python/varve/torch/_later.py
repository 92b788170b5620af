"""The thread of a stager's uploads, whose channel is made by the first save that all ranks agree on.

1. A save with `upload_to` first exchanges its plan. Where the ranks differ in `upload_to`, it fails there,
   and no rank waits for a channel that another one does not make.
2. Then, in the same call, the ranks make the channel, if there is none. Where that fails, it fails on all of
   them: the upload of this save is then not made, and the next save tries again.
3. The save may end before 2: its upload waits for that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from varve._upload import Background, Copy, explained
from varve.errors import Error, UnavailableError


class Meeting:
    """Step 2 of one save: the uploads that wait for it learn how it has ended."""

    def __init__(self, uploads: UploadsOfStager | None) -> None:
        self._uploads = uploads
        self._ended = threading.Event()
        self._problem: Error | None = UnavailableError(
            "the call that began the save was interrupted"
        )

    @contextlib.contextmanager
    def ends(self) -> Iterator[None]:
        """Lets the uploads of the save go on after the block."""
        try:
            yield
        finally:
            self._ended.set()

    def connect(self, make: Callable[[], Any]) -> None:
        """Makes the channel, if there is none. An error is the upload's."""
        assert self._uploads is not None
        try:
            if not self._uploads.connected:
                self._uploads.coordinator = make()
                self._uploads.connected = True
            self._problem = None
        except Error as error:
            self._problem = error

    def check(self, copy: Copy) -> None:
        """Waits for the channel. Raises where there is none."""
        self._ended.wait()
        if self._problem is not None:
            raise explained(self._problem, copy)


class UploadsOfStager(Background):
    """Uploads in the background, over a channel that comes later.

    Attributes:
        connected: There is a channel, or one process alone.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.connected = False
