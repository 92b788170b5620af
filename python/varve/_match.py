"""Matches a destination with a stored structure: the entry that fills each part.

A destination need not have the saved containers: one that is empty is filled, a list gets the saved
length, and a plain value is replaced by whatever was saved under its key. Nothing in the destination
changes while matching: changes are collected as `fills` and made once the load has succeeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import accumulate
from typing import Any

from varve._inside import Inside, inside_of
from varve._match_objects import STEP, attribute_setter, item_setter, match_object, read_only
from varve._objects import Objects, Source
from varve._remedies import for_plain, for_wrapped, shown_array, shown_kind, unlike_shown
from varve._select import NameTree, prune
from varve._tree import (
    MAPPINGS,
    RANK_PART,
    Flattener,
    Pair,
    PerRank,
    build,
    is_stateful,
    join,
    leaves,
    take_nothing,
)
from varve._values import ObjectLeaf, TensorLeaf, Wrapped
from varve.errors import InvalidArgumentError

Setter = Callable[[Any], None]


class Match:
    """The entries that a destination wants from a checkpoint.

    `tensors`: (fqn, tensor in the destination) to fill in place. `created`: (fqn, origin, setter, like)
    of tensors that do not exist yet, `like` the parameter whose state it is, or None; `objects`:
    (fqn, setter) of plain values. `fills`: changes to make afterwards, in order. `missing`,
    `mismatched`, `known`: see LoadRequest in checkpoint.h. `notes`: what the caller is to know.

    With `keys`, entries of other names stay as they are, and are neither missing nor mismatched.
    `hollow` tells tensors that are to be replaced rather than filled (those on the meta device, when
    a load assigns): `assigned` has (fqn, tensor, setter) of them. `give_back` is called with an object
    and its filled state dict. `by_name` gives what is stored by full names, for entries whose
    containers differ from the stored ones, `unwrapped` the entry for a name that is stored with other
    parts of wrappers. `world` is the number of ranks that load. `arrays` takes apart and makes tensors that
    are made of others; with `cast` those of another class will do. `take` deals with plain tensors.
    `pickled` is that of a Wrapping, for what other software has stored of a tensor made of others.

    A container gets what it has names for. An object with `load_state_dict` gets all that is stored below it:
    what its state dict has not is made. A module refuses more than it has, so it gets what it has.
    """

    def __init__(
        self,
        rank: int,
        is_tensor: Callable[[Any], bool],
        stored_objects: Container[str],
        arrays: Any,
        keys: Container[str] | None = None,
        hollow: Callable[[Any], bool] = lambda _tensor: False,
        by_name: Callable[[], Mapping[str, Any]] = dict,
        world: int = 1,
        cast: bool = False,
        pickled: Callable[[str, Any, Any], tuple[str, Callable[[], Any]]] | None = None,
        unwrapped: Callable[[str], Any] = lambda _name: None,
        take: Pair = take_nothing,
    ) -> None:
        self.tensors: list[tuple[str, Any]] = []
        #: The tensors that are still to be given to the engine; `take` gave it the others.
        self.to_add: list[tuple[str, Any]] = []
        self._take = take if keys is None else take_nothing
        self.created: list[tuple[str, str, Setter, Any]] = []
        self.objects: list[tuple[str, Setter]] = []
        #: The tensors inside of `objects`.
        self.inside: dict[str, Inside] = {}
        self.fills: list[Callable[[], None]] = []
        self.missing: list[str] = []
        #: Tensors among the missing, with what replaces them where the container is at hand.
        self._absent: list[tuple[str, Any, Setter | None]] = []
        #: Names that a load assigns because another name fills the same memory.
        self.assigned_as: list[tuple[str, Any, Setter]] = []
        self.mismatched: list[str] = []
        self.known: list[str] = []
        self.notes: list[str] = []
        #: Remedies for classes of tensors that do not fit, each once.
        self.remedies: dict[str, None] = {}
        #: Whole names by which the destination picks entries out of containers that it does not have.
        self.picked: list[str] = []
        self.assigned: list[tuple[str, Any, Setter]] = []
        #: Objects with a state dict of their own, each with its name; None for the whole.
        self.stateful: list[tuple[str | None, Any]] = []
        self._by_name = by_name
        self._arrays = arrays
        self._wrapping: Any = arrays.wrapping
        #: New tensors that replace hollow ones made of others, by their memory.
        self._made: dict[Any, Any] = {}
        self._cast = cast
        self._pickled: Any = pickled
        self._unwrapped = unwrapped
        self._all_names: Mapping[str, Any] | None = None
        self._keys = keys
        self._hollow = hollow
        self._kinds: Objects = arrays
        self._source: Source  # While it matches: an open checkpoint is not removed.
        self._give_back = arrays.give_back
        #: Matching what an object has given that takes all that is stored.
        self._takes_all = False
        #: The parameter whose state is matched.
        self._like: Any = None
        self._rank = rank
        self._world = world
        self._is_tensor = is_tensor
        self._stored_objects = stored_objects

    def match(self, state: Any, structure: Any, source: Source) -> None:
        """Matches a whole state, a dict or an object with a state dict, with a stored structure."""
        self._source = source
        try:
            self._match(state, structure)
        finally:
            del self._source, self._pickled

    def _match(self, state: Any, structure: Any) -> None:
        whole = state.state_dict() if is_stateful(state) else state
        if not isinstance(whole, Mapping):
            raise InvalidArgumentError(
                "the destination must be a dict or an object with state_dict and load_state_dict, "
                f"not a {type(state).__name__}; for containers of another kind use read()"
            )
        if whole is state:
            self._mapping(whole, structure, None)
            by_name = isinstance(structure, NameTree)
            dotted = [key for key in whole if isinstance(key, str) and "." in key]
            self.picked = [key for key in dotted if by_name or key not in structure]
        else:
            self.stateful.append((None, state))
            box = [whole]
            match_object(self, state, whole, structure, None, item_setter(box, 0))
            self.fills.append(lambda: self._give_back(state, box[0]))

    def _visit(self, value: Any, stored: Any, path: str, replace: Setter) -> None:
        # Tensors first: there are most of them, and asking one whether it is stateful takes long.
        if self._is_tensor(value):
            wrapping = self._wrapping
            apart = None if wrapping is None else wrapping.take_apart(path, value)
            if apart is not None:
                self._inner(value, apart, stored, path, replace)
                return
            if not self._wants(path):
                return
            if isinstance(stored, TensorLeaf) and self._hollow(value):
                self.assigned.append((path, value, replace))
            elif isinstance(stored, TensorLeaf):
                self.tensors.append((path, value))
                self.to_add.append((path, value))
            elif self._takes_all:
                self._replace(None, stored, path, replace)
            else:
                plain = "a plain tensor" if type(stored) is Wrapped else "a tensor"
                self.differ(path, stored, f"{shown_kind(stored)}, wanted {plain}")
                self.remedies.update(for_plain(stored))
        elif is_stateful(value):
            self._stateful(value, stored, path)
        elif type(value) is PerRank:
            self._visit(value.value, stored, path, attribute_setter(value))
        elif isinstance(stored, Mapping) and isinstance(value, Mapping) and value:
            self._mapping(value, stored, path)
        elif isinstance(stored, list) and isinstance(value, list):
            self._list(value, stored, path)
        elif isinstance(stored, NameTree) and isinstance(value, list):
            self._list_by_name(value, stored, path)
        else:
            self._replace(value, stored, path, replace)

    def _inner(self, value: Any, apart: Any, stored: Any, path: str, replace: Setter) -> None:
        """Matches a tensor that is made of others with what is stored under its name."""
        if self._keys is not None and not any(
            self._wants(join(path, name)) for name in apart.inner
        ):
            return
        if isinstance(stored, TensorLeaf):
            unlike, fill = self._pickled(path, value, apart)
            if not unlike:
                self.known.append(path)
                take = self._wrapping.adopt
                self.fills.append(fill if apart.in_place else lambda: replace(take(value, fill())))
                return
        elif isinstance(stored, ObjectLeaf):
            unlike = shown_kind(stored)
        elif type(stored) is Wrapped:
            unlike = self._wrapping.difference(
                value, apart, stored, self._cast, lambda n: self._source.geometry(join(path, n))[1]
            )
        else:
            unlike = "" if all(name in stored for name in apart.inner) else shown_kind(stored)
        if unlike:
            self.differ(path, stored, unlike_shown(unlike, apart.name))
            self.remedies.update(for_wrapped(apart.name, stored, self._cast))
            return
        if not apart.in_place and type(stored) is Wrapped:
            box = self._build(stored, path)
            self.fills.append(lambda: replace(self._wrapping.adopt(value, box[0])))
            return
        if self._hollow(value):
            place = self._arrays.memory(value)  # Tied tensors stay tied.
            made = self._made.get(place) if place is not None else None
            if made is None:
                made = self._made[place] = self._wrapping.with_memory(value, apart)
            apart = self._wrapping.take_apart(path, made)
            self.fills.append(lambda: replace(made))
        for name, inner in apart.inner.items():
            self._visit(inner, stored[name], join(path, name), item_setter(apart.inner, name))

    def _stateful(self, value: Any, stored: Any, path: str) -> None:
        state = value.state_dict()
        self.stateful.append((path, value))
        box = [state]
        before = self._wanted()
        match_object(self, value, state, stored, path, item_setter(box, 0))
        if self._wanted() != before or self._keys is None:
            self.fills.append(lambda: self._give_back(value, box[0]))

    def _wanted(self) -> int:
        """Returns the number of entries that a load is to fill so far."""
        return len(self.tensors) + len(self.created) + len(self.objects) + len(self.assigned)

    def _wants(self, path: str) -> bool:
        return self._keys is None or path in self._keys

    def _mapping(self, mapping: Any, stored: Mapping[Any, Any], path: str | None) -> None:
        take = self._take if type(stored) in MAPPINGS else take_nothing
        entries = iter(mapping.items())
        while (other := take(entries, path, stored, self.tensors)) is not None:
            key, value = other
            stored_key, found = key, key if key in stored else None
            if type(value) is PerRank:
                if self._merge(key, value, stored, path):
                    continue
                stored_key, found = f"{key}/rank{self._rank}", self._of_rank(key, stored, path)
            if found is not None:
                self._visit(value, stored[found], join(path, str(found)), item_setter(mapping, key))
                continue
            name = join(path, str(stored_key))
            elsewhere = self._named(name, value)
            if elsewhere is None:
                self._nothing_stored(value, name, item_setter(mapping, key))
            else:
                self._visit(value, elsewhere, name, item_setter(mapping, key))
        if self._takes_all and stored.keys() != mapping.keys():
            self._grow(mapping, stored, path)

    def _grow(self, mapping: Any, stored: Mapping[Any, Any], path: str | None) -> None:
        """Plans what is stored beside the entries of a mapping that an object has given."""
        # Of names in other containers, "a.b" for {"a": {"b": ...}}, the first parts are taken.
        taken = {
            part for key in mapping for part in accumulate(str(key).split("."), "{}.{}".format)
        }
        sharded: bool | None = None
        for key, item in list(stored.items()):
            if key in mapping or str(key) in taken:
                continue
            name = join(path, str(key))
            parsed = RANK_PART.match(key) if isinstance(key, str) else None
            if parsed is not None:
                self._grow_per_rank(mapping, stored, parsed["prefix"], name, key)
                continue
            if self._like is None and self._has_large(item, name):
                if sharded is None:
                    sharded = any(self._kinds.is_shard(each) for each in self._held(mapping))
                if sharded:
                    continue  # Which part of it this rank is to have is not known: it is left over.
            self._replace(None, item, name, item_setter(mapping, key))

    def _grow_per_rank(
        self, mapping: Any, stored: Mapping[Any, Any], prefix: str, name: str, key: str
    ) -> None:
        """Plans this rank's value of those that each rank has, where an object's state dict has none."""
        name_of_all = prefix.removesuffix("/rank")
        if name_of_all in mapping:
            return  # It was matched.
        chosen = f"{prefix}{self._rank}"
        if key != (chosen if chosen in stored else f"{prefix}0"):
            self.known.extend(fqn for fqn, _ in leaves(stored[key], name))
            return
        holder: PerRank[Any] = PerRank(None)
        self._replace(None, stored[key], name, attribute_setter(holder))
        self.fills.append(lambda: mapping.__setitem__(name_of_all, holder))

    def _has_large(self, stored: Any, path: str) -> bool:
        """Returns True where a tensor is stored that could be divided among ranks."""
        return any(
            isinstance(leaf, TensorLeaf) and math.prod(self._source.geometry(fqn)[1]) > 1
            for fqn, leaf in leaves(stored, path)
        )

    def _held(self, value: Any, path: str = "") -> list[Any]:
        """Returns the tensors in a value."""
        flat = Flattener(self._rank, self._is_tensor, lambda _tensor: "")
        flat._visit(value, path)
        return [tensor for _, tensor in flat.tensors]

    def _merge(
        self, key: Any, holder: PerRank[Any], stored: Mapping[Any, Any], path: str | None
    ) -> bool:
        """Plans the merge of what another number of ranks has stored; False where there is none to make."""
        parts: dict[int, str] = {}
        for name in stored:
            parsed = RANK_PART.match(name) if isinstance(name, str) else None
            if parsed is not None and parsed["prefix"] == f"{key}/rank":
                parts[int(parsed["rank"])] = name
        wanted = any(
            self._wants(fqn)
            for name in parts.values()
            for fqn, _ in leaves(stored[name], join(path, name))
        )
        merge = holder.merge
        if merge is None or not wanted or len(parts) == self._world:
            return False
        boxes = [
            self._build(stored[parts[rank]], join(path, parts[rank])) for rank in sorted(parts)
        ]

        def put() -> None:
            merged = merge([box[0] for box in boxes], self._rank, self._world)
            if is_stateful(holder.value):
                self._give_back(holder.value, merged)
            else:
                holder.value = merged

        self.fills.append(put)
        return True

    def _named(self, name: str, value: Any) -> Any:
        """Returns the entry of a name, in any containers; None when nothing is stored.

        A module's state dict is flat: its "0.weight" is wanted as {"0": {"weight": ...}} as well.
        """
        if not name:
            return None  # The empty name has the whole checkpoint below it.
        if self._all_names is None:
            self._all_names = self._by_name()
        found = self._all_names.get(name)
        if found is None and not (isinstance(value, (Mapping, list)) and not value):
            return self._unwrapped(name)  # What is empty would take all that is below a wrapper.
        return found

    def _of_rank(self, key: Any, stored: Mapping[Any, Any], path: str | None) -> str | None:
        """Returns the stored key of a PerRank: this rank's, or rank 0's where fewer ranks have saved."""
        prefix = f"{key}/rank"
        for other in stored:
            sibling = RANK_PART.match(other) if isinstance(other, str) else None
            if sibling is not None and sibling["prefix"] == prefix:
                # Other ranks want their own values; those of ranks that no longer exist are wanted
                # by none.
                self.known.extend(fqn for fqn, _ in leaves(stored[other], join(path, other)))
        mine = f"{prefix}{self._rank}"
        return next((name for name in (mine, f"{prefix}0") if name in stored), None)

    def _list(self, values: list[Any], stored: list[Any], path: str) -> None:
        surplus = values[len(stored) :]
        partly = self._keys is not None and not all(
            self._wants(fqn) for fqn, _ in leaves(stored, path)
        )
        keeps = partly or (not self._takes_all and any(self._held(item, path) for item in surplus))
        if keeps:
            # Cutting the list would silently drop memory that was to be filled.
            for i, item in enumerate(surplus, len(stored)):
                self._nothing_stored(item, join(path, str(i)))
        for i, item in enumerate(stored[: len(values)]):
            self._visit(values[i], item, join(path, str(i)), item_setter(values, i))
        extra = [
            self._build(item, join(path, str(i)))
            for i, item in enumerate(stored)
            if i >= len(values) and not partly
        ]
        kept = len(stored)

        def resize() -> None:
            del values[kept:]
            values.extend(box[0] for box in extra)

        if len(values) != len(stored) and not keeps:
            self.fills.append(resize)

    def _list_by_name(self, values: list[Any], stored: NameTree, path: str) -> None:
        """Of renamed entries only names are known: the list keeps its length."""
        for i, item in enumerate(values):
            if str(i) in stored:
                self._visit(item, stored[str(i)], join(path, str(i)), item_setter(values, i))
            else:
                self._nothing_stored(item, join(path, str(i)))

    def _replace(self, value: Any, stored: Any, path: str, replace: Setter) -> None:
        if self._keys is not None:
            wanted = [fqn for fqn, _ in leaves(stored, path) if self._wants(fqn)]
            stored = prune(stored, wanted, path) if wanted else None
            if stored is None:
                return
        if isinstance(stored, ObjectLeaf) and path not in self._stored_objects:
            self.missing.append(path)  # The structure is not the checkpoint's own.
            return
        if replace is read_only:
            self.differ(
                path, stored, f"{shown_kind(stored)}, wanted in a read-only mapping: make it a dict"
            )
            return
        inside = None
        if not self._takes_all:
            array = shown_array(value, stored)
            inside = inside_of(value, self._arrays, self._hollow, self._cast)
            fillable = inside is None or isinstance(stored, ObjectLeaf)
            if array or not fillable or self._held(value, path):
                # Memory to be filled would silently be dropped.
                unfilled = array or f"{shown_kind(value)} with tensors"
                self.differ(path, stored, f"{shown_kind(stored)}, wanted {unfilled}")
                return
            if inside is not None:
                self.inside[path] = inside
        box = self._build(stored, path)
        self.fills.append(lambda: replace(box[0] if inside is None else inside.filled(box[0])))

    def differ(self, path: str, stored: Any, how: str) -> None:
        """Notes that what is stored under a path, shown in `how`, cannot take the place of what is there."""
        self.mismatched.append(f"{path} (stored {how})")
        self.known.extend(fqn for fqn, _ in leaves(stored, path))

    def _build(self, stored: Any, path: str) -> list[Any]:
        """Plans a new tree; the returned box holds it once everything has been read."""
        found: dict[str, Any] = {}
        for fqn, leaf in leaves(stored, path):
            if isinstance(leaf, TensorLeaf):
                like = None if fqn.endswith(STEP) else self._like  # It is no part of a shard.
                self.created.append((fqn, leaf.origin, item_setter(found, fqn), like))
            else:
                self.objects.append((fqn, item_setter(found, fqn)))
        box: list[Any] = [None]

        def assemble() -> None:
            wrapping = self._wrapping
            together = None if wrapping is None else wrapping.put_together
            box[0] = build(stored, lambda fqn, _leaf: found[fqn], path, together)

        self.fills.append(assemble)
        return box

    def _nothing_stored(self, value: Any, path: str, replace: Setter | None = None) -> None:
        flat = Flattener(self._rank, self._is_tensor, lambda _tensor: "")
        flat._visit(value.value if type(value) is PerRank else value, path)
        whole = replace if self._is_tensor(value) else None
        self._absent.extend((fqn, tensor, whole) for fqn, tensor in flat.tensors)
        self.missing.extend(fqn for fqn, _ in flat.tensors if self._wants(fqn))
        self.missing.extend(fqn for fqn, _ in flat.objects if self._wants(fqn))

    @property
    def absent(self) -> list[str]:
        """Names of the destination that the checkpoint lacks, tied ones too."""
        return [*(fqn for fqn, _, _ in self._absent), *self.missing]

    def wanted(self) -> Iterator[tuple[str, Any]]:
        """Yields the destination's tensors with their names: those that are matched, and the missing."""
        yield from self.tensors
        for fqn, tensor, _ in (*self.assigned, *self._absent):
            yield fqn, tensor

    def tensor_names(self) -> list[str]:
        """Returns the names of the tensors that a load is to fill or to replace."""
        return [*(fqn for fqn, _ in self.tensors), *(fqn for fqn, _, _ in self.assigned)]

    def lose(self, names: Container[str]) -> None:
        """Counts tensors as missing that were matched."""
        self._absent.extend((fqn, tensor, None) for fqn, tensor in self.tensors if fqn in names)
        self._absent.extend(one for one in self.assigned if one[0] in names)
        self.tensors = [one for one in self.tensors if one[0] not in names]
        self.to_add = self.tensors  # What `take` has taken is to be forgotten.
        self.assigned = [one for one in self.assigned if one[0] not in names]
        self.missing.extend(fqn for fqn, _, _ in self._absent if fqn in names)

    def drop_tied(self, memory: Callable[[Any], Any]) -> None:
        """Removes from `missing` the tensors whose memory other names fill, by their `memory` key."""
        if not self._absent:
            return
        filled = {memory(tensor) for _, tensor in self.tensors} - {None}
        assigned = {memory(tensor) for _, tensor, _ in self.assigned} - {None}
        tied = set()
        for fqn, tensor, replace in self._absent:
            key = memory(tensor)
            if key in filled:
                tied.add(fqn)
            elif key in assigned and replace is not None:
                tied.add(fqn)
                self.assigned_as.append((fqn, tensor, replace))
        self.missing = [fqn for fqn in self.missing if fqn not in tied]
