"""One run beside an earlier one: which ratios have slipped?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def last_record(path: Path) -> Record:
    """Returns the last run that `path` has, a file as `--json` writes it."""
    lines = path.read_text().splitlines()
    if not lines:
        raise ValueError(f"{path} has no run")
    record: Record = json.loads(lines[-1])
    if record.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {record.get('schema')}, {SCHEMA} needed: run it again")
    return record


def compare(old: Record, new: Record) -> tuple[str, list[str]]:
    """Returns the table of every ratio that both runs have, and the names of those that slipped.

    Each is of medians, to a limit or a competitor measured in the same run. It has slipped where it
    is worse and its rounds overlap with none of the other run's.
    """
    before = dict(_verdicts(old))
    lines, slipped = [f"Against commit {old['commit']} of {old['time']}:"], []
    for what in ("machine.cpu", "machine.cores", "settings"):
        then, now = _at(old, what), _at(new, what)
        if then != now:
            lines.append(f"- another {what}: {then}, now {now}; ratios may differ for that")
    for name, mine in _verdicts(new):
        theirs = before.get(name)
        if theirs is None:
            continue
        worse = has_slipped(theirs, mine)
        slipped += [name] * worse
        lines.append(
            f"- {'SLIPPED' if worse else 'held'}: {name}: {_words(theirs)}, now {_words(mine)}"
        )
    return "\n".join(lines) + "\n", slipped


def has_slipped(old: Record, new: Record) -> bool:
    """Tells whether the verdict `new` is worse than `old` by more than their rounds spread."""
    if new["rises"]:
        return bool(new["highest"] < old["lowest"])
    return bool(new["lowest"] > old["highest"])


def _verdicts(record: Record) -> Iterator[tuple[str, Record]]:
    for result in record["results"]:
        for verdict in result["verdicts"]:
            if verdict["value"] is not None:
                yield f"{result['name']}: {verdict['quantity']}", verdict


def _words(verdict: Record) -> str:
    return f"{verdict['value']:.3f} ({verdict['lowest']:.3f} to {verdict['highest']:.3f})"


def _at(record: Record, path: str) -> Any:
    value: Any = record
    for key in path.split("."):
        value = value[key]
    return value


#: The version of the lines that --json writes. In 2 a verdict names its quantity, and a machine has limits.
SCHEMA = 2
