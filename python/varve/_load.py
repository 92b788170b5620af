"""Loads into a state and reads of a new one, as NumPy and torch share them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from varve import _arguments, _classes, _core, _nearest, _tree
from varve._core import Coordinator
from varve._engine import (
    DTYPE_NUMBERS,
    Arrays,
    Filling,
    collector_at_rest,
    fail,
    on_all_ranks,
    path_name,
    path_text,
)
from varve._left_over import makes_wrapped, warn_of_nothing, warn_of_one_value, warn_of_rest
from varve._match import Match
from varve._plain_values import plain_values
from varve._select import Choice as Choice
from varve._select import Keys, Renamed, prune
from varve._values import ObjectLeaf, TensorLeaf
from varve._wrappers import Entries, Wrappers, note
from varve.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    UnsupportedError,
)

_CASTABLE = frozenset(DTYPE_NUMBERS[name] for name in ("float16", "bfloat16", "float32", "float64"))


class _Plan:
    """The load of one rank: all that is known before the ranks agree.

    Matches the destination with the checkpoint and lists the memory to fill.
    """

    def __init__(
        self,
        reader: _core.Reader,
        state: Any,
        arrays: Arrays,
        rank: int,
        choice: Choice,
        cast: bool,
        world: int,
    ) -> None:
        self.reader = reader
        self.arrays = arrays
        self.cast = cast
        self.filling = Filling()
        self.names: list[str] = []
        self.unwrapped: dict[str, str] = {}  # Stored names of what `wrappers` has found.
        self.stored_name: dict[str, str] | None = None
        self._stored: dict[str, tuple[int, tuple[int, ...]]] | None = None
        self._assigned: dict[Any, Any] = {}  # By memory: tied tensors stay tied.
        self.keys = None if choice.keys is None else Keys(choice.keys)
        one = choice.one_will_do
        self._one_will_do = None if one is None else Keys(one, "one_will_do")
        self.objects = frozenset(reader.object_names())
        objects: Container[str] = self.objects
        with _classes.quietly():  # The destination has the containers.
            self.structure = structure = reader.structure()
        # `match` and `wrappers` are in circles of references. These must not keep the reader open: a
        # checkpoint that is open is not removed by the rules of a run.
        opened: Callable[[], Any] = weakref.ref(reader)
        self.wrappers = Wrappers(lambda: dict(_leaves(opened(), None)) if saved is None else saved)
        saved = structure
        by_name: Callable[[], Mapping[str, Any]] = dict
        take = arrays.matcher(self.filling)
        if choice.rename is not None:
            renamed = Renamed(structure or dict(_leaves(reader, None)), choice.rename)
            self.stored_name = renamed.stored
            saved = structure = renamed.structure
            objects = frozenset(new for new, old in renamed.stored.items() if old in objects)
        elif structure is None:
            # Saved from C++ without containers: names alone decide.
            flat = _tree.Flattener(rank, arrays.is_tensor, arrays.origin, wrapping=arrays.wrapping)
            structure = flat.flatten(state)
            if not {fqn for fqn, _ in flat.tensors} <= set(reader.tensor_names()):
                self.wrappers.begin()
                take = _tree.take_nothing  # `structure` has names that are not stored.
        else:
            by_name = lambda: Renamed(saved, str).structure  # noqa: E731
        names, wrappers = self.stored_name or {}, self.wrappers

        def stored(fqn: str) -> str:
            fqn = wrappers.stored(fqn)
            return names.get(fqn, fqn)

        def pickled(fqn: str, tensor: Any, apart: Any) -> tuple[str, Callable[[], Any]]:
            assert arrays.wrapping is not None  # Else there is nothing to take apart.
            return arrays.wrapping.pickled(opened(), stored(fqn), tensor, apart)

        self.match = Match(
            rank,
            arrays.is_tensor,
            Entries(objects, self.wrappers),
            arrays,
            self.keys,
            arrays.hollow if choice.assign else lambda _tensor: False,
            by_name,
            world,
            cast,
            pickled,
            unwrapped=self.wrappers.find,
            take=take,
        )
        with collector_at_rest():
            self.match.match(state, structure, self)
            self._note_wrappers()
            self.match.drop_tied(arrays.memory)
            self._list_targets()
        self.names = [self.stored(fqn) for fqn, _ in self.match.objects]
        request = self.filling.engine
        request.objects, request.ignored = self.names, self._known()
        request.missing, request.mismatched = self.match.missing, self.match.mismatched
        request.one_will_do = [
            self.stored(fqn if path is None else _tree.join(path, fqn))
            for path, value in self.match.stateful
            for fqn in arrays.buffers(value)
        ]
        self.asked = self._asked()
        request.one_will_do += self.asked

    def compare_inside(self, values: list[Any]) -> None:
        """Counts plain values as mismatched whose tensors the stored ones cannot fill."""
        match, request = self.match, self.filling.engine
        for (fqn, _), value in zip(match.objects, values, strict=True):
            inside = match.inside.get(fqn)
            if inside is not None and (unlike := inside.difference(value)):
                inside.fits = False
                match.mismatched.append(f"{fqn} (stored {unlike})")
                match.known.append(fqn)
        unfit = {fqn for fqn, inside in match.inside.items() if not inside.fits}
        if unfit:
            request.objects = [self.stored(fqn) for fqn, _ in match.objects if fqn not in unfit]
            request.mismatched, request.ignored = match.mismatched, self._known()

    def _asked(self) -> list[str]:
        """Returns stored names of several values, of which the caller says that one will do."""
        if self._one_will_do is None:
            return []
        wanted = self._wanted_by_stored()
        return [fqn for fqn in self.reader.variants() if wanted.get(fqn, fqn) in self._one_will_do]

    def _wanted_by_stored(self) -> dict[str, str]:
        """Returns names of the destination by stored ones, where the two differ."""
        wanted = {stored: new for new, stored in (self.stored_name or {}).items()}
        wanted.update((self.stored(fqn), fqn) for fqn in self.unwrapped)
        return wanted

    def stored(self, fqn: str) -> str:
        """Returns the name in the checkpoint of an entry of the destination."""
        fqn = self.wrappers.stored(fqn)
        return fqn if self.stored_name is None else self.stored_name.get(fqn, fqn)

    def _note_wrappers(self) -> None:
        """Notes the entries that only the parts of wrappers tell from stored ones."""
        if not self.wrappers.used:
            return
        match = self.match
        tensors = match.tensor_names()
        if twice := self.wrappers.twice(tensors):
            match.lose(twice)
            self.filling.engine.clear_targets()
        others = [*(fqn for fqn, *_ in match.created), *(fqn for fqn, _ in match.objects)]
        self.unwrapped = self.wrappers.matched((*match.tensor_names(), *others))

    @property
    def path(self) -> str:
        """The checkpoint's name."""
        return self.reader.path

    def values(self, names: Sequence[str]) -> list[Any] | None:
        """Returns plain values by names of the destination; None where one is not there."""
        stored = [self.stored(name) for name in names]
        if not all(name in self.objects for name in stored):
            return None
        return self.reader.objects(stored)

    def geometry(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Returns dtype number and shape of a tensor, by its name in the destination."""
        return self._geometry(self.stored(name))

    def names_to_fill(self) -> list[str]:
        """Returns the names that the checkpoint's entries have in a destination."""
        if self.stored_name is not None:
            return [*self.stored_name, *self.unwrapped]
        return [*(fqn for fqn, _ in _leaves(self.reader, None)), *self.unwrapped]

    def hint(self, fit: str) -> str | None:
        """Returns which stored names are nearest to the missing ones, for a message."""
        match = self.match
        if match.remedies:  # Names of another optimizer's options would mislead.
            return "\n  ".join(match.remedies)
        kind: Callable[[Any], Any] = len if fit == "overlap" else tuple
        wanted = {fqn: kind(_nearest.shape_of(tensor)) for fqn, tensor in match.wanted()}
        tensors = match.tensor_names()
        geometry = self.reader.tensors()
        stored = {
            fqn: kind(geometry[name][1]) if (name := self.stored(fqn)) in geometry else None
            for fqn in self.names_to_fill()
        }
        missing = [*match.missing, *(fqn for fqn in tensors if fqn not in stored)]
        fitting = [
            self.wrappers.stored(fqn) for fqn in (*tensors, *(fqn for fqn, _ in match.objects))
        ]
        return _nearest.hint(
            {fqn: wanted.get(fqn) for fqn in missing}, stored, fitting, self.stored_name is not None
        )

    def _known(self) -> list[str]:
        """Returns names in the checkpoint that are expected: loaded by others, or not chosen."""
        known = [self.stored(fqn) for fqn in self.match.known]
        if self.keys is not None:
            wanted = self._wanted_by_stored()
            for fqn, _ in _leaves(self.reader, None):
                if wanted.get(fqn, fqn) not in self.keys:
                    known.append(fqn)
        return known

    def _list_targets(self) -> None:
        arrays, filling = self.arrays, self.filling
        for fqn, tensor in self.match.to_add:
            arrays.add_targets(filling, self.stored(fqn), tensor)
        for fqn, origin, put, like in self.match.created:
            name = self.stored(fqn)
            tensor = arrays.create(name, *self._geometry(name), origin, like)
            arrays.add_targets(filling, name, tensor)
            put(tensor)
        for fqn, tensor, put in self.match.assigned:
            self._assign(fqn, tensor, put)
        for _, tensor, put in self.match.assigned_as:
            self._assign_tied(tensor, put)

    def _assign(self, fqn: str, tensor: Any, put: Callable[[Any], None]) -> None:
        """Plans a tensor that takes the place of one without memory."""
        name = self.stored(fqn)
        dtype, shape = self._geometry(name)
        wanted = self.arrays.dtype_of(tensor)
        cast = self.cast and wanted != dtype
        if tuple(shape) != tuple(tensor.shape) or (cast and not {dtype, wanted} <= _CASTABLE):
            self.match.mismatched.append(
                f"{fqn} (stored {_core.DTYPE_NAMES[dtype]}{list(shape)}, wanted "
                f"{'?' if wanted is None else _core.DTYPE_NAMES[wanted]}{list(tensor.shape)})"
            )
            self.match.known.append(fqn)
            return
        place = self.arrays.memory(tensor)
        made = None if place is None else self._assigned.get((place, dtype))
        if made is None:
            made = self.arrays.fresh(tensor, None if cast else dtype)
            self._assigned[place, dtype] = made
            self._assigned.setdefault(place, made)
        self.arrays.add_targets(self.filling, name, made)
        self.filling.after.append(lambda: put(made))

    def _assign_tied(self, tensor: Any, put: Callable[[Any], None]) -> None:
        """Gives a name that is not stored the tensor that another name of its memory gets."""
        made = self._assigned.get(self.arrays.memory(tensor))
        if made is not None:  # Else the other name does not fit, and is reported.
            self.filling.after.append(lambda: put(made))

    def _geometry(self, name: str) -> tuple[int, tuple[int, ...]]:
        if self._stored is None:
            self._stored = self.reader.tensors()
        if name not in self._stored:
            raise CheckpointNotFoundError(
                f'{self.reader.path}: the containers name a tensor "{name}" that is not there',
                path=self.reader.path,
            )
        return self._stored[name]


def load(
    state: Any,
    path: str | os.PathLike[str],
    arrays: Arrays,
    coordinator: Coordinator | None,
    options: _core.LoadOptions,
    choice: Choice,
) -> _core.LoadReport:
    """Fills a state in place."""
    rank = 0 if coordinator is None else coordinator.rank
    try:
        reader = _core.Reader(path_text(path), choice.use_agent)
        world = 1 if coordinator is None else coordinator.size
        if options.on_difference == "keep" and world == reader.world_size:
            reader.take_values_of(rank)  # Before values are read: the ranks agree later.
        plan = _Plan(reader, state, arrays, rank, choice, options.cast, world)
        if options.strict and plan.keys is not None:
            # What the destination alone has is missing, and the ranks tell each other so.
            names = [*plan.names_to_fill(), *plan.match.absent]
            if wrong := _nearest.what_is_wrong(reader, plan.keys, names):
                raise InvalidArgumentError(f"load {path_name(path)}: keys: {wrong}")
        # Before the ranks agree: a value that cannot be opened fails the load with nothing changed.
        values = plain_values(reader, path_text(path), plan.names, choice.allow_pickle)
        plan.compare_inside(values)
    except Exception as error:
        fail(coordinator, f"load {path_name(path)}", error, options.timeout)
        raise
    match = plan.match
    if plan.unwrapped and rank == 0:
        note(path_name(path), plan.unwrapped)
    filled = [tensor for _, tensor in match.tensors]
    try:
        report = reader.load(plan.filling.engine, options, coordinator)
    except InvalidArgumentError as error:
        hint = plan.hint(options.fit)
        if hint is None:
            raise
        text = f"{error}\n  {hint}"
        raise InvalidArgumentError(text, path=error.path, rank=error.rank) from None
    except Exception:
        arrays.note_filled(filled)  # Some of it may have been written.
        raise
    arrays.note_filled(filled)
    after = "; the tensors of the destination hold what was loaded"
    with on_all_ranks(coordinator, f"load {path_name(path)}", options.timeout, after):
        for run in plan.filling.after:
            run()
        for (_, put), value in zip(match.objects, values, strict=True):
            put(value)
        for fill in match.fills:
            fill()
    keys = plan.keys if world == 1 else None  # Of several ranks another may have what was chosen.
    chosen = keys is not None and any(name in keys for name in plan.names_to_fill())
    warn_of_nothing(report, reader, match, rank, chosen, lambda: plan.hint(options.fit))
    merged = [name for name in report.merged if name not in plan.asked]
    if merged and options.on_difference == "keep" and rank == 0:
        warn_of_one_value(merged, reader, world)
    if rank == 0 and report.loaded:
        one = choice.rename is None and _tree.is_stateful(state)
        warn_of_rest(reader, report.unexpected, plan.structure, one, plan.stored_name, match)
    return report


def read(
    path: str | os.PathLike[str],
    arrays: Arrays,
    keys: str | Iterable[str] | None,
    flat: bool,
    allow_pickle: bool,
    use_agent: bool,
) -> Any:
    """Builds a new state from a checkpoint."""
    where = path_text(path)
    _arguments.flag("flat", flat)
    _arguments.flag("allow_pickle", allow_pickle)
    reader = _core.Reader(where, _arguments.flag("use_agent", use_agent))
    return read_from(reader, where, arrays, keys, flat, allow_pickle)


def read_from(
    reader: _core.Reader,
    where: str,
    arrays: Arrays,
    keys: str | Iterable[str] | None,
    flat: bool = False,
    allow_pickle: bool = False,
) -> Any:
    """Builds a new state from a checkpoint that is open."""
    chosen = None if keys is None else Keys(keys)

    def values(names: list[str]) -> list[Any]:
        return plain_values(reader, where, names, allow_pickle)

    structure, found = read_entries(
        reader,
        where,
        arrays,
        chosen,
        values,
        _core.LoadOptions(strict=False, on_difference="first"),
    )
    if flat:
        return found
    if structure is None:
        # A file of torch.save that holds one tensor or one value, and no dict, names it "".
        return found[""] if list(found) == [""] else found
    if chosen is not None:
        structure = prune(structure, found)
    together = None if arrays.wrapping is None else makes_wrapped(reader, arrays.wrapping)
    return _tree.build(structure, lambda fqn, _leaf: found[fqn], None, together)


def read_entries(
    reader: _core.Reader,
    where: str,
    arrays: Arrays,
    chosen: Keys | None,
    values: Callable[[list[str]], list[Any]],
    options: _core.LoadOptions,
) -> tuple[Any, dict[str, Any]]:
    """Reads tensors and values into new memory; returns the structure and what was read, by name.

    `values` returns the plain values of some names.
    """
    structure = reader.structure()
    found: dict[str, Any] = {}
    names: list[str] = []
    origins: dict[str, str] = {}
    for fqn, leaf in _leaves(reader, structure):
        if chosen is not None and fqn not in chosen:
            continue
        found[fqn] = None
        if isinstance(leaf, ObjectLeaf):
            names.append(fqn)
        else:
            origins[fqn] = leaf.origin
    if chosen is not None:
        names_there = [fqn for fqn, _ in _leaves(reader, structure)]
        if wrong := _nearest.what_is_wrong(reader, chosen, names_there):
            raise InvalidArgumentError(f"read {where}: keys: {wrong}", path=where)
        if not found:
            text = f"read {where}: keys: nothing is in {chosen}"
            raise InvalidArgumentError(text, path=where)
    stored = reader.tensors(None if chosen is None else list(origins))

    def fill() -> None:
        filling = Filling()
        for fqn, origin in origins.items():
            found[fqn] = tensor = arrays.create(fqn, *stored[fqn], origin)
            arrays.add_targets(filling, fqn, tensor)
        filling.engine.objects = names
        reader.load(filling.engine, options, None)
        for run in filling.after:
            run()

    found.update(zip(names, values(names), strict=True))
    try:
        fill()
    except UnsupportedError:
        if arrays.wrapping is None:
            raise
        made = {fqn: arrays.wrapping.whole_pickled(reader, fqn) for fqn in origins}
        objects = {fqn: tensor for fqn, tensor in made.items() if tensor is not None}
        if not objects:
            raise
        found.update(objects)
        for fqn in objects:
            del origins[fqn]
        fill()
    return structure, found


def _leaves(reader: _core.Reader, structure: Any) -> Iterable[tuple[str, TensorLeaf | ObjectLeaf]]:
    if structure is not None:
        yield from _tree.leaves(structure)
        return
    for fqn in reader.tensor_names():
        yield fqn, TensorLeaf("")
    for fqn in reader.object_names():
        yield fqn, ObjectLeaf()
