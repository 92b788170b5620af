"""Matches objects that have a state dict: modules, optimizers, and others. A part of varve._match."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from varve._objects import Entry, Planned
from varve._remedies import shown_kind
from varve._tree import join, leaves
from varve._values import ObjectLeaf, TensorLeaf
from varve.errors import InvalidArgumentError

if TYPE_CHECKING:
    from varve._match import Match

Setter = Callable[[Any], None]


#: State of a parameter that is never divided as the parameter is.
STEP = ".step"


def read_only(_value: Any) -> None:
    """Is the setter of an item whose mapping takes none."""
    raise InvalidArgumentError("an item of a read-only mapping cannot be replaced; make it a dict")


def item_setter(container: Any, key: Any) -> Setter:
    if not hasattr(container, "__setitem__"):
        return read_only

    def set_item(value: Any) -> None:
        container[key] = value

    return set_item


def attribute_setter(holder: Any) -> Setter:
    def set_value(value: Any) -> None:
        holder.value = value

    return set_value


def match_object(
    match: Match, value: Any, state: Any, stored: Any, path: str | None, replace: Setter
) -> None:
    """Matches what an object has given with what is stored for it; `replace` is for another value of it."""
    outside = match._takes_all, match._like
    match._takes_all, match._like = True, None

    def chosen() -> bool:
        return match._keys is None or all(match._wants(fqn) for fqn, _ in leaves(stored, path))

    planned = match._kinds.plan_optimizer(value, state, stored, path, match._source, chosen)
    if planned is not None:
        _optimizer(match, planned, state, stored, path)
    elif match._kinds.is_module(value):
        match._takes_all = False
        _module(match, value, state, stored, path, replace)
    elif path is None:
        match._mapping(state, stored, path)
    elif isinstance(state, Mapping) and _is_no_mapping(match, stored, path):
        wanted = f"the state of a {type(value).__name__}, a dict"
        match.differ(path, stored, f"{shown_kind(stored)}, wanted {wanted}")
    else:
        match._visit(state, stored, path, replace)
    match._takes_all, match._like = outside


def _is_no_mapping(match: Match, stored: Any, path: str) -> bool:
    if isinstance(stored, ObjectLeaf) and match._wants(path):
        values = match._source.values([path])  # Of a dict of a class of its own it is one.
        return values is not None and not isinstance(values[0], Mapping)
    return isinstance(stored, (TensorLeaf, list))


def _module(
    match: Match, module: Any, state: Any, stored: Any, path: str | None, replace: Setter
) -> None:
    """Matches the state dict of a module, whose hooks may make keys of it from others that are stored."""
    if not isinstance(state, Mapping) or not isinstance(stored, Mapping):
        match._visit(state, stored, path or "", replace)
        return
    upgrade = match._kinds.plan_module(module, state, stored, path, match._source)
    # What get_extra_state has given has any form, and the module takes what it gave before.
    extra = [key for key in state if str(key).endswith("_extra_state") and key in stored]
    if not extra and not upgrade.renamed and not upgrade.made:
        match._mapping(state, stored, path)
        return
    rest = {key: item for key, item in state.items() if key not in upgrade.made}
    for key, old in upgrade.renamed.items():
        match._visit(rest.pop(key), stored[old], join(path, old), item_setter(state, key))
    match._takes_all = True
    for key in (*extra, *upgrade.needed):
        item = rest.pop(key, None)
        if _has_other_shape(match, item, stored[key], join(path, key)):
            item = None
        match._visit(item, stored[key], join(path, key), item_setter(state, key))
    match._takes_all = False
    match._mapping(rest, stored, path)

    def hand_over() -> None:
        given: Any = state
        for key in upgrade.made:
            del given[key]
        given.update(rest)

    match.fills.append(hand_over)


def _has_other_shape(match: Match, item: Any, stored: Any, path: str) -> bool:
    if not isinstance(stored, TensorLeaf) or not match._is_tensor(item):
        return False
    return match._source.geometry(path)[1] != tuple(item.shape)


def _optimizer(match: Match, planned: Planned, state: Any, stored: Any, path: str | None) -> None:
    """Matches the state of each parameter with its own, and gives back what is stored, under its keys."""
    match.missing += [name for name in planned.halves if match._wants(name)]
    _compare(match, planned, state["state"])
    ids = [group["params"] for group in state["param_groups"]]
    # Where keys choose, the optimizer keeps the rest: under its own ids, which serve the chosen too.
    present = state["state"]
    made: dict[Any, Any] = {} if match._keys is None else dict(present)
    fresh: list[Entry] = []
    for entry in planned.entries:
        key = entry.key if match._keys is None else entry.present
        there = present.get(entry.present)
        if entry.unlike:
            if there is not None:
                made[key] = there
        elif entry.make is not None or entry.dropped:
            match._like = entry.parameter if planned.beside else None
            made[key] = _make(match, entry, there or {})
        elif there is not None and entry.stored:
            made[key] = there
            match._like = entry.parameter if planned.beside else None
            if type(there) is dict and type(entry.stored) is dict:
                match._mapping(there, entry.stored, entry.name)
            else:
                match._visit(there, entry.stored, entry.name, item_setter(made, key))
        elif match._keys is None or any(
            match._wants(fqn) for fqn, _ in leaves(entry.stored, entry.name)
        ):
            made[key] = None  # The order is that of the parameters.
            fresh.append(entry)
    _make_states(match, planned, fresh, made, join(path, "state"))
    match._like = None
    for key in planned.others:
        made[key] = present.get(key)
        name = join(join(path, "state"), str(key))
        match._visit(made[key], stored["state"][key], name, item_setter(made, key))
    groups = join(path, "param_groups")
    if planned.options is None:
        for i, options in enumerate(planned.given):
            for key in options:
                if match._wants(f"{groups}.{i}.{key}"):
                    del state["param_groups"][i][key]
        match._visit(state["param_groups"], stored["param_groups"], groups, lambda _new: None)
    else:
        _options(match, planned.options, state["param_groups"], stored["param_groups"], groups)
    apart = ("state", "param_groups")
    rest = {key: item for key, item in state.items() if key not in apart}
    match._mapping(rest, {key: stored[key] for key in stored if key not in apart}, path)

    def put() -> None:
        state.update(rest, state=made)
        if match._keys is not None:
            for group, numbers in zip(state["param_groups"], ids, strict=True):
                group["params"] = numbers

    match.fills.append(put)


def _compare(match: Match, planned: Planned, present: Any) -> None:
    """Compares what is stored with what the optimizer makes in its first step."""
    match.notes += planned.notes
    if (first := planned.first) is None:
        return
    for entry in planned.entries:
        if match._keys is None or any(
            match._wants(fqn) for fqn, _ in leaves(entry.stored, entry.name)
        ):
            first.plan(entry, present.get(entry.present))
            match.mismatched += entry.unlike
            if entry.unlike:
                match.known.extend(fqn for fqn, _ in leaves(entry.stored, entry.name))
                if remedy := first.remedy():
                    match.remedies[remedy] = None
    match.notes += first.notes()


def _make(match: Match, entry: Entry, present: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns a state to fill: what is present and stays, and new tensors in the layout of the parameter."""
    made = {key: item for key, item in present.items() if key not in entry.dropped}
    new, empty = entry.make() if entry.make is not None else ({}, {})
    made.update(new)
    stored = {key: item for key, item in entry.stored.items() if key not in empty}
    match.known.extend(
        fqn for key in empty for fqn, _ in leaves(entry.stored[key], join(entry.name, str(key)))
    )
    match._mapping(made, stored, entry.name)
    made.update(empty)
    return made


def _make_states(
    match: Match, planned: Planned, entries: list[Entry], made: dict[Any, Any], path: str
) -> None:
    """Plans the state of parameters that have none. In one tree where they have ids: there are thousands."""
    if match._keys is not None or any(type(entry.key) is not int for entry in entries):
        for entry in entries:
            match._like = entry.parameter if planned.beside else None
            key = entry.key if match._keys is None else entry.present
            match._replace(None, entry.stored, entry.name, item_setter(made, key))
        return
    # Names are those of stored ids; `key` may be another, of a parameter that was found by its name.
    tree = {entry.name.rpartition(".")[2]: entry.stored for entry in entries}
    before = len(match.created)
    box = match._build(tree, path)
    if planned.beside:
        whose = {entry.name: entry.parameter for entry in entries}
        for i, (fqn, origin, put, _) in enumerate(match.created[before:], before):
            end = fqn.find(".", len(path) + 1)
            like = None if end < 0 or fqn.endswith(STEP) else whose[fqn[:end]]
            match.created[i] = (fqn, origin, put, like)

    def put_all() -> None:
        for entry, state in zip(entries, box[0].values(), strict=True):
            made[entry.key] = state

    match.fills.append(put_all)


def _options(
    match: Match, chosen: list[dict[Any, int]], groups: list[Any], stored: Any, path: str
) -> None:
    """Matches options of an optimizer's groups, each with that of the stored group it is from."""
    match.known.extend(fqn for fqn, _ in leaves(stored, path))
    for group, options in zip(groups, chosen, strict=True):
        for key, at in options.items():
            there = stored[at if isinstance(stored, list) else str(at)][key]
            name = join(join(path, str(at)), str(key))
            match._visit(group.get(key), there, name, item_setter(group, key))
