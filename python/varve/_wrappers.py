"""Names that differ by the parts alone that wrappers of modules add.

torch.compile, activation checkpointing, DistributedDataParallel and FSDP1 put a module into another one,
and the names of all its parameters get a part more: `_orig_mod.layer.weight`. A run that is resumed
compiled, or on one device, wants other names than it has saved. Here names are compared without these
parts, wherever they are.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from varve import _arguments, _tree
from varve._select import Renamed
from varve.errors import InvalidArgumentError

_log = logging.getLogger("varve")

#: Names of the attributes in which torch's wrappers keep a module.
PARTS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")

_PART = re.compile(rf"(?:^|(?<=\.))(?:{'|'.join(PARTS)})(?:\.|$)")


def unwrapped(name: str) -> str:
    """Returns a name without the parts of wrappers."""
    if not any(part in name for part in PARTS):
        return name
    short = _PART.sub("", name)
    return short[:-1] if short.endswith(".") and not name.endswith(".") else short


class Wrappers:
    """The entries of a checkpoint by names without the parts of wrappers.

    Nothing is done before the first name that a destination wants and the checkpoint lacks.

    Args:
        structure: Returns what is stored, as containers or by name.
    """

    def __init__(self, structure: Callable[[], Any]) -> None:
        self._structure = structure
        self._exact: frozenset[str] = frozenset()
        self._index: Renamed | None = None
        self._stored_has_parts = False

    def find(self, name: str) -> Any:
        """Returns the entry for a wanted name that is not stored; None where there is none, or several."""
        index = self._indexed()
        short = unwrapped(name)
        if short == name and not self._stored_has_parts:
            return None
        return index.structure.get(short)

    def stored(self, name: str) -> str:
        """Returns the stored name for a wanted one; the wanted one where nothing is found for it."""
        if self._index is None or name in self._exact:
            return name
        return self._index.stored.get(unwrapped(name), name)

    def begin(self) -> None:
        """Lets `stored` look for names, where `find` is not called."""
        self._indexed()

    @property
    def used(self) -> bool:
        """False where no name was looked for: all are stored as they are wanted."""
        return self._index is not None

    def matched(self, names: Iterable[str]) -> dict[str, str]:
        """Returns those of the names that are found under other ones, which are the values."""
        if self._index is None:
            return {}
        return {name: stored for name in names if (stored := self.stored(name)) != name}

    def twice(self, names: Iterable[str]) -> set[str]:
        """Returns the names that are found for an entry which another one of the names is found for."""
        found = self.matched(names)
        if not found:
            return set()
        of_entry = Counter(self.stored(name) for name in names)
        return {name for name, stored in found.items() if of_entry[stored] > 1}

    def _indexed(self) -> Renamed:
        if self._index is None:
            structure = self._structure()
            names = {name: unwrapped(name) for name, _ in _tree.leaves(structure)}
            counts = Counter(names.values())
            self._exact = frozenset(names)
            self._stored_has_parts = any(name != short for name, short in names.items())
            # An entry of which there are several belongs to no single object.
            self._index = Renamed(
                structure, lambda name: names[name] if counts[names[name]] == 1 else None
            )
        return self._index


def note(path: str, found: Mapping[str, str]) -> None:
    """Logs that a load takes names for the same: stored ones by wanted ones."""
    wanted, stored = next(iter(found.items()))
    _log.info(
        'load %s: %d names differ from the stored ones by the parts of wrappers alone, as "%s" from "%s"; '
        "they are taken for the same",
        path,
        len(found),
        wanted,
        stored,
    )


class Entries(Container[str]):
    """Stored names, and those that are found for them."""

    def __init__(self, names: Container[str], wrappers: Wrappers) -> None:
        self._names = names
        self._wrappers = wrappers

    def __contains__(self, name: object) -> bool:
        return name in self._names or self._wrappers.stored(str(name)) in self._names


def to_save(state: Any, strip_wrappers: Any) -> Any:
    """Returns the state that a save with this option takes. Raises InvalidArgumentError for another value."""
    return Unwrapped(state) if _arguments.flag("strip_wrappers", strip_wrappers) else state


class Unwrapped:
    """A state as it is saved with `strip_wrappers`: without the parts of wrappers in its names."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        """Returns the state. Its containers are new, what is in them is not."""
        return _strip(self._state)

    def load_state_dict(self, state: Any) -> None:
        """Never called: with it the class is what a save asks for its state."""
        raise NotImplementedError


def _strip(value: Any) -> Any:
    if type(value) is list:
        return [_strip(item) for item in value]
    if type(value) is _tree.PerRank:
        return _tree.PerRank(_strip(value.value), value.merge)
    if _tree.is_stateful(value):
        return _strip(value.state_dict())
    if type(value) not in _tree.MAPPINGS:
        return value
    items: dict[Any, Any] = {}
    for key, item in value.items():
        short = unwrapped(key) if isinstance(key, str) else key
        stripped = _strip(item)
        if short != "" or key == "":
            _merge(items, {short: stripped})
        elif isinstance(stripped, Mapping):
            _merge(items, stripped)  # A container of that name is a part of the names below it.
        else:
            _merge(items, {key: stripped})
    return _tree.like(value, items)


def _merge(items: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for key, item in more.items():
        if key not in items:
            items[key] = item
        elif isinstance(items[key], dict) and isinstance(item, Mapping):
            _merge(items[key], item)
        elif items[key] is not item:
            raise InvalidArgumentError(
                f'strip_wrappers: two entries of the state both get the name "{key}" in their container; '
                "save them under names of their own, or without strip_wrappers"
            )
