"""Directories on disks for checkpoints that are saved straight into an object store.

OLMo's layouts are written as files of fixed names, some of them again by another process. So a save
with a remote name writes into a directory in `TMPDIR`, uploads that, and removes it:
  1. Rank 0 chooses a random name, which goes to all ranks.
  2. Each rank locks NAME.lock on its disk, shared. The kernel gives the lock back when its process dies.
  3. A rank removes the directories of which it gets the lock alone: those of jobs that were killed.
  4. All ranks save into NAME, and upload what they wrote.
  5. Each rank gives its lock back, and the last one on a disk removes the directory.
A kill before 5 leaves a directory, which the next save of the user on that disk removes in 3.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from varve.errors import Error, OutOfSpaceError, PreconditionError
from varve.olmo._steps import Steps

#: The lock files that this module makes.
_LOCK = re.compile(r"[0-9a-f]{32}\.lock")


class Spool:
    """One rank's hold on the directory of a save. Making it is collective."""

    def __init__(self, target: str, steps: Steps) -> None:
        """Takes the remote name, whose last component is that of the directory."""
        self._target = target
        name = steps.first(f"save {target}", lambda: uuid.uuid4().hex)
        self._root = Path(tempfile.gettempdir()) / f"varve-olmo-{os.geteuid()}"
        self._folder = self._root / name
        self.path = str(self._folder / target.rsplit("/", 1)[-1])
        self._lock: int | None = None
        try:
            steps.each(f"save {target}", self._take)
        except BaseException:
            self.end()
            raise

    def _take(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._root.lstat()  # A link would lead to what is not ours to remove.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PreconditionError(
                f"{self._root} is no directory of this user's alone: remove it, or set TMPDIR"
            )
        for lock in self._root.iterdir():
            if _LOCK.fullmatch(lock.name) and lock.stem != self._folder.name:
                _remove_if_dead(lock)
        self._lock = _locked(self._folder.with_suffix(".lock"))

    @contextmanager
    def written(self) -> Iterator[None]:
        """Names the save in the errors of what is written into the directory, and what helps."""
        try:
            yield
        except Error as error:
            text = f"save {self._target}: writing its files into {self._root} (TMPDIR): {error}"
            if isinstance(error, OutOfSpaceError):
                text += (
                    "; the files of this node's ranks must fit there until they are uploaded: make room, "
                    "set TMPDIR to a larger disk, or save in a format of varve.torch, which needs none"
                )
            error.args = (text,)
            raise

    def end(self) -> None:
        """Removes the directory, where no other rank of this disk needs it. May be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
            _remove_if_dead(self._folder.with_suffix(".lock"))


def _locked(path: Path) -> int:
    """Returns a descriptor that holds the file's shared lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(
            descriptor
        )  # Removed between the two calls, by a rank that took it for a dead one's.


def _remove_if_dead(lock: Path) -> None:
    """Removes a directory whose lock is free. Leaves what it cannot remove to the next save."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)
    except OSError:
        pass  # Held.
    finally:
        os.close(descriptor)
