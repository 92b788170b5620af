"""torch's optimizers as destinations.

A state dict names parameters by ids that mean nothing outside of it. Stored states are matched by the
groups of parameters: by position, as torch does, or by the parameters' names where both sides have them.
What `Optimizer.load_state_dict` would lose in silence is refused before anything changes. After it the state
has the dtypes that were stored, which it converts to the parameters'.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch

from varve._arguments import first_names
from varve._objects import Entry, Planned, Source
from varve._tree import join
from varve._values import ObjectLeaf, TensorLeaf
from varve.errors import InvalidArgumentError
from varve.torch._first_states import FirstStates

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: In a group of a state dict: which parameters it has. All other keys are options.
_WHICH = frozenset(("params", "param_names"))

#: Items of a container of an object in which optimizers are looked for; each model part has one.
_MOST_HELD = 1000

_Groups = list[list[Any]]


def optimizer_of(value: Any) -> torch.optim.Optimizer | None:
    """Returns the optimizer that an object is, or that it wraps while it looks like one itself."""
    while isinstance(value, torch.optim.Optimizer):
        if hasattr(value, "_optimizer_load_state_dict_pre_hooks"):
            return value
        value = getattr(value, "optimizer", None)  # Accelerate's wrapper, for example.
    return None


def plan(
    value: Any,
    state: Any,
    stored: Any,
    path: str | None,
    source: Source,
    chosen: Callable[[], bool],
    default: torch.device,
    cast: bool = False,
    overlap: bool = False,
) -> Planned | None:
    """Matches an optimizer with what is stored for it; None for one whose state dict has another form.

    Raises InvalidArgumentError where `load_state_dict` would refuse the stored state, or lose some of it, and
    all of it is chosen. `default` is where tensors are made.
    """
    optimizer = optimizer_of(value)
    ids = None if optimizer is None else _stored_ids(stored, path, source)
    if optimizer is None or ids is None or not _has_usual_form(optimizer, state):
        return None
    title = f'load {source.path}: the optimizer "{path or ""}"'
    adapts = _adapts(optimizer) or not chosen()  # Then the program may know better what fits.
    if not adapts:
        _refuse_meta(title, optimizer)
    pairs, by_name = _pairs(optimizer, state, stored, ids, path, source)
    if pairs is None:
        if adapts:
            return None
        raise InvalidArgumentError(_other_groups(title, optimizer, ids))
    tree = stored.get("state", {})
    entries, below = [], join(path, "state")
    present = state["state"]
    for (at, parameter), key in pairs:
        found = key if key in tree else _text_key(tree, key, at in present)
        if found is not None:
            kept = at if by_name else key
            entries.append(Entry(kept, at, f"{below}.{found}", tree[found], parameter))
    others = _others(tree, ids, entries)
    if not adapts:
        _refuse_unfit(title, tree, others, ids, entries, present)
    planned = Planned(entries, others, _halves(entries, state, source))
    planned.first = FirstStates(optimizer, title, source, _adapts(optimizer), cast, overlap)
    planned.beside = any(
        type(each.parameter) not in _PLAIN or each.parameter.device != default for each in entries
    )
    if by_name:
        planned.options = []
        _plan_options(planned, planned.options, optimizer, stored, path, source)
    else:
        planned.given = _given(optimizer, state["param_groups"], stored["param_groups"])
    return planned


def _refuse_meta(title: str, optimizer: torch.optim.Optimizer) -> None:
    """Raises for parameters on the meta device: torch would move their state there, where nothing is kept."""
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            if parameter.is_meta:
                raise InvalidArgumentError(
                    f"{title}: parameter {j} of group {i} is on the meta device, where its state would be lost. A "
                    "load with assign=True puts another parameter into the model, which this optimizer would not "
                    "train. Nothing was loaded. Load the model first, then make the optimizer, and load it"
                )


def _stored_ids(stored: Any, path: str | None, source: Source) -> _Groups | None:
    """Returns the ids of the parameters of each stored group; None where there are no such groups."""
    groups = stored.get("param_groups") if isinstance(stored, Mapping) else None
    if groups is None or isinstance(groups, (TensorLeaf, ObjectLeaf)):
        return None
    names = [join(path, f"param_groups.{i}.params") for i in range(len(groups))]
    ids = source.values(names)
    if ids is None or not all(isinstance(each, (list, tuple)) for each in ids):
        return None
    return [list(each) for each in ids]


def _has_usual_form(optimizer: torch.optim.Optimizer, state: Any) -> bool:
    """Returns True for a state dict whose groups are those of the optimizer, in ids."""
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        return False
    groups = state.get("param_groups")
    return (
        isinstance(groups, list)
        and len(groups) == len(optimizer.param_groups)
        and all(
            isinstance(packed, dict) and len(packed.get("params", ())) == len(group["params"])
            for packed, group in zip(groups, optimizer.param_groups, strict=True)
        )
    )


def _adapts(optimizer: torch.optim.Optimizer) -> bool:
    """Returns True for an optimizer whose program changes state dicts before they are loaded."""
    overridden = type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
    hooks: Any = optimizer._optimizer_load_state_dict_pre_hooks
    return overridden or bool(hooks) or "load_state_dict" in vars(optimizer)


# ---- which stored state is whose ----


def _pairs(
    optimizer: torch.optim.Optimizer,
    state: Any,
    stored: Any,
    ids: _Groups,
    path: str | None,
    source: Source,
) -> tuple[list[tuple[tuple[Any, torch.Tensor], Any]] | None, bool]:
    """Returns ((id, parameter), stored id) of each parameter, and whether names have decided.

    None where the groups differ and the parameters have no names. A parameter that is not stored has no pair.
    """
    mine = [
        list(zip(packed["params"], group["params"], strict=True))
        for packed, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    names = _names_of(optimizer.param_groups)
    stored_names = None if names is None else _stored_names(ids, path, source)
    if names is not None and stored_names is not None and names != stored_names:
        wanted, there = set(chain(*names)), set(chain(*stored_names))
        if wanted & there and (wanted <= there or there <= wanted):
            known = dict(zip(chain(*stored_names), chain(*ids), strict=True))
            flat = zip(chain(*names), chain(*mine), strict=True)
            return [(parameter, known[name]) for name, parameter in flat if name in known], True
    if [len(group) for group in mine] != [len(group) for group in ids]:
        return None, False
    return list(zip(chain(*mine), chain(*ids), strict=True)), False


def _names_of(groups: Any) -> _Groups | None:
    """Returns the names of the parameters by group, if all have names and no two the same."""
    names = [group.get("param_names") for group in groups]
    if any(
        each is None or len(each) != len(group["params"])
        for each, group in zip(names, groups, strict=True)
    ):
        return None
    return [list(each) for each in names] if _differ(names) else None


def _stored_names(ids: _Groups, path: str | None, source: Source) -> _Groups | None:
    groups = range(len(ids))
    names = source.values([join(path, f"param_groups.{i}.param_names") for i in groups])
    if names is None:
        # A state dict of torch.distributed.checkpoint.state_dict has names for ids.
        names = ids if all(isinstance(each, str) for each in chain(*ids)) else None
    if names is None or [len(each) for each in names] != [len(each) for each in ids]:
        return None
    return [list(each) for each in names] if _differ(names) else None


def _differ(names: Any) -> bool:
    flat = list(chain(*names))
    return len(set(flat)) == len(flat)


def _text_key(tree: Mapping[Any, Any], key: Any, present: bool) -> Any:
    """Returns the id as a text where state is stored under that, else None.

    Formats that know no types have texts for ids. They serve state that is there, as names do.
    """
    return str(key) if present and str(key) in tree else None


def _others(tree: Mapping[Any, Any], ids: _Groups, entries: list[Entry]) -> list[Any]:
    """Returns the stored keys that belong to no parameter."""
    keys = set(chain(*ids))
    if not isinstance(tree, dict):
        keys |= {str(key) for key in keys}
        if any("." in str(key) for key in keys):
            return []  # Of renamed entries only parts of names are known.
    others = [key for key in tree if key not in keys]
    taken = {entry.name.rpartition(".")[2] for entry in entries} if others else ()
    return [key for key in others if key not in taken]


def _refuse_unfit(
    title: str,
    tree: Mapping[Any, Any],
    others: list[Any],
    ids: _Groups,
    entries: list[Entry],
    present: Mapping[Any, Any],
) -> None:
    """Raises for state of parameters that torch would put under keys that no parameter has.

    State under a text of its own beside that of parameters is the optimizer's; torch takes it as it is.
    """
    texts = {str(key) for group in ids for key in group}
    unfit = [
        key
        for key in others
        if isinstance(tree[key], Mapping)
        and key not in present
        and (not entries or isinstance(key, int) or key in texts)
    ]
    if not unfit:
        return
    keys = sorted(chain(*ids), key=str)
    raise InvalidArgumentError(
        f"{title}: stored state fits no parameter: its keys are {first_names(unfit, 5, repr)}, and the param_groups stored "
        f"with it name the parameters {first_names(keys, 5, repr)}. Training would go on with empty moments, so nothing was "
        "loaded. Take the state with read(), give it the keys of its param_groups, and call load_state_dict"
    )


def _other_groups(title: str, optimizer: torch.optim.Optimizer, ids: _Groups) -> str:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    stored = [len(each) for each in ids]
    instead = (
        "else make the optimizer with the stored groups, load, and divide them afterwards"
        if sum(stored) == sum(sizes)
        else "else load the model without the optimizer, by `keys`, and let the optimizer start anew"
    )
    return (
        f"{title}: the groups of parameters differ: stored are {_counts(stored)}, the optimizer has "
        f"{_counts(sizes)}. Nothing was loaded. Parameters are matched by name across groups where both "
        f"optimizers were made from named_parameters(); {instead}"
    )


def _counts(sizes: list[int]) -> str:
    return f"{len(sizes)} of {', '.join(map(str, sizes))} parameters"


# ---- states that lack something ----


def _halves(entries: list[Entry], state: Any, source: Source) -> list[str]:
    """Returns names that stored states lack and others of their group have, of parameters like theirs.

    That is state with the parameter's shape, as moments have. Optimizers may keep less for some
    parameters, but then in other keys. State that is in the destination is compared with that.
    """
    if len({tuple(entry.stored) for entry in entries if isinstance(entry.stored, Mapping)}) <= 1:
        return []
    groups = {key: i for i, group in enumerate(state["param_groups"]) for key in group["params"]}
    alike: dict[Any, dict[frozenset[Any], Entry]] = {}
    for entry in entries:
        if isinstance(entry.stored, Mapping) and entry.stored:
            kind = groups.get(entry.present), entry.parameter.ndim
            alike.setdefault(kind, {}).setdefault(frozenset(entry.stored), entry)
    lacking: list[str] = []
    for entry in entries:
        if (
            entry.present in state["state"]
            or not isinstance(entry.stored, Mapping)
            or not entry.stored
        ):
            continue
        keys = frozenset(entry.stored)
        for more, other in alike[groups.get(entry.present), entry.parameter.ndim].items():
            if keys < more:
                found = _moments(other, source) - keys
                lacking += [f"{entry.name}.{key}" for key in sorted(found, key=str)]
    return list(dict.fromkeys(lacking))


def _moments(entry: Entry, source: Source) -> set[Any]:
    """Returns the keys of a state whose tensors have the shape of the parameter."""
    shape = tuple(entry.parameter.shape)
    return {
        key
        for key, leaf in entry.stored.items()
        if isinstance(leaf, TensorLeaf) and source.geometry(f"{entry.name}.{key}")[1] == shape
    }


# ---- options of groups ----


def _plan_options(
    planned: Planned,
    chosen: list[dict[Any, int]],
    optimizer: torch.optim.Optimizer,
    stored: Any,
    path: str | None,
    source: Source,
) -> None:
    """Chooses the options of groups that are not as they were: those of the groups that their parameters had."""
    ids = _stored_ids(stored, path, source) or []
    names = _stored_names(ids, path, source) or []
    group_of = {name: i for i, group in enumerate(names) for name in group}
    for i, group in enumerate(_names_of(optimizer.param_groups) or []):
        sources = sorted({group_of[name] for name in group if name in group_of})
        options: dict[Any, int] = {}
        for key in _options(stored, sources):
            have = [at for at in sources if key in _at(stored["param_groups"], at)]
            read = source.values([join(path, f"param_groups.{at}.{key}") for at in have])
            if len(have) == 1 or (read is not None and all(each == read[0] for each in read)):
                options[key] = have[0]
            else:
                planned.notes.append(
                    f"{join(path, f'param_groups.{i}.{key}')} stays as it is: the group has parameters of "
                    f"the stored groups {', '.join(map(str, have))}, which differ in it"
                )
        chosen.append(options)


def _given(optimizer: torch.optim.Optimizer, groups: Any, stored: Any) -> list[list[str]]:
    """Returns the options that stored groups lack and `load_state_dict` adds, by group.

    An option that is new in a release of torch gets there, in `__setstate__`, what older ones did without it.
    """
    lacking = [
        [key for key in group if key not in _at(stored, i)] for i, group in enumerate(groups)
    ]
    kind: Any = type(optimizer)
    if not any(lacking) or kind.load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return []
    made = object.__new__(kind)
    bare = [
        {key: item for key, item in group.items() if key not in each} | {"params": []}
        for group, each in zip(groups, lacking, strict=True)
    ]
    try:
        made.__setstate__({"defaults": {**optimizer.defaults}, "state": {}, "param_groups": bare})
    except (
        Exception
    ):  # A class of the caller's, which wants more. Then the load says what is missing.
        return []
    return [
        [key for key in each if key in group]
        for group, each in zip(made.param_groups, lacking, strict=True)
    ]


def _options(stored: Any, groups: list[int]) -> list[Any]:
    found = chain(*(_at(stored["param_groups"], at) for at in groups))
    return [key for key in dict.fromkeys(found) if key not in _WHICH]


def _at(groups: Any, i: int) -> Any:
    return groups[i] if isinstance(groups, list) else groups[str(i)]


# ---- dtypes ----


@contextmanager
def stored_dtypes(value: Any, castable: Container[torch.dtype]) -> Iterator[None]:
    """While an object loads its state dict, keeps the dtypes in it for the state of its optimizers.

    torch converts all but `step` to the parameter's dtype: moments in bfloat16 and codes in uint8 to float32,
    moments in float32 of parameters in bfloat16 to these. Hooks put the tensors back, before the optimizer's own
    hooks run and its class's own `load_state_dict` goes on. `castable` are dtypes that torch may convert.
    """
    with ExitStack() as stack:
        for optimizer in _optimizers_in(value):
            kept = _Kept(castable)
            before = optimizer.register_load_state_dict_pre_hook(kept.note)
            stack.callback(before.remove)
            after = optimizer.register_load_state_dict_post_hook(kept.put_back, prepend=True)
            stack.callback(after.remove)
        yield


def _optimizers_in(value: Any) -> list[torch.optim.Optimizer]:
    """Returns the optimizer that an object is, or those that it holds in its attributes."""
    if (optimizer := optimizer_of(value)) is not None:
        return [optimizer]
    held: list[Any] = []
    if not isinstance(value, torch.nn.Module) and hasattr(value, "__dict__"):
        for item in vars(value).values():
            inner = item.values() if isinstance(item, dict) else item
            few = isinstance(item, (dict, list, tuple)) and len(item) <= _MOST_HELD
            held += inner if few else [item]
    found = {id(each): each for item in held if (each := optimizer_of(item)) is not None}
    return list(found.values())


class _Kept:
    """The two hooks of an optimizer that keep the dtypes of a state dict it loads."""

    def __init__(self, castable: Container[torch.dtype]) -> None:
        self._castable = castable
        self._given: Any = None

    def note(self, _optimizer: torch.optim.Optimizer, state: Any) -> None:
        """Notes the state dict as the optimizer's own hooks have left it."""
        self._given = state

    def put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Puts the tensors back that torch has converted."""
        given, self._given = self._given, None
        ids = chain.from_iterable(group["params"] for group in given["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for key, parameter in zip(ids, parameters, strict=True):
            if key in given["state"] and parameter in optimizer.state:
                state = optimizer.state[parameter]
                restored = _restored(given["state"][key], state, self._castable)
                optimizer.state[parameter] = restored


def _restored(given: Any, made: Any, castable: Container[torch.dtype], key: Any = None) -> Any:
    """Returns what torch has made of a value, with the tensors that it has converted as they were given.

    It takes care of `step` itself, and makes another text of a text.
    """
    if isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor):
        same = given.dtype == made.dtype or key == "step" or given.dtype in castable
        return made if same else given.to(device=made.device)
    if isinstance(given, dict) and isinstance(made, dict):
        for name, item in given.items():
            if name in made and made[name] is not item:  # Mostly it is: nothing was converted.
                made[name] = _restored(item, made[name], castable, name)
    elif isinstance(given, (list, tuple)) and type(given) is type(made) and len(given) == len(made):
        return type(made)(_restored(*pair, castable) for pair in zip(given, made, strict=True))
    return given if isinstance(given, (str, bytes)) else made
