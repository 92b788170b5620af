"""What a failed load suggests: the stored names that are nearest to the missing ones, and a `rename` for them.

Takes time in proportion to the names there are: it looks at a sample of the missing names, and checks what it
has found with all of them.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator

from varve._select import renamer

#: Missing names that are compared with the stored ones, by their endings.
_SAMPLE = 64

#: Those that are compared letter by letter, and stored names that they are compared with: 0.1 s each.
_COMPARED = 3
_MOST_CANDIDATES = 2_000

#: Pairs that a message shows.
_SHOWN = 3


#: A `rename`, as text, and what it finds: missing names by stored ones.
_Try = tuple[str, dict[str, str]]


def hint(
    missing: list[str], stored: Iterable[str], fitting: Iterable[str], renamed: bool = False
) -> str | None:
    """Returns what to try, for a message; None where no stored name is near.

    Args:
        missing: Names that the destination wants and that are not stored.
        stored: All stored names.
        fitting: Those of them that the destination wants.
        renamed: The load has a `rename`, so that another one is not suggested.
    """
    if not missing:
        return None
    fits = frozenset(fitting)
    left = [name for name in stored if name not in fits]
    pairs = _by_ending(missing, left) or _by_letters(missing, left)
    if not pairs:
        return None
    tries = (
        [] if renamed else [*_prefixes(pairs, left, missing, fits), *_parts(pairs, left, missing)]
    )
    rename, found = max(tries, key=lambda one: len(one[1]), default=("", {}))
    shown = ([(new, old) for old, new in found.items()] or pairs)[:_SHOWN]
    text = ", ".join(f'"{want}" -> "{old}"' for want, old in shown)
    text = f"the nearest names (wanted -> stored): {text}"
    if not found:
        return text
    count = "it" if len(missing) == 1 else f"all {len(missing)} missing names"
    if len(found) < len(missing):
        count = f"{len(found)} of the {len(missing)} missing names"
    return f"{text}; {rename} finds {count}"


def _endings(name: str) -> Iterator[str]:
    """The name and its ends that begin with a part, from the longest on."""
    yield name
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def _by_ending(missing: list[str], left: list[str]) -> list[tuple[str, str]]:
    """Returns (wanted, stored) names that end alike, with no other stored name that ends so."""
    sample = missing[:: max(1, len(missing) // _SAMPLE)][:_SAMPLE]
    ends = {end for name in sample for end in _endings(name)}
    of_end: dict[str, str | None] = {}
    for name in left:
        for end in _endings(name):
            if end in ends:
                of_end[end] = None if end in of_end else name
    pairs = []
    for name in sample:
        for end in _endings(name):
            if end in of_end:
                if (stored := of_end[end]) is not None:
                    pairs.append((name, stored))
                break
    return pairs


def _by_letters(missing: list[str], left: list[str]) -> list[tuple[str, str]]:
    """Returns (wanted, stored) names that are similar, of a few missing ones."""
    pairs = []
    for name in missing[:_COMPARED]:
        last = name.rpartition(".")[2]
        alike = [other for other in left if other.rpartition(".")[2] == last] or left
        if close := difflib.get_close_matches(name, alike[:_MOST_CANDIDATES], 1):
            pairs.append((name, close[0]))
    return pairs


def _prefixes(
    pairs: list[tuple[str, str]], left: list[str], missing: list[str], fits: frozenset[str]
) -> Iterator[_Try]:
    """Yields renames of prefixes that leave the names as they are that fit."""
    wanted = frozenset(missing)
    votes = Counter(_beginnings(old, new) for new, old in pairs)
    for (old, new), _ in votes.most_common(_SHOWN):
        rename = renamer({old: new})
        found = _found(((name, rename(name)) for name in left), wanted)
        prefixes = dict.fromkeys([old])
        if any(name.startswith(old) for name in fits):
            prefixes = dict.fromkeys(_top(name, old) for name in found)
        if len(prefixes) > _SHOWN or any(name.startswith(tuple(prefixes)) for name in fits):
            continue
        yield f"rename={ {prefix: new + prefix[len(old) :] for prefix in prefixes} }", found


def _beginnings(old: str, new: str) -> tuple[str, str]:
    """Returns what stands before the longest end, of whole parts, that two names share."""
    ends = set(_endings(new))
    end = next((end for end in _endings(old) if end in ends), "")
    return (old.removesuffix(end), new.removesuffix(end)) if end else (old, new)


def _top(name: str, prefix: str) -> str:
    """Returns a prefix with the part that follows it in a name."""
    at = name.find(".", len(prefix))
    return name if at < 0 else name[: at + 1]


def _parts(pairs: list[tuple[str, str]], left: list[str], missing: list[str]) -> Iterator[_Try]:
    """Yields replacements of parts within names."""
    wanted = frozenset(missing)
    for old, new in dict.fromkeys(_differing(old, new) for new, old in pairs[:_COMPARED]):
        if old:
            found = _found(((name, name.replace(old, new)) for name in left), wanted)
            yield f"rename=lambda name: name.replace({old!r}, {new!r})", found


def _differing(old: str, new: str) -> tuple[str, str]:
    """Returns what stands between the first and the last parts that two names share, with its dots."""
    a, b = old.split("."), new.split(".")
    begin = 0
    while begin < min(len(a), len(b)) and a[begin] == b[begin]:
        begin += 1
    end = 0
    while end < min(len(a), len(b)) - begin and a[-1 - end] == b[-1 - end]:
        end += 1
    inner = [".".join(["", *parts[begin : len(parts) - end], ""]) for parts in (a, b)]
    inner = ["." if one == ".." else one for one in inner]
    return (inner[0], inner[1]) if begin and end and inner[0] != "." else ("", "")


def _found(renamed: Iterable[tuple[str, str | None]], wanted: frozenset[str]) -> dict[str, str]:
    """Returns those of the names that become wanted ones, which are the values."""
    return {old: new for old, new in renamed if new in wanted}
