"""Side files: files that are saved with a checkpoint as they are, and read back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from varve import _core
from varve.errors import InvalidArgumentError

#: The content of a file, or where to read it.
Source = bytes | bytearray | memoryview | str | os.PathLike[str]


def taken(files: Mapping[str, Source] | None) -> list[tuple[str, bytes]]:
    """Reads the files that `files=` of a save names, now.

    Raises:
        InvalidArgumentError: A name or a value is of another type, or a file cannot be read.
    """
    if files is None:
        return []
    if not isinstance(files, Mapping):
        raise InvalidArgumentError(
            f"files: want a mapping from names to bytes or paths, not {type(files).__name__}"
        )
    return [(_name(name), _content(name, source)) for name, source in files.items()]


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"files: want names as str, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"files: the name {name!r} is not Unicode") from None
    return name


def _content(name: str, source: Source) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(
            f"files: {name!r}: want bytes or a path, not {type(source).__name__}"
        )
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(
            f"files: {name!r} cannot be read: {error}", path=os.fspath(source), errno=error.errno
        ) from error


class StoredFiles(Mapping[str, bytes]):
    """The side files of a checkpoint: a mapping from name to content.

    A file is read, and compared with its checksum, each time that it is looked up.

    Attributes:
        sizes: Bytes by name.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.sizes: dict[str, int] = dict(_core.side_files(path))

    def __getitem__(self, name: str) -> bytes:
        if name not in self.sizes:
            raise KeyError(name)
        return _core.read_side_file(self._path, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"<{len(self)} files of {self._path}>"
