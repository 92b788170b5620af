"""Errors for a run's directory that is no run: a checkpoint, or a directory of other checkpoints."""

from __future__ import annotations

import logging
import os

from varve import _core
from varve._arguments import first_names
from varve._core import manage
from varve.errors import CheckpointNotFoundError, Error, InvalidArgumentError

_LOG = logging.getLogger("varve")

#: Ends of names of files that hold a state, most likely.
_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz")

#: States of what a save has left that is no checkpoint.
_UNFINISHED = ("saving", "stale", "failed", "incomplete")


def misnamed(run: str, number: int | None = None) -> dict[str, str]:
    """Returns the checkpoints of a run that were copied or renamed to another step's name, and what they are.

    With `number`, it returns only those that have this number in their names.
    """
    return {
        name: f"is step {noted} by its note, copied or renamed"
        for name, named, noted in manage.list_misnamed_steps(run)
        if number is None or named == number
    }


def refuse_checkpoint(run: str) -> None:
    """Raises InvalidArgumentError where a run's directory is a checkpoint itself, such as a step of a run.

    A run that has steps already, and a checkpoint that was saved to its own name, is managed with a warning.
    """
    try:
        _core.Reader(run, False)
    except CheckpointNotFoundError:
        return
    except Error:  # It cannot be opened; the first save will say why, if that is the reason.
        return
    path = run.rstrip("/")
    steps = manage.list_steps(run)
    if steps:
        _LOG.warning(
            "the manager of %s: the directory is a checkpoint itself, beside its %d steps; move the files of "
            "that elsewhere: programs that open the run's name find it and no step",
            run,
            len(steps),
        )
        return
    raise InvalidArgumentError(
        f"the manager of {run}: this is a checkpoint, not the directory of a run. To go on with the run, give "
        f"CheckpointManager {os.path.dirname(path) or '.'!r}; resume() takes its newest step. To begin a run "
        f"from this checkpoint, give CheckpointManager another directory and call load(state, {path!r})",
        path=run,
    )


def other_contents(run: str) -> str:
    """Says which checkpoints, and what looks like one, a run without steps holds; "" where there are none."""
    try:
        entries = _core.list_checkpoints(run)
    except CheckpointNotFoundError:
        entries = []
    unfinished = [one for one in entries if one.state in _UNFINISHED]
    others = misnamed(run)
    found = [one.name for one in entries if one not in unfinished and one.name not in others]
    if not manage.is_in_object_store(run) and os.path.isdir(run):
        files = (one.name for one in os.scandir(run) if one.is_file())
        found += [name for name in files if name.endswith(_FILES)]
    parts = []
    if found:
        parts.append(
            f"{first_names(sorted(set(found)))}, of which none is a step: a step's name is letters and a number"
        )
    parts += [f"{name}, which {what}" for name, what in others.items()]
    if unfinished:
        names = [f"{one.name} ({one.detail or one.state})" for one in unfinished]
        parts.append(f"{first_names(sorted(set(names)))}, which no save has finished")
    return "; and ".join(parts)


def tell_of_nothing(run: str, contents: str, required: bool, tells: bool) -> None:
    """Says what a run without steps holds. Raises CheckpointNotFoundError where a step is required."""
    held = (
        f"; it holds {contents}. load(state, path) loads a checkpoint of any name"
        if contents
        else ""
    )
    if required:
        raise CheckpointNotFoundError(f"resume: there is no step in {run}{held}", path=run)
    if tells:
        _LOG.log(logging.WARNING if held else logging.INFO, "resume: no step in %s%s", run, held)
