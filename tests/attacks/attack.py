"""The type of an attack, and the table of all: the functions that make them add themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Attack:
    """`make(folder, canary)` gives the path to open. No one may make a file at `canary`."""

    make: Callable[[Path, Path], Path]
    error: str
    says: str
    #: What gives the error; the rest finds nothing wrong.
    reads: tuple[str, ...] = ("ls", "inspect", "verify", "convert", "read", "load")


ATTACKS: dict[str, Attack] = {}

Make = Callable[[Path, Path], Path]


def attack(error: str, says: str, **more: tuple[str, ...]) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ATTACKS[make.__name__] = Attack(make, error, says, **more)
        return make

    return add


#: The lie is in a value that only a pickle can make. It is shown, verified and passed on as the bytes
#: that it is, and read by nobody.
READ = ("read", "load")
#: The lie is in the data; the index is in order.
DATA = ("verify", "convert", "read", "load")

CORRUPT, INVALID, UNSUPPORTED = "CorruptCheckpointError", "InvalidArgumentError", "UnsupportedError"
MAX = 2**63 - 1


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
