"""Copies of OLMo's checkpoints in remote storage, and mirrors of remote ones on a disk.

A save with `upload_to` takes these steps:
  1. Rank 0 notes beside the local checkpoint that an upload is to be made (varve/_upload.py).
  2. The local checkpoint is published.
  3. Each rank uploads the files that it has written; rank 0 uploads indexes and, last, `config.yaml`
     (src/upload/upload.cc). If that fails, all ranks raise; the local checkpoint and the note stay.
  4. Rank 0 removes the note.
A save with a remote directory has no note: the directory that it uploads is in TMPDIR (`_spool.py`), and
is removed whatever comes of the upload.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from varve import _core
from varve._core import Channel
from varve._core.uploads import UploadOptions
from varve._engine import is_remote
from varve._forks import leave_to_parent
from varve._upload import Background, Copy, Promise
from varve._warn import warn
from varve.errors import CheckpointExistsError, PreconditionError, UnsupportedError
from varve.olmo._directory import MARK
from varve.olmo._errors import network_errors
from varve.olmo._files import any_path, cache_path, files_in, joined, size_of
from varve.olmo._spool import Spool
from varve.olmo._steps import TIMEOUT, Steps
from varve.torch._coordinator import make_background

_LOG = logging.getLogger("varve")

#: Files that tell one checkpoint of OLMo's from another, and are small.
_TELLING = ("config.yaml", "metadata.yaml", "metadata.json", ".metadata")
_MOST = 64 << 20

#: Bytes at the end of each file that are compared.
_TAIL = 1 << 20

#: Uploads in the background that are not ended.
_open: weakref.WeakSet[Uploads] = weakref.WeakSet()


def copy_of(
    source: str,
    target: str,
    overwrite: bool,
    remote_overwrite: str,
    files: list[str] | None = None,
) -> Copy:
    """Returns the upload of a checkpoint.

    `files`: those that this rank has written, relative to the checkpoint, where ranks may not see all.
    """
    options = UploadOptions(
        overwrite=overwrite,
        in_place=overwrite and remote_overwrite == "in_place",
        own_files=files,
        mark=MARK,
        timeout=TIMEOUT,
    )
    return Copy(source, target, options)


@contextlib.contextmanager
def promised(copy: Copy | None, steps: Steps) -> Iterator[None]:
    """Takes step 1 before the block, which publishes, and takes it back where that fails. Collective."""
    notes: list[Promise] = []
    try:
        if copy is not None:
            steps.first(f"save {copy.source}", lambda: notes.append(copy.promise()))
        yield
    except Exception:  # After Ctrl-C it may be visible all the same: the note stays.
        for note in notes:
            note.take_back()
        raise


def make(copy: Copy, coordinator: Channel | None, spool: Spool | None = None) -> None:
    """Takes steps 3 and 4; of a spool uploads the directory and ends it. Collective."""
    with network_errors():
        if spool is None:
            copy.make_after_save(coordinator)
            return
        try:
            copy.make(coordinator)
        finally:
            spool.end()


class Uploads:
    """Uploads in the background, on a thread with a channel of its own. Making it is collective."""

    def __init__(self) -> None:
        self._thread = Background(make_background(None, TIMEOUT, "the uploads of a checkpointer"))
        self._failures: list[Exception] = []
        self._sources: list[str] = []  # Of the uploads that are not ended.
        _open.add(self)

    def later(self, copy: Copy, spool: Spool | None = None) -> None:
        """Makes an upload after those before, as `make`. Called on all ranks, in the same order."""

        def run() -> None:
            try:
                make(copy, self._thread.coordinator, spool)
            except Exception as error:
                _LOG.error("%s", error)
                self._failures.append(error)
            finally:
                self._sources.remove(copy.source)

        self._sources.append(copy.source)
        self._thread.later(run)

    def wait(self) -> None:
        """Waits for the uploads. Raises the error of the first that has failed since the last call."""
        self._thread.drain()
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    def wait_for(self, source: str) -> None:
        """Waits until no upload of a directory is under way. Its error stays for `wait`."""
        if source in self._sources:
            self._thread.drain()

    def end(self) -> None:
        """Waits, and ends the thread."""
        self._thread.close()


def check_free(target: str, overwrite: bool, remote_overwrite: str) -> None:
    """Raises CheckpointExistsError where a save would be refused at its end: a checkpoint is there."""
    if overwrite and remote_overwrite == "in_place":
        return
    if size_of(joined(target, ".varve-uploading")) is not None:
        raise PreconditionError(
            f"{target}: another save or upload to it is under way, or has died. If it has, replace it in "
            'place (cfg.save_overwrite = True, remote_overwrite="in_place"); after a day `varve gc` removes '
            "what it left",
            path=target,
        )
    if size_of(joined(target, MARK)) is None:
        return
    how = 'remote_overwrite="in_place"' if overwrite else "cfg.save_overwrite = True"
    raise CheckpointExistsError(
        f"{target} holds a checkpoint already. Its files have fixed names, so that in an object store it "
        f"cannot stay until the new one is whole: choose another name, or replace it in place ({how})",
        path=target,
    )


def wait_until_uploaded(path: str) -> None:
    """Waits for the uploads of a local directory, by any checkpointer of this process.

    A save of a directory calls it first: an upload that reads while the files are replaced would mix two
    checkpoints.
    """
    source = os.path.realpath(path)
    for uploads in list(_open):
        uploads.wait_for(source)


def readable(load_path: Any, local_cache: Any) -> str:
    """Returns the directory to read: the cache where it is a mirror of what is to be loaded.

    Where `load_path` is local, a cache that holds anything is taken. Where it is remote, the cache must
    have the same files with the same sizes, the same index and configuration, and the same last MiB of each
    file. Else it is not read, with a warning: a mirror of another step, or half there, does not stand for it.
    """
    path = any_path(load_path, "load_path")
    if local_cache is None:
        return path
    cache = cache_path(local_cache)
    if not os.path.isdir(cache) or not os.listdir(cache):
        return path
    if not is_remote(path):
        return cache
    with network_errors():
        difference = _difference(path, cache)
    if not difference:
        return cache
    warn(f"{cache} is no mirror of {path} ({difference}): it is not read", UserWarning)
    return path


def _difference(path: str, cache: str) -> str:
    """Returns how a mirror differs from a remote checkpoint; "" where it does not."""
    try:
        there, here = files_in(path), files_in(cache)
    except UnsupportedError:
        return "which files are there cannot be seen"
    for name, size in there.items():
        if Path(name).name.startswith(".varve"):
            continue
        if here.get(name) != size:
            found = "is missing" if name not in here else f"has {here[name]} bytes, not {size}"
            return f"{name} {found}"
        # All steps of a run have files of the same sizes. Files of torch.save end with the checksums of
        # what they hold.
        whole = Path(name).name in _TELLING and size <= _MOST
        first = 0 if whole else max(0, size - _TAIL)
        mine, theirs = (
            _core.storage.read_bytes(joined(at, name), first, size) for at in (cache, path)
        )
        if mine != theirs:
            return f"{name} differs" if whole else f"the end of {name} differs"
    return "" if there else "there is nothing"


def _end_all() -> None:
    for uploads in list(_open):
        uploads.end()


atexit.register(_end_all)
# A forked child has not its parent's threads, and must not end their connections.
os.register_at_fork(after_in_child=lambda: leave_to_parent(_open))
