"""The part of the binding that knows files of any storage, by their names."""

def in_object_store(path: str) -> bool:
    """True where nothing can be renamed and DcpCommit puts files into a directory below the name."""

def read_bytes(path: str, begin: int = 0, end: int | None = None) -> bytes:
    """Reads a file from byte `begin` to byte `end`, or to its end."""

def size_of(path: str) -> int:
    """The bytes of a file."""
