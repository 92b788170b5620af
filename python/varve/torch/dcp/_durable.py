"""Files and directories that survive a power cut."""

from __future__ import annotations

import contextlib
import os


def make_directories(path: str) -> None:
    """Makes a directory and its parents, each entry durable. No-op for what exists."""
    missing = []
    at = path
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # Another rank was faster.
            os.mkdir(directory)
        sync_directory(os.path.dirname(directory))


def sync_directory(path: str) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: str, content: bytes) -> None:
    """Gives a file new content in one step: after a crash it has the old or the new."""
    part = path + ".tmp"
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(os.path.dirname(path))
