"""Suggestions after a failed load: the stored names nearest to the missing ones, and a `rename` for them.

Takes time in proportion to the names there are: it looks at a sample of the missing names, and checks what it
has found with all of them.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from varve import _core, _tree
from varve._arguments import first_names
from varve._select import Keys, Rename, renamer

#: Missing names that are compared with the stored ones, by their endings.
_SAMPLE = 64

#: Missing names that are compared letter by letter, and stored names to compare with: 0.1 s each.
_COMPARED = 8
_MOST_CANDIDATES = 2_000

#: Keys that are compared with the stored names, and those of them: 0.2 s each.
_KEYS_COMPARED = 5
_MOST_NAMES = 10_000

#: Stored names with one ending, of which the nearest is looked for.
_OF_ONE_ENDING = 8

#: Pairs that a message shows.
_SHOWN = 3

#: Prefixes and replacements that a `rename` may have, and those that are tried.
_IN_RENAME = 4
_TRIED = 8

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Names:
    """The names of a load that failed.

    Attributes:
        missing: Names that the destination wants and that are not stored, with their kinds.
        left: Stored names that it does not want, with their kinds.
        fits: Stored names that it wants.
    """

    missing: Mapping[str, Hashable]
    left: Mapping[str, Hashable]
    fits: frozenset[str]

    def found(self, rename: Rename) -> dict[str, str] | None:
        """Returns the stored names by the missing ones that a rename finds; None if it does harm."""
        new_name = renamer(rename)
        if any(new_name(name) != name for name in self.fits):
            return None
        found: dict[str, str] = {}
        seen = set(self.fits)
        for old, kind in self.left.items():
            new = new_name(old)
            if new is None or new in seen:
                return None  # Two stored names would become one.
            seen.add(new)
            if new in self.missing and self.missing[new] == kind:
                found[new] = old
        return found


#: A `rename` as text, its prefixes or replacements, and what it finds: stored names by missing ones.
_Try = tuple[str, int, dict[str, str]]


def shape_of(tensor: Any) -> Any:
    """Returns a tensor's shape, () where it has none: strided nested ones."""
    return () if getattr(tensor, "is_nested", False) else getattr(tensor, "shape", ())


def hint(
    missing: Mapping[str, Hashable],
    stored: Mapping[str, Hashable],
    fitting: Iterable[str],
    renamed: bool = False,
) -> str | None:
    """Returns what to try, for a message; None where no stored name is near.

    A name has a kind: the shape of its tensor, or something else for a plain value. Only names of the same kind
    are near. A `rename` is shown only if it finds more than half of the missing names.

    Args:
        missing: Names that the destination wants and that are not stored, with their kinds.
        stored: All stored names, with their kinds.
        fitting: The ones that the destination wants.
        renamed: The load has a `rename`, so that another one is not suggested.
    """
    if not missing:
        return None
    fits = frozenset(name for name in fitting if name in stored)
    left = {name: kind for name, kind in stored.items() if name not in fits}
    names = _Names(missing, left, fits)
    pairs = _by_ending(names)
    pairs += _by_letters(names, pairs)
    if not pairs:
        return None
    tries = [] if renamed else [*_prefixes(pairs, names), *_parts(pairs, names)]
    rename, _, found = max(tries, key=lambda one: (len(one[2]), -one[1]), default=("", 0, {}))
    if 2 * len(found) <= len(missing):
        return f"the nearest names (wanted -> stored): {_pairs_shown(pairs)}"
    others = [pair for pair in pairs if pair[0] not in found]
    count = "it" if len(missing) == 1 else f"all {len(missing)} missing names"
    if len(found) < len(missing):
        count = f"{len(found)} of the {len(missing)} missing names"
    text = f"the nearest names (wanted -> stored): {_pairs_shown(list(found.items()))}; {rename} finds {count}"
    return f"{text}; nearest to others: {_pairs_shown(others)}" if others else text


def what_is_wrong(reader: _core.Reader, keys: Keys, names: list[str]) -> str:
    """Returns what is wrong with keys of which one chooses none of the names; "" where each does."""
    unmatched = keys.unmatched(names)
    if unmatched and (structure := reader.structure()) is not None:
        unmatched = Keys(unmatched).unmatched(_tree.empty_containers(structure))
    if not unmatched:
        return ""
    near = _names_near(unmatched, names)
    tops = list(dict.fromkeys(name.partition(".")[0] for name in names))
    hint = f"is it {first_names(near, 5)}?" if near else f"at the top are {first_names(tops, 5)}"
    return f"nothing in the checkpoint is named {first_names(unmatched, 5)}; {hint}"


def _names_near(keys: Iterable[str], names: list[str]) -> list[str]:
    """Returns, for keys that choose none of the names, the keys that were probably meant.

    A key is a name, that of a container, or a glob.
    """
    found: dict[str, None] = {}
    for key in list(keys)[:_KEYS_COMPARED]:
        special = re.search(r"[*?\[]", key)
        begin = key if special is None else key[: special.start()].rpartition(".")[0]
        if begin:
            found.update((one + key[len(begin) :], None) for one in _near(begin, names))
            found.pop(key, None)
    return list(found)


def _near(key: str, names: list[str]) -> list[str]:
    """Returns the name or container that is nearest to a key: one that ends so, or one of similar letters."""
    ending = "." + key
    within = next((name for name in names if (ending + ".") in name + "."), None)
    if within is not None:
        return [within[: (within + ".").index(ending + ".") + len(ending)]]
    parts = key.count(".") + 1
    alike = dict.fromkeys(".".join(name.split(".")[:parts]) for name in names)
    return difflib.get_close_matches(key, list(alike)[:_MOST_NAMES], 1) or (
        difflib.get_close_matches(key, names[:_MOST_NAMES], 1)
    )


def _pairs_shown(pairs: list[tuple[str, str]]) -> str:
    return ", ".join(f'"{want}" -> "{old}"' for want, old in pairs[:_SHOWN])


def _endings(name: str) -> Iterator[str]:
    """The name and its ends that begin with a part, from the longest on."""
    yield name
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def _by_ending(names: _Names) -> list[tuple[str, str]]:
    """Returns (wanted, stored) names that end alike, where few stored names of a kind end so."""
    missing = list(names.missing.items())
    sample = missing[:: max(1, len(missing) // _SAMPLE)][:_SAMPLE]
    ends = {end for name, _ in sample for end in _endings(name)}
    of_end: dict[tuple[str, Hashable], list[str]] = {}
    for name, kind in names.left.items():
        for end in _endings(name):
            if end in ends:
                alike = of_end.setdefault((end, kind), [])
                if len(alike) <= _OF_ONE_ENDING:
                    alike.append(name)
    pairs: list[tuple[str, str]] = []
    for name, kind in sample:
        for end in _endings(name):
            if alike := of_end.get((end, kind), []):
                one = alike if len(alike) == 1 else []
                if 1 < len(alike) <= _OF_ONE_ENDING and "." in end:
                    one = difflib.get_close_matches(name, alike, 1)
                pairs.extend((name, old) for old in one)
                break
    return pairs


def _by_letters(names: _Names, paired: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns (wanted, stored) names that are similar, of a few missing ones that have no pair.

    Of names that only their numbers tell apart, those of layers, the first is looked at.
    """
    with_pair = {_NUMBER.sub("#", want) for want, _ in paired}
    taken = {old for _, old in paired}
    first: dict[str, str] = {}
    for name in names.missing:
        if (pattern := _NUMBER.sub("#", name)) not in with_pair:
            first.setdefault(pattern, name)
    pairs: list[tuple[str, str]] = []
    for name in list(first.values())[:: max(1, len(first) // _COMPARED)][:_COMPARED]:
        kind, last = names.missing[name], name.rpartition(".")[2]
        alike = [old for old, its in names.left.items() if its == kind and old not in taken]
        alike = [old for old in alike if old.rpartition(".")[2] == last] or alike
        numbers = _NUMBER.findall(name)
        alike = [old for old in alike if _NUMBER.findall(old) == numbers] or alike
        if close := difflib.get_close_matches(name, alike[:_MOST_CANDIDATES], 1):
            pairs.append((name, close[0]))
            taken.add(close[0])
    return pairs


def _prefixes(pairs: list[tuple[str, str]], names: _Names) -> Iterator[_Try]:
    """Yields a rename of prefixes that leaves the names as they are that fit."""
    votes = Counter(_beginnings(old, new) for new, old in pairs)
    chosen: dict[str, str] = {}
    found: dict[str, str] = {}
    for (old, new), _ in votes.most_common(_TRIED):
        prefixes = [old]
        if any(name.startswith(old) for name in names.fits):
            olds = (name for name in names.left if name.startswith(old))
            tops = (_top(name, old) for name in olds if new + name[len(old) :] in names.missing)
            prefixes = list(dict.fromkeys(tops))
        more = {prefix: new + prefix[len(old) :] for prefix in prefixes}
        together = {**more, **chosen}
        # The first that fits is applied: one that another begins with comes after it.
        together = dict(sorted(together.items(), key=lambda one: (-len(one[0]), one[0])))
        if len(together) <= _IN_RENAME:
            now = names.found(together)
            if now is not None and len(now) > len(found):
                chosen, found = together, now
    if found:
        yield f"rename={chosen}", len(chosen), found


def _beginnings(old: str, new: str) -> tuple[str, str]:
    """Returns what stands before the longest end, of whole parts, that two names share."""
    ends = set(_endings(new))
    end = next((end for end in _endings(old) if end in ends), "")
    return (old.removesuffix(end), new.removesuffix(end)) if end else (old, new)


def _top(name: str, prefix: str) -> str:
    """Returns a prefix with the part that follows it in a name."""
    at = name.find(".", len(prefix))
    return name if at < 0 else name[: at + 1]


def _parts(pairs: list[tuple[str, str]], names: _Names) -> Iterator[_Try]:
    """Yields replacements of parts within names."""
    chosen: list[tuple[str, str]] = []
    found: dict[str, str] = {}
    differing = Counter(_differing(old, new) for new, old in pairs)
    for (old, new), _ in differing.most_common(_TRIED):
        if old and len(chosen) < _IN_RENAME:
            now = names.found(_replacing([*chosen, (old, new)]))
            if now is not None and len(now) > len(found):
                chosen, found = [*chosen, (old, new)], now
    if found:
        text = "".join(f".replace({old!r}, {new!r})" for old, new in chosen)
        yield f"rename=lambda name: name{text}", len(chosen), found


def _replacing(replacements: list[tuple[str, str]]) -> Callable[[str], str]:
    def new_name(name: str) -> str:
        for old, new in replacements:
            name = name.replace(old, new)
        return name

    return new_name


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
