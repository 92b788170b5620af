"""Choosing entries by name: `keys` of loads and reads, `rename` of loads.

Both cost time in proportion to the names there are, not to names times keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from varve import _arguments, _tree
from varve._core import Globs
from varve._values import ObjectLeaf, TensorLeaf, Wrapped
from varve.errors import InvalidArgumentError

#: New name by old name: pairs of prefixes, or a function that returns None for a name to leave out.
Rename = Mapping[str, str] | Callable[[str], str | None]

_Leaf = TensorLeaf | ObjectLeaf
_SPECIAL = frozenset("*?[")
_OF_ONE_RANK = re.compile(r"/rank\d+(?=\.|$)")


class Keys:
    """A choice of names: each key is a name, everything under it, or a glob.

    A value of each rank (PerRank) is chosen by its name, "train", and by that of one rank's, "train/rank3".

    Raises InvalidArgumentError for keys that are not strings.
    """

    def __init__(self, keys: str | Iterable[str], argument: str = "keys") -> None:
        self._keys = _arguments.names(argument, keys)
        self._exact = frozenset(self._keys)
        self._globs = Globs([key for key in self._keys if not _SPECIAL.isdisjoint(key)])

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)
        return any(
            name in self._globs or any(above in self._exact for above in _with_those_above(name))
            for name in _as_named(name)
        )

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Returns the keys that choose none of the names, in the order given."""
        left = dict.fromkeys(self._keys)
        globs = {key: Globs([key]) for key in left if not _SPECIAL.isdisjoint(key)}
        for name in (each for stored in names for each in _as_named(stored)):
            for above in _with_those_above(name):
                left.pop(above, None)
            for key in [key for key, glob in globs.items() if name in glob]:
                left.pop(key, None)
                del globs[key]
            if not left:
                break
        return list(left)

    def __str__(self) -> str:
        return _arguments.first_names(self._keys)


def _as_named(name: str) -> tuple[str, ...]:
    """Returns a stored name and, of a value of one rank, the name that its state dict has."""
    return (name, _OF_ONE_RANK.sub("", name)) if "/rank" in name else (name,)


def _with_those_above(name: str) -> Iterator[str]:
    """The name and those of the containers that it is in, but for the whole."""
    end = len(name)
    while end >= 0:
        yield name[:end]
        end = name.rfind(".", 0, end)


def prune(structure: Any, found: Iterable[str], path: str | None = None) -> Any:
    """Returns the part of a structure that holds the found leaves; None when it holds none.

    Positions are part of the names, so a list with holes becomes a dict of what is left, by position.
    """
    leaves = frozenset(found)
    return _prune(structure, leaves, _with_parents(leaves), path)


def _with_parents(names: Iterable[str]) -> set[str]:
    """Returns the names and every beginning of them that ends before a dot."""
    kept: set[str] = set()
    for name in names:
        end = len(name)
        while end >= 0 and name[:end] not in kept:
            kept.add(name[:end])
            end = name.rfind(".", 0, end)
    return kept


def _prune(structure: Any, found: frozenset[str], kept: set[str], path: str | None) -> Any:
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return structure if (path or "") in found else None
    is_list = isinstance(structure, list)
    parts: dict[Any, Any] = {}
    for key, item in enumerate(structure) if is_list else structure.items():
        name = _tree.join(path, str(key))
        if name in kept and (part := _prune(item, found, kept, name)) is not None:
            parts[key] = part
    if not parts:
        return None
    if is_list:
        whole = len(parts) == len(structure)
        return list(parts.values()) if whole else {str(key): part for key, part in parts.items()}
    if type(structure) is Wrapped and len(parts) < len(structure):
        return parts  # Of some of its inner tensors no tensor is made.
    return _tree.like(structure, parts)


def renamer(rename: Rename) -> Callable[[str], str | None]:
    """Returns the function that a `rename` stands for. Raises InvalidArgumentError for another type."""
    if callable(rename):
        return rename
    if not isinstance(rename, Mapping):
        raise _arguments.refuse(
            "rename",
            rename,
            "a dict {stored prefix: wanted prefix}, or a function of a stored name",
        )
    pairs = _arguments.prefixes("rename", rename)

    def by_prefix(name: str) -> str:
        for old, new in pairs:
            if name.startswith(old):
                return new + name[len(old) :]
        return name

    return by_prefix


class Renamed:
    """The leaves of a checkpoint under other names.

    Attributes:
        stored: The name in the checkpoint, by the new one.
        structure: A structure of NameTrees. A container whose names have all stayed is itself.
        keys: Keys that are no strings, by the new name of their container and their part of names.

    Raises InvalidArgumentError when two names become one, or a name becomes something else than a str.
    """

    def __init__(self, structure: Any, rename: Rename) -> None:
        new_name = renamer(rename)
        self.stored: dict[str, str] = {}
        self.leaves: dict[str, _Leaf] = {}
        self.below: dict[str, dict[str, None]] = {}
        self.keys: dict[tuple[str, str], Any] = {}
        keyed = {
            name: {str(key): key for key in container if not isinstance(key, str)}
            for name, container in _keyed(structure, "")
        }
        for name, leaf in _tree.leaves(structure):
            new = new_name(name)
            if new is None:
                continue
            if not isinstance(new, str):
                raise InvalidArgumentError(f'rename: "{name}" became {new!r}; want a str or None')
            if new in self.stored:
                raise InvalidArgumentError(
                    f'rename: "{self.stored[new]}" and "{name}" both became "{new}"'
                )
            self.stored[new] = name
            self.leaves[new] = leaf
            if keyed:
                self._keep_keys(name, new, keyed)
        self._counts: dict[str, int] = {}
        for name in self.leaves:
            self._note_parents(name)
        self.unchanged: dict[str, Any] = {}
        self._find_unchanged(structure, None)
        self._find_moved(structure, None, {old: new for new, old in self.stored.items()})
        self.structure = NameTree(self, "")

    def _keep_keys(self, name: str, new: str, keyed: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes the keys in the part of a name, at its end, that has stayed."""
        for above in (*_with_those_above(name), ""):
            rest = name[len(above) + 1 :] if above else name
            part = rest.partition(".")[0]
            if part not in keyed.get(above, ()):
                continue
            if new == rest or new.endswith("." + rest):
                self.keys[new[: -len(rest) - 1], part] = keyed[above][part]

    def _note_parents(self, name: str) -> None:
        parent, at = "", 0
        while True:
            end = name.find(".", at)
            self._counts[parent] = self._counts.get(parent, 0) + 1
            part = name[at:] if end < 0 else name[at:end]
            self.below.setdefault(parent, {})[part] = None
            if end < 0:
                return
            parent, at = name[:end], end + 1

    def _find_unchanged(self, structure: Any, path: str | None) -> int:
        """Notes the containers that are as they were; returns how many leaves are, or -1 for not all."""
        if isinstance(structure, (TensorLeaf, ObjectLeaf)):
            return 1 if self.stored.get(path or "") == path else -1
        items = enumerate(structure) if isinstance(structure, list) else structure.items()
        counts = [self._find_unchanged(item, _tree.join(path, str(key))) for key, item in items]
        if -1 in counts:
            return -1
        if sum(counts) != self._counts.get(path or "", 0):
            return -1  # Others were renamed into it.
        if path is not None:
            self.unchanged[path] = structure
        return sum(counts)

    def _find_moved(self, structure: Any, path: str | None, new_of: Mapping[str, str]) -> None:
        """Notes tensors that are made of others, and whose inner tensors have gone to another name together."""
        if isinstance(structure, (TensorLeaf, ObjectLeaf)):
            return
        if type(structure) is not Wrapped:
            items = enumerate(structure) if isinstance(structure, list) else structure.items()
            for key, item in items:
                self._find_moved(item, _tree.join(path, str(key)), new_of)
            return
        old = [name for name, _ in _tree.leaves(structure, path)]
        if not old:
            return
        start = len(path or "")
        moved = {new_of.get(name, "").removesuffix(name[start:]) for name in old}
        place = moved.pop()
        if not moved and all(new_of.get(name) == place + name[start:] for name in old):
            self.unchanged.setdefault(place, structure)


def _keyed(structure: Any, path: str) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """The names of the dicts that have keys other than strings, and the dicts."""
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return
    if isinstance(structure, Mapping) and any(not isinstance(key, str) for key in structure):
        yield path, structure
    for key, item in enumerate(structure) if isinstance(structure, list) else structure.items():
        if not isinstance(item, (TensorLeaf, ObjectLeaf)):
            yield from _keyed(item, _tree.join(path or None, str(key)))


class NameTree(Mapping[Any, Any]):
    """The entries under a name, as a mapping of the next parts of names.

    A key may have several parts: the state dict of a module is flat, its keys hold dots.
    """

    def __init__(self, names: Renamed, path: str) -> None:
        self._names = names
        self._path = path

    def __getitem__(self, key: object) -> Any:
        name = _tree.join(self._path or None, str(key))
        if name in self._names.leaves:
            return self._names.leaves[name]
        if name in self._names.unchanged:
            return self._names.unchanged[name]
        if name in self._names.below:
            return NameTree(self._names, name)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        name = _tree.join(self._path or None, str(key))
        names = self._names
        return name in names.leaves or name in names.unchanged or name in names.below

    def __iter__(self) -> Iterator[Any]:
        keys = self._names.keys
        below = self._names.below.get(self._path, ())
        return iter([keys.get((self._path, part), part) for part in below] if keys else below)

    def __len__(self) -> int:
        return len(self._names.below.get(self._path, ()))


@dataclass(frozen=True)
class Choice:
    """Which entries a load fills, and from where.

    Raises InvalidArgumentError for a flag that is neither True nor False.
    """

    keys: str | Iterable[str] | None
    rename: Rename | None
    allow_pickle: bool
    use_agent: bool
    assign: bool = False
    one_will_do: str | Iterable[str] | None = None
    """Names of which the lowest rank's value will do where ranks cannot get their own."""

    def __post_init__(self) -> None:
        for name in ("allow_pickle", "use_agent", "assign"):
            _arguments.flag(name, getattr(self, name))
