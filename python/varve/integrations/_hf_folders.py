"""Folders of numbered checkpoints: the newest good one, rotation, and what lies in a save's way."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection

import varve
from varve._catalogue import damages_left, names_in, relisted, unread
from varve._core import manage
from varve._engine import local_path_text
from varve._warn import warn
from varve.errors import Error, PermissionDeniedError, UnavailableError, UnsupportedError
from varve.integrations._removal import remove_unless_held

_log = logging.getLogger("varve")

#: Files that are Varve's alone: one that has lost its data may have the second.
_INDEX = {"varve.json", "manifest.bin"}

_DATA_FILE = re.compile(r"data-\d+-of-\d+(-[0-9a-f]+)?\.safetensors")

#: A purge that goes by age leaves this: the files of the framework, which may open as others' checkpoint.
_ONLY_SIDE_FILES = "its varve.json and its data files are missing"

#: Returns what is wrong with a directory that is not Varve's, or None.
WhyNotForeign = Callable[[str], str | None]


def is_varves(path: str | os.PathLike[str]) -> bool:
    """Returns True for the directory of a checkpoint in Varve's format, whole or not."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return not _INDEX.isdisjoint(names) or any(_DATA_FILE.fullmatch(name) for name in names)


def numbered(folder: str, prefix: str) -> list[tuple[int, str]]:
    """Returns the directories PREFIXn in a folder with their n, the highest first."""
    found = []
    for name in names_in(folder):
        digits = name.removeprefix(prefix)
        path = os.path.join(folder, name)
        if name.startswith(prefix) and digits.isdecimal() and os.path.isdir(path):
            found.append((int(digits), path))
    return sorted(found, reverse=True)


def newest_good(
    folder: str, prefix: str, verify: bool, why_not_foreign: WhyNotForeign
) -> str | None:
    """Returns the checkpoint PREFIXn with the highest n that is whole, or None.

    Warns of each one that it passes over, and says why. Raises UnsupportedError where a newer Varve
    wrote the first that is not damaged.

    Args:
        folder: The directory that the checkpoints are in.
        prefix: How their names begin.
        verify: Read and check every byte; otherwise the index and the sizes of the files alone.
        why_not_foreign: Returns what is wrong with a directory that is not Varve's, or None.
    """
    if any(one.state == "displaced" for one in _listed(folder).values()):
        varve.collect_garbage(folder)  # Gives them their names back.
    candidates = numbered(folder, prefix)
    listed = _listed(folder) if candidates else {}
    for _, path in candidates:
        entry = listed.get(os.path.basename(path))
        if entry is not None:
            entry = relisted(folder, entry)
        if entry is not None and (error := unread(entry.state, f"resume: {entry.detail}", path)):
            raise error
        if not is_varves(path):
            reason = why_not_foreign(path)
        elif entry is None or _is_of_others(entry):
            reason = _ONLY_SIDE_FILES
        elif entry.state != "whole":
            reason = (
                f"it is {entry.state}: {entry.detail}" if entry.detail else f"it is {entry.state}"
            )
        else:
            reason = _damage(path) if verify else None
        if reason is None:
            return path
        warn(f"{path} is passed over: {reason}", RuntimeWarning)
    return None


def _listed(folder: str) -> dict[str, varve.CheckpointEntry]:
    """Returns the entries of a directory by name; of several with one name, the whole one."""
    entries: dict[str, varve.CheckpointEntry] = {}
    if not names_in(folder):
        return entries
    for entry in varve.list_checkpoints(folder):
        if entry.name not in entries or entry.state == "whole":
            entries[entry.name] = entry
    return entries


def _is_of_others(entry: varve.CheckpointEntry) -> bool:
    """Returns True for a whole checkpoint in another format, such as the weights of an adapter."""
    return entry.state == "whole" and entry.format != "varve"


def _damage(path: str) -> str | None:
    try:
        damages = damages_left(path)
    except (UnsupportedError, UnavailableError, PermissionDeniedError):
        raise
    except Error as error:
        return str(error)
    return f"it is damaged: {damages[0]}" if damages else None


def rotate(folder: str, prefix: str, limit: int, keep: Collection[str]) -> list[str]:
    """Removes the oldest whole checkpoints PREFIXn of Varve until `limit` are left; returns their paths.

    The oldest was written first, whatever its number. The newest, and those of `keep`, always stay, and
    count. Folders that are not whole, or that other software wrote, are neither counted nor removed.
    """
    listed = varve.list_checkpoints(folder)
    whole = {e.name for e in listed if e.state == "whole" and e.format == "varve"}
    ages = []
    for number, path in numbered(folder, prefix):
        if os.path.basename(path) in whole:
            ages.append((os.stat(os.path.join(path, "varve.json")).st_mtime_ns, number, path))
    ages.sort()
    kept = {os.path.realpath(path) for path in keep}
    kept.update(os.path.realpath(path) for _, _, path in ages[-1:])
    removable = [path for _, _, path in ages if os.path.realpath(path) not in kept]
    surplus = removable[: max(0, len(ages) - limit)]
    removed = []
    for path in surplus:
        _log.info("remove %s: %d checkpoints are kept", path, limit)
        if remove_unless_held(path):
            removed.append(path)
    return removed


def clear_way(
    path: str, markers: Collection[str], why_half: WhyNotForeign = lambda _: None
) -> None:
    """Takes out of the way what keeps a save from taking the name `path`.

    A checkpoint of Varve whose index is lost or whose files are missing goes into quarantine, a hidden
    name that `varve ls` shows. A directory with nothing in it but `markers`, which a framework puts
    there before it saves, is removed. A checkpoint that has lost files gets a hidden name and keeps the others.
    `why_half` returns the reason for a checkpoint of other software, and None for any other directory.
    """
    if not os.path.isdir(path):
        return
    if is_varves(path):
        folder, name = os.path.split(os.path.abspath(path))
        entry = _listed(folder).get(name)
        if entry is None or _is_of_others(entry):
            _hide(path, _ONLY_SIDE_FILES)
        elif entry.state in ("damaged", "incomplete"):
            hidden = manage.quarantine(
                local_path_text(path), f"it is {entry.state}: {entry.detail}"
            )
            _log.warning("%s is not whole: it is now %s, and a save takes its name", path, hidden)
    elif set(os.listdir(path)) <= set(markers):
        for name in os.listdir(path):
            os.remove(os.path.join(path, name))
        os.rmdir(path)
    elif (reason := why_half(path)) is not None:
        _hide(path, reason)


def _hide(path: str, reason: str) -> None:
    """Renames a directory, with all its files, to a hidden name that is free."""
    folder, name = os.path.split(os.path.abspath(path))
    number = 1
    while os.path.lexists(hidden := os.path.join(folder, f".{name}.passed-over-{number}")):
        number += 1
    os.rename(path, hidden)
    _log.warning("%s is now %s, and a save takes its name: %s", path, hidden, reason)


def files_in(folder: str) -> dict[str, bytes]:
    """Returns the content of each file in a folder and below, by its path there."""
    files = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, folder)] = file.read()
    return files
