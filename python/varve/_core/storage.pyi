"""The part of the binding that knows storages: files by their names, stores and keys that a program gives."""

from collections.abc import Callable

from varve.storage import ObjectStore

def register_store(
    scheme: str,
    store: ObjectStore,
    part_bytes: int,
    uploads: bool,
    weak_publish: bool,
    replace: bool,
) -> None: ...
def unregister_store(scheme: str) -> None: ...
def registered_schemes() -> list[str]: ...
def set_s3_keys(scheme: str, function: Callable[[], tuple[str, str, str, int]] | None) -> None:
    """The function returns access key, secret key, token ("": none) and end (Unix time; 0: none)."""

def end_calls() -> None:
    """Lets no call of a store or of a function for keys begin any more, and waits for those that run."""

def read_bytes(path: str, begin: int = 0, end: int | None = None) -> bytes:
    """Reads a file from byte `begin` to byte `end`, or to its end."""

def size_of(path: str) -> int:
    """The bytes of a file."""
