"""The warnings of a load: values that it has chosen from, and stored entries without a destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varve import _core, _tree
from varve._arguments import first_names
from varve._match import Match
from varve._warn import warn
from varve.errors import ReplicasDifferWarning


def warn_of_nothing(
    report: _core.LoadReport,
    reader: _core.Reader,
    match: Match,
    rank: int,
    chosen: bool,
    hint_of: Callable[[], str | None],
) -> None:
    """Warns when a load has loaded nothing on this rank that wanted something, or on any rank.

    And of tensors that it has left out since they are of another class, with what to do.
    """
    if report.loaded and match.remedies:
        text = "; ".join(match.remedies)
        count = len(match.mismatched)
        warn(f"load {reader.path}: {count} entries do not fit: {text}", UserWarning)
    lacking = len(match.missing) + len(match.mismatched)
    stored = report.unexpected or chosen
    fits = not report.missing and not report.mismatched
    # What is matched and not loaded is a tensor whose parts other ranks hold.
    unwanted = rank == 0 and fits and stored and not match.tensors
    if report.loaded or not (lacking or unwanted):
        return
    wanted = (
        f"of {lacking} wanted entries {len(match.missing)} are missing from the checkpoint and "
        f"{len(match.mismatched)} do not fit"
        if lacking
        else "the destination has none of the entries that `keys` chooses"
        if chosen
        else "the destination wants none of its entries; read() builds a state that has them"
    )
    hint = hint_of()
    warn(
        f"load {reader.path}: nothing was loaded: {wanted}. {len(report.unexpected)} of the "
        f"checkpoint's entries are left over" + (f". {hint}" if hint else ""),
        UserWarning,
    )


def warn_of_one_value(names: list[str], reader: _core.Reader, world: int) -> None:
    """Warns that buffers of modules got one value where the ranks that saved held several."""
    warn(
        f"load {reader.path}: these buffers differed between the {reader.world_size} ranks that "
        f"saved, and this load is by {world}: {first_names(names)}. All ranks got the value of the "
        "lowest of those ranks, as DistributedDataParallel copies it",
        ReplicasDifferWarning,
    )


def warn_of_rest(
    reader: _core.Reader,
    unexpected: list[str],
    structure: Any,
    is_object: bool,
    stored_name: Mapping[str, str] | None,
    match: Match,
) -> None:
    """Warns of what is left over beside entries that were loaded, and of what the match has noted.

    A destination may have a part of the containers of a checkpoint, or pick entries by their whole names, so
    what is beside those is left over on purpose. Not so where the destination is one object (`is_object`).
    Entries that a `rename` leaves out have no place in `stored_name`, and are left over on purpose too.
    """
    where = reader.path
    if match.notes:
        warn(f"load {where}: {'; '.join(match.notes)}", UserWarning)
    names = stored_name or {}
    left = frozenset(unexpected)
    if stored_name is not None:
        left &= frozenset(names.values())
    if not left:
        return
    parts = {"": unexpected}
    if not is_object:
        picked = {names.get(name, name).partition(".")[0] for name in match.picked}
        parts = _beside_loaded(reader, left, structure, picked)
    counts = ", ".join(
        f'{len(rest)} below "{top}" ({first_names(rest)})' for top, rest in parts.items()
    )
    if parts:
        warn(
            f"load {where}: {sum(map(len, parts.values()))} of the checkpoint's entries are left over, though what is "
            f'beside them was loaded: {counts}. strict="exact" refuses such a load',
            UserWarning,
        )


def _beside_loaded(
    reader: _core.Reader, left: frozenset[str], structure: Any, picked: set[str]
) -> dict[str, list[str]]:
    """Returns what is left over, by the entry at the top that it is below and of which more is loaded."""
    tops: dict[str, list[str]] = {}
    if isinstance(structure, Mapping):
        for key, item in structure.items():
            tops[str(key)] = [name for name, _ in _tree.leaves(item, str(key))]
    else:
        for name, _ in reader.names():
            tops.setdefault(name.partition(".")[0], []).append(name)
    found = {top: [name for name in below if name in left] for top, below in tops.items()}
    return {
        top: rest
        for top, rest in found.items()
        if 0 < len(rest) < len(tops[top]) and top not in picked
    }


def makes_wrapped(
    reader: _core.Reader, wrapping: _tree.Wrapping
) -> Callable[[str, bytes, dict[str, Any]], Any]:
    """Returns what makes tensors of their inner ones, where all ranks have saved the same of these."""
    several = reader.variants()

    def together(fqn: str, text: bytes, inner: dict[str, Any]) -> Any:
        differing = [name for name in inner if _tree.join(fqn, name) in several]
        if not differing:
            return wrapping.put_together(fqn, text, inner)
        warn(
            f'"{fqn}": ranks hold different values of {first_names(differing)}, of which the lowest rank\'s are '
            f"here: its inner tensors ({', '.join(inner)}) come back as a dict",
            UserWarning,
        )
        return inner

    return together
