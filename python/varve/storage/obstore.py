"""Stores of the package obstore: Google Cloud Storage, Azure, and whatever else it reaches.

`gs://`, `az://`, `abfs://` and `abfss://` are served so at their first use, with the settings and keys
that obstore finds in the environment. Any other store of obstore's is registered by hand:

    varve.register_storage("lab", ObstoreStore(obstore.store.S3Store("bucket", endpoint=...)))

obstore uploads a file from its beginning to its end, and Varve writes the beginning last. So the parts of
a large file are gathered in a temporary file, which has no name, and sent from there.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import obstore
from obstore import exceptions

from varve.errors import PreconditionError
from varve.storage._store import ObjectInfo, ObjectStore

#: Parts of one file that obstore sends at once. Each is in memory.
_AT_ONCE = 6

#: The process that has used obstore: the threads that it has then are not in a forked child.
_used_in: int | None = None


class ObstoreStore(ObjectStore):
    """A store of obstore's as one of Varve's.

    Args:
        store: A store of obstore's, in which names are looked up as they are; or a function that returns
            the one of a bucket, which is the first component of a name.
        spool: The directory for parts of files until these are whole; by default `tempfile.gettempdir()`.
            It needs room for the files that a rank writes at once.
    """

    def __init__(self, store: Any, *, spool: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        self._spool = spool
        self._lock = threading.Lock()  # Guards all below.
        self._buckets: dict[str, Any] = {}
        self._uploads: dict[str, _Upload] = {}
        self._begun = 0

    @classmethod
    def of_scheme(cls, scheme: str) -> ObstoreStore:
        """Returns the store of names `SCHEME://bucket/key`, one of obstore's schemes."""
        from obstore.store import from_url

        return cls(_Opener(from_url, scheme))

    def head(self, name: str) -> ObjectInfo:
        """See ObjectStore."""
        with _raised_as_ours():
            store, bucket, key = self._place(name)
            return _info(bucket, obstore.head(store, key))

    def read(self, name: str, offset: int, into: memoryview, version: str) -> None:
        """See ObjectStore."""
        if not into.nbytes:
            return
        with _raised_as_ours():
            store, _, key = self._place(name)
            got = obstore.get(store, key, options={"range": (offset, offset + into.nbytes)})
            # Compared here: servers exist that refuse the ETag which they have given as a condition.
            if version and _version(got.meta) != version:
                raise OSError(errno.ESTALE, f"{name} was replaced since it was opened")
            content = memoryview(got.bytes())
        if content.nbytes != into.nbytes:
            raise EOFError(f"{name} ends at byte {offset + content.nbytes}")
        into[:] = content.cast("B")

    def list(self, prefix: str, unfinished: bool) -> Iterable[ObjectInfo]:
        """See ObjectStore. obstore cannot list uploads."""
        if unfinished:
            return []
        with _raised_as_ours():
            store, bucket, below = self._place(prefix)
            try:
                found = obstore.list_with_delimiter(store, below)
            except FileNotFoundError:  # A directory of obstore's LocalStore.
                return []
            listed = [_info(bucket, one) for one in found["objects"]]
            listed += [ObjectInfo(f"{bucket}{one}/") for one in found["common_prefixes"]]
            return listed

    def put(self, name: str, data: memoryview, if_absent: bool) -> None:
        """See ObjectStore."""
        with _raised_as_ours():
            store, _, key = self._place(name)
            # A copy: obstore may drop its reference to the memory after it has returned.
            obstore.put(
                store,
                key,
                bytes(data),
                mode="create" if if_absent else "overwrite",
                use_multipart=False,
            )

    def remove(self, names: Sequence[str]) -> None:
        """See ObjectStore."""
        keys: dict[str, tuple[Any, builtins.list[str]]] = {}
        with _raised_as_ours():
            for name in names:
                store, bucket, key = self._place(name)
                keys.setdefault(bucket, (store, []))[1].append(key)
            for store, those in keys.values():
                try:
                    obstore.delete(store, those)
                except (FileNotFoundError, exceptions.GenericError):
                    # One of them is not there, which may have ended it before the others.
                    for key in those:
                        _remove(store, key)

    def start_upload(self, name: str, part_bytes: int) -> str:
        """See ObjectStore."""
        spool = os.fspath(self._spool or tempfile.gettempdir())
        upload = _Upload(part_bytes, spool, tempfile.TemporaryFile(dir=spool))  # noqa: SIM115
        with self._lock:
            self._begun += 1
            number = f"{os.getpid()}-{self._begun}"
            self._uploads[number] = upload
        return number

    def upload_part(self, name: str, upload: str, number: int, data: memoryview) -> str:
        """See ObjectStore."""
        with self._lock:
            found = self._uploads[upload]
        found.write(number, data)
        return str(number)

    def end_upload(self, name: str, upload: str, parts: Sequence[str] | None) -> None:
        """See ObjectStore."""
        with self._lock:
            found = self._uploads.pop(upload, None)
        if found is None:
            if parts is not None:
                raise FileNotFoundError(f"there is no upload {upload} of {name}")
            return
        with found.file, _raised_as_ours():
            if parts is not None:
                store, _, key = self._place(name)
                found.end(len(parts))
                found.file.seek(0)
                obstore.put(
                    store,
                    key,
                    found.file,
                    use_multipart=True,
                    chunk_size=found.part_bytes,
                    max_concurrency=_AT_ONCE,
                )

    def _place(self, name: str) -> tuple[Any, str, str]:
        """Returns the store of a name, what it leaves out at the beginning of the name, and the rest."""
        global _used_in
        if _used_in not in (None, os.getpid()):
            raise PreconditionError(
                f"this process was forked from {_used_in}, which had used obstore: its threads are not "
                'here, and a call would wait for ever. Start processes with "spawn"'
            )
        _used_in = os.getpid()
        if not callable(self._store):
            return self._store, "", name
        bucket, slash, key = name.partition("/")
        with self._lock:
            store = self._buckets.get(bucket)
        if store is None:
            store = self._store(bucket)
            with self._lock:
                store = self._buckets.setdefault(bucket, store)
        return store, bucket + slash, key


class _Opener:
    """Opens the bucket of a scheme by obstore's own rules for URLs."""

    def __init__(self, from_url: Callable[[str], Any], scheme: str) -> None:
        self._from_url = from_url
        self._scheme = scheme

    def __call__(self, bucket: str) -> Any:
        return self._from_url(f"{self._scheme}://{bucket}")


class _Upload:
    """The parts of a file until it is whole."""

    def __init__(self, part_bytes: int, spool: str, file: IO[bytes]) -> None:
        self.part_bytes = part_bytes
        self.file = file
        self._spool = spool
        self._sizes: dict[int, int] = {}  # Of the parts, as they were written last.

    def write(self, number: int, data: memoryview) -> None:
        """Writes a part to its place."""
        at = (number - 1) * self.part_bytes
        self._sizes[number] = data.nbytes
        try:
            while data:
                written = os.pwrite(self.file.fileno(), data, at)
                data, at = data[written:], at + written
        except OSError as error:
            text = f"{error.strerror} in {self._spool}, where parts are gathered (spool, or TMPDIR)"
            raise OSError(error.errno, text) from error

    def end(self, parts: int) -> None:
        """Cuts off what lies behind the last of the parts: a longer one may have been there before."""
        last = self._sizes[parts] if parts else 0
        self.file.truncate(max(parts - 1, 0) * self.part_bytes + last)


def _is_folder(error: Exception) -> bool:
    """Returns whether a LocalStore was given the name of a folder."""
    return "(os error 21)" in str(error)


def _remove(store: Any, key: str) -> None:
    """Removes one object, if it is there."""
    try:
        obstore.delete(store, key)
    except FileNotFoundError:
        return
    except exceptions.GenericError as error:
        if not _is_folder(error):
            raise


def _version(meta: Any) -> str:
    return meta["e_tag"] or meta["version"] or ""


def _info(bucket: str, meta: Any) -> ObjectInfo:
    return ObjectInfo(
        bucket + meta["path"],
        meta["size"],
        meta["last_modified"].timestamp(),
        _version(meta),
    )


@contextlib.contextmanager
def _raised_as_ours() -> Iterator[None]:
    """Raises obstore's exceptions as those of ObjectStore."""
    try:
        yield
    except exceptions.BaseError as error:
        text = str(error).partition("\n\nDebug source")[0]
        # The latter: of a LocalStore, for a name below an object's.
        if isinstance(error, exceptions.NotFoundError) or "(os error 20)" in text:
            raise FileNotFoundError(text) from None
        if isinstance(error, exceptions.AlreadyExistsError):
            raise FileExistsError(text) from None
        if isinstance(error, exceptions.NotSupportedError):
            raise NotImplementedError(text) from None
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            raise PermissionError(text) from None
        raise OSError(text) from None
