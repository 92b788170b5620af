"""Walking states: from nested containers to named leaves, and back.

Names follow torch.distributed.checkpoint (`_nested_dict.py`, `_traverse.py` of torch 2.13): dicts are
always descended, a list only if it, or a list nested in it, holds a tensor or a dict; tuples are
leaves; key parts are joined with ".".
"""

from __future__ import annotations

import collections
import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from varve import _classes, _core
from varve._values import LEAVES, OBJECT, ObjectLeaf, TensorLeaf, Wrapped, factory_name
from varve.errors import InvalidArgumentError

T = TypeVar("T")

#: Containers that can be rebuilt as what they were.
MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)

#: ".../rank3": a value of one rank.
RANK_PART = re.compile(r"^(?P<prefix>.*/rank)(?P<rank>\d+)$")


class PerRank(Generic[T]):
    """A value that every rank has for itself, such as its RNG or data-loader state.

    In a state dict, `{"train": PerRank(value)}` is stored as `train/rank{R}` by rank R. A load fills
    `value` from the same rank's, or from rank 0's where the world has changed and there is none.
    `read` gives all of them under their stored names. `value` may be anything a state dict may hold.

    With `merge` a load on another number of ranks calls merge(values, rank, world) on each rank, with the stored
    values of all ranks by rank, and this rank and the number of ranks of now. What it returns becomes
    `value`, or is given to the `load_state_dict` of `value`. What it raises, the load raises on that rank.
    """

    __slots__ = ("merge", "value")

    def __init__(self, value: T, merge: Callable[[list[Any], int, int], Any] | None = None) -> None:
        self.value = value
        self.merge = merge

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"


def is_stateful(value: Any) -> bool:
    """Returns True for objects with torch's Stateful protocol: modules, optimizers, schedulers."""
    return (
        not isinstance(value, (Mapping, list, type))
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def opens(value: Any, is_tensor: Callable[[Any], bool]) -> bool:
    """Returns True when a value is a container whose items get names of their own."""
    if isinstance(value, Mapping) or type(value) is PerRank or is_stateful(value):
        return True
    if not isinstance(value, list):
        return False
    return any(is_tensor(item) or opens(item, is_tensor) for item in value)


class Wrapping(Protocol):
    """How an array library takes apart tensors that are made of others, and puts them together.

    What `take_apart` returns has `name`, the class; `inner`, the inner tensors by name; and `in_place`, whether
    filling these fills the tensor.
    """

    def take_apart(self, fqn: str, tensor: Any) -> Any:
        """Returns the inner tensors of one that is made of others, else None."""

    def text_of(self, fqn: str, tensor: Any, apart: Any) -> bytes:
        """Returns what the structure says of such a tensor, the `text` of a Wrapped."""

    def pickle_of(self, fqn: str, tensor: Any) -> tuple[bytes, list[str]] | None:
        """Returns a pickle of such a tensor, whose storages are the inner tensors of these names.

        None for one that is not to be stored so.
        """

    def difference(
        self,
        tensor: Any,
        apart: Any,
        stored: Wrapped,
        cast: bool,
        shape_of: Callable[[str], tuple[int, ...]],
    ) -> str:
        """Returns in what a stored Wrapped is another tensor than one to fill; "" where it fits.

        `shape_of` gives the stored shape of an inner tensor.
        """

    def with_memory(self, tensor: Any, apart: Any) -> Any:
        """Returns a new tensor made of others in place of a hollow one."""

    def adopt(self, tensor: Any, made: Any) -> Any:
        """Returns a new tensor as it takes the place of another: a Parameter stays one."""

    def put_together(self, fqn: str, text: bytes, inner: dict[str, Any]) -> Any:
        """Returns a tensor made of others, or a dict of these."""

    def pickled(
        self, reader: _core.Reader, fqn: str, tensor: Any, apart: Any
    ) -> tuple[str, Callable[[], Any]]:
        """Returns how a plain entry of other software differs from a tensor to fill, and what fills it.

        torch's planner pickles such tensors as objects of their class. The difference is "" where it fits.
        A tensor that cannot be filled in place is returned by the function, to take the old one's place.
        """

    def whole_pickled(self, reader: _core.Reader, fqn: str) -> Any:
        """Returns the whole tensor that torch has pickled as an object of its class, None for a plain one."""


#: Takes the pairs at the beginning of a dict's (key, value) pairs that are plain tensors. It is given the
#: pairs, the name of the dict, the names of the state, the dict of leaves and a list of tensors, and adds to the
#: last three. Returns the first other pair, None at the end.
Take = Callable[
    [Iterator[tuple[Any, Any]], str | None, dict[str, str], dict[Any, Any], list[Any]],
    tuple[Any, Any] | None,
]

#: Takes likewise those to fill, which the second dict has a stored tensor for. It is given the pairs, the name
#: of the dict, the stored dict and a list that it adds (name, tensor) to.
Pair = Callable[
    [Iterator[tuple[Any, Any]], str | None, Any, list[tuple[str, Any]]],
    tuple[Any, Any] | None,
]


def take_nothing(entries: Iterator[tuple[Any, Any]], *_others: Any) -> tuple[Any, Any] | None:
    """Returns the next pair, as a Take and a Pair."""
    return next(entries, None)


class Flattener:
    """Collects the leaves of a state and the structure around them.

    `tensors` and `objects` are lists of (fqn, value). `structure` is the state with leaves replaced by
    TensorLeaf and ObjectLeaf. `wrapped` are names of tensors that were taken apart. Raises InvalidArgumentError when two leaves get one name or a container
    cannot be stored.
    """

    def __init__(
        self,
        rank: int,
        is_tensor: Callable[[Any], bool],
        origin: Callable[[Any], str],
        wrapping: Wrapping | None = None,
        take: Take = take_nothing,
    ) -> None:
        """Starts with nothing.

        Args:
            rank: This rank's number, in the names of `PerRank` values.
            is_tensor: Whether a value is stored as a tensor.
            origin: The library that a tensor comes from.
            wrapping: Takes tensors apart that are made of others. Without it they are listed as they are.
            take: Takes plain tensors, which go to `taken` instead of `tensors`. States have tens of thousands.
        """
        self._take = take
        self._wrapping = wrapping
        self.tensors: list[tuple[str, Any]] = []
        self.objects: list[tuple[str, Any]] = []
        #: Tensors that `take` has taken.
        self.taken: list[Any] = []
        #: The names of tensors that are made of others.
        self.wrapped: list[str] = []
        #: The ones that are not inner tensors themselves, with their names.
        self.outermost: list[tuple[str, Any]] = []
        #: Lists of a class of their own that were opened, by name; the structure has plain lists.
        self.own_lists: list[tuple[str, Any]] = []
        self._wrapping_depth = 0
        self._rank = rank
        self._is_tensor = is_tensor
        self._origin = origin
        self._names: dict[str, str] = {}

    def flatten(self, state: Any) -> Any:
        """Walks the whole state; returns its structure."""
        if is_stateful(state):
            state = state.state_dict()
        if not isinstance(state, Mapping):
            raise InvalidArgumentError(f"a state must be a dict, not a {type(state).__name__}")
        try:
            return self._visit_mapping(state, None)
        except RecursionError:
            raise InvalidArgumentError(
                "the state nests deeper than 200 levels, or contains itself"
            ) from None

    def _visit(self, value: Any, path: str) -> Any:
        if self._is_tensor(value):
            if self._wrapping is not None:
                inner = self._wrapping.take_apart(path, value)
                if inner is not None:
                    text = self._wrapping.text_of(path, value, inner)
                    self.wrapped.append(path)
                    if self._wrapping_depth == 0:
                        self.outermost.append((path, value))
                    self._wrapping_depth += 1
                    items = {k: self._visit(v, join(path, k)) for k, v in inner.inner.items()}
                    self._wrapping_depth -= 1
                    return Wrapped(text, items)
            self._name(path, "tensor")
            self.tensors.append((path, value))
            return LEAVES[self._origin(value)]
        if is_stateful(value):
            return self._visit(value.state_dict(), path)
        if isinstance(value, Mapping):
            return self._visit_mapping(value, path)
        if isinstance(value, list) and opens(value, self._is_tensor):
            if type(value) is not list:
                self.own_lists.append((path, value))
            return [self._visit(item, join(path, str(i))) for i, item in enumerate(value)]
        self._name(path, "value")
        self.objects.append((path, value))
        return OBJECT

    def _visit_mapping(self, mapping: Mapping[Any, Any], path: str | None) -> Any:
        known = _classes.is_dict(mapping)
        if type(mapping) is collections.defaultdict:
            known = factory_name(mapping) is not None
        if not known:
            raise InvalidArgumentError(
                f'"{path or ""}": such a {type(mapping).__name__} is not stored as a container; '
                "convert it to a dict"
            )
        items: dict[Any, Any] = {}
        entries = iter(_classes.items_of(mapping))
        while (other := self._take(entries, path, self._names, items, self.taken)) is not None:
            key, item = other
            if type(item) is PerRank:
                key, item = f"{key}/rank{self._rank}", item.value
            items[key] = self._visit(item, join(path, str(key)))
        return like(mapping, items)

    def _name(self, path: str, what: str) -> None:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{path!r} cannot be a name: {error.reason}") from None
        if path in self._names:
            raise InvalidArgumentError(
                f'two entries of the state both get the name "{path}" (a {self._names[path]} and a '
                f"{what}); rename one of their keys"
            )
        self._names[path] = what


def join(path: str | None, part: str) -> str:
    """Returns the name of an entry of the container at `path`; None is the whole state."""
    return part if path is None else f"{path}.{part}"


def like(mapping: Any, items: dict[Any, Any]) -> Any:
    """Returns a mapping of the same kind with other items."""
    if type(mapping) is collections.defaultdict:
        return collections.defaultdict(mapping.default_factory, items)
    if type(mapping) is Wrapped:
        return Wrapped(mapping.text, items)
    kind: Any = type(mapping)
    if kind in MAPPINGS:
        return kind(items) if kind is not dict else dict(items)
    return _classes.like(mapping, items) if isinstance(mapping, dict) else dict(items)


def leaves(
    structure: Any, path: str | None = None
) -> Iterator[tuple[str, TensorLeaf | ObjectLeaf]]:
    """The (fqn, leaf) pairs of a structure, in order."""
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        yield path or "", structure
    elif isinstance(structure, list):
        for i, item in enumerate(structure):
            yield from leaves(item, join(path, str(i)))
    else:
        for key, item in structure.items():
            yield from leaves(item, join(path, str(key)))


def empty_containers(structure: Any, path: str | None = None) -> Iterator[str]:
    """The names of the containers in a structure that hold nothing."""
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return
    if path is not None and not structure:
        yield path
    for key, item in enumerate(structure) if isinstance(structure, list) else structure.items():
        yield from empty_containers(item, join(path, str(key)))


#: Types of keys whose text the engine makes as Python does; in tuples and sets those of the first line alone.
_PLAIN_KEYS = frozenset((str, int, bool, float, bytes, type(None)))
_KEYS = frozenset((datetime.date, range))


def check_keys_of_dcp(structure: Any, path: str = "") -> None:
    """Raises InvalidArgumentError for a key that an index of DCP could not give back.

    DCP has names alone, with str(key) as a part; a reader finds a key by the text that the engine makes of it.
    """
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return
    is_list = isinstance(structure, list)
    for key, item in enumerate(structure) if is_list else structure.items():
        if type(key) is not str and not is_list and not _has_text_in_dcp(key):
            raise InvalidArgumentError(
                f'"{path}": the key {key!r}, a {type(key).__name__}, cannot be stored with format="dcp"; '
                "use a str, an int or a tuple of these as the key"
            )
        check_keys_of_dcp(item, join(path or None, str(key)))


def _has_text_in_dcp(key: Any) -> bool:
    kind = type(key)
    if kind is tuple or kind is frozenset:
        return all(
            type(item) in _PLAIN_KEYS or (type(item) is tuple and _has_text_in_dcp(item))
            for item in key
        )
    if kind is datetime.datetime:
        return bool(key.tzinfo is None)
    if kind in _PLAIN_KEYS or kind in _KEYS or kind.__module__ == "torch":
        return True
    if isinstance(key, (np.integer, np.bool_, PurePath)):
        return True
    return _classes.is_made_by_name(kind)  # Its text is stored.


def build(
    structure: Any,
    make: Callable[[str, TensorLeaf | ObjectLeaf], Any],
    path: str | None = None,
    together: Callable[[str, bytes, dict[str, Any]], Any] | None = None,
) -> Any:
    """Returns a container tree like `structure`, with each leaf replaced by `make(fqn, leaf)`.

    `together(fqn, text, inner)` makes tensors of their inner ones; without it these are left as a dict.
    """
    if isinstance(structure, (TensorLeaf, ObjectLeaf)):
        return make(path or "", structure)
    if isinstance(structure, list):
        return [build(item, make, join(path, str(i)), together) for i, item in enumerate(structure)]
    items = {
        key: build(item, make, join(path, str(key)), together) for key, item in structure.items()
    }
    if type(structure) is Wrapped:
        return items if together is None else together(path or "", structure.text, items)
    return like(structure, items)
