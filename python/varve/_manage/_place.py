"""The files that a manager keeps beside the steps: its history, notes, and requests of a person.

In a directory these are files; in an object store, where nothing can be appended to, small objects.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, TextIO

from varve._core import manage
from varve.errors import Error

_LOG = logging.getLogger("varve")

#: The history of a run, a file in its directory.
HISTORY_NAME = "varve-history.jsonl"

#: Seconds between two looks into an object store for what a person asks for: a look is a request.
_LOOK = 15.0


def _regular(path: str, flags: int) -> int:
    """Opens a file, for `open`, which refuses a directory. A pipe of that name would be waited for."""
    file = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


class Place(Protocol):
    """Where the files of one run are. Threads: any. Errors: OSError, varve's Error."""

    def add_history(self, event: str, line: str) -> None:
        """Adds a line about an event."""

    def history(self, wanted: Sequence[str] = ()) -> Iterator[str]:
        """Yields the lines from the oldest on.

        Of events of other kinds than `wanted`, where some are given, a line may have no more than time and event.
        """

    def read(self, name: str) -> str | None:
        """Returns the text of a note; None where there is none."""

    def write(self, name: str, text: str) -> None:
        """Writes a note, whole or not at all."""

    def remove(self, name: str) -> None:
        """Removes a note, if it is there."""

    def take(self, name: str) -> bool:
        """Removes a request of this name; returns True where there was one. Fast: every step asks."""

    def close(self) -> None:
        """Ends what looks for requests."""


class Folder:
    """A directory. See Place."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    def add_history(self, event: str, line: str) -> None:
        with self._lock:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            file = os.open(os.path.join(self._run, HISTORY_NAME), flags, 0o666)
            try:
                # A line that a full disk has cut off stays a line of its own.
                end = os.lseek(file, 0, os.SEEK_END)
                cut = b"\n" if end > 0 and os.pread(file, 1, end - 1) != b"\n" else b""
                os.write(file, cut + line.encode("utf-8", "replace") + b"\n")
            finally:
                os.close(file)

    def history(self, wanted: Sequence[str] = ()) -> Iterator[str]:
        try:
            with self._open(HISTORY_NAME) as file:
                yield from file
        except FileNotFoundError:
            return

    def read(self, name: str) -> str | None:
        try:
            with self._open(name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _open(self, name: str) -> TextIO:
        return open(
            os.path.join(self._run, name), encoding="utf-8", errors="replace", opener=_regular
        )

    def write(self, name: str, text: str) -> None:
        path = os.path.join(self._run, name)
        temporary = f"{path}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._run, name))
        except FileNotFoundError:
            return

    def take(self, name: str) -> bool:
        path = os.path.join(self._run, name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            # A read-only file system says so of what is not there, too.
            if name in self._stuck or not _is_there(path):
                return False
            self._stuck.add(name)
            _LOG.warning("the request %s cannot be taken away: %s", path, error)
        return True

    def close(self) -> None:
        return


def _is_there(path: str) -> bool:
    """Returns False also where the file system does not tell: a run does not end for that."""
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


class ObjectStore:
    """A prefix of a bucket. See Place. Requests are looked for in the background."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._watched: set[str] = set()
        self._found: set[str] = set()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def add_history(self, event: str, line: str) -> None:
        manage.add_to_history(self._run, event, line)

    def history(self, wanted: Sequence[str] = ()) -> Iterator[str]:
        for line in manage.read_history(self._run, list(wanted)):
            yield line.decode("utf-8", "replace")

    def read(self, name: str) -> str | None:
        text = manage.read_note(self._run, name)
        return None if text is None else text.decode("utf-8", "replace")

    def write(self, name: str, text: str) -> None:
        manage.write_note(self._run, name, text)

    def remove(self, name: str) -> None:
        manage.remove_note(self._run, name)

    def take(self, name: str) -> bool:
        if name not in self._watched:
            self._watched.add(name)
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="varve requests", daemon=True
                )
                self._watcher.start()
        if name not in self._found:
            return False
        self._found.discard(name)
        return True

    def close(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        failed = False
        while not self._ended.wait(_LOOK):
            try:
                for name in sorted(self._watched):
                    if manage.read_note(self._run, name) is not None:
                        manage.remove_note(self._run, name)
                        self._found.add(name)
                failed = False
            except Error as error:
                if not failed:
                    _LOG.warning(
                        "%s: cannot look for requests to save or end: %s", self._run, error
                    )
                failed = True


def place_of(run: str) -> Place:
    """Returns where the files of a run are."""
    return ObjectStore(run) if manage.is_in_object_store(run) else Folder(run)
