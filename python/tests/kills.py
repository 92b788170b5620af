"""Killing a process in the middle of a save."""

from __future__ import annotations

import os
import re
import signal
import threading
import time


def kill_me_while_saving(path: str) -> None:
    """Kills this process, by SIGKILL, once a save of `path` has begun to write and before it is visible."""
    threading.Thread(target=_watch, args=(path,), daemon=True).start()


def _watch(path: str) -> None:
    folder, name = os.path.split(os.path.abspath(path))
    # A hidden name has no digits of the checkpoint's name.
    hidden = re.sub(r"\d", lambda digit: f"%{ord(digit[0]):02X}", f".{name}.varve-saving-")
    while not any(
        _is_written_in_part(os.path.join(folder, entry))
        for entry in (os.listdir(folder) if os.path.isdir(folder) else ())
        if entry == name or entry.startswith(hidden)
    ):
        time.sleep(0.0002)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_written_in_part(directory: str) -> bool:
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(directory)}
    except OSError:  # It has gone between two looks.
        return False
    return any(sizes.values()) and not sizes.keys() & {"varve.json", ".metadata"}
