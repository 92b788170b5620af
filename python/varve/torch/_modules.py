"""Modules as destinations: what their `load_state_dict` makes of a state dict, known before it is called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch

from varve._arguments import first_names
from varve._objects import Source, Upgrade
from varve._select import NameTree
from varve._tree import join, leaves
from varve._values import TensorLeaf
from varve.errors import InvalidArgumentError
from varve.torch._wrapped import COMPRESSED

_Module = torch.nn.Module


def plan(
    module: torch.nn.Module,
    state: Mapping[str, Any],
    stored: Mapping[Any, Any],
    path: str | None,
    source: Source,
    dtypes: Mapping[int, torch.dtype],
) -> Upgrade:
    """Returns what the module's hooks make of stored keys; raises for a module that refuses its own state dict."""
    _check_own_keys(module, state, path, source)
    absent = [
        key for key, item in state.items() if key not in stored and isinstance(item, torch.Tensor)
    ]
    if not absent or not _has_hooks(module):
        return Upgrade()
    holders = {
        key: torch.empty(shape, dtype=dtypes[number], device="meta")
        for key, leaf in (leaves(stored) if isinstance(stored, NameTree) else stored.items())
        if isinstance(leaf, TensorLeaf) and isinstance(key, str) and key not in state
        for number, shape in [source.geometry(join(path, key))]
        if number in dtypes
    }
    there = {key: item for key, item in state.items() if key not in absent}
    found = _after_hooks(module, {**there, **holders}, getattr(state, "_metadata", {}))
    if not all(key in found for key in absent):
        return Upgrade()  # The keys are missing, and the load says so.
    key_of = {id(holder): key for key, holder in holders.items()}
    upgrade = Upgrade()
    for key in absent:
        if (old := key_of.get(id(found[key]))) is not None:
            upgrade.renamed[key] = old
        else:
            upgrade.made.append(key)
    if upgrade.made:
        used = set(upgrade.renamed.values())
        upgrade.needed = [key for key in holders if key not in found and key not in used]
    return upgrade


def _has_hooks(module: torch.nn.Module) -> bool:
    """Returns True where hooks of a module, or of one in it, change state dicts before they are loaded.

    FSDP1's gather parameters, and are not called without need.
    """
    parts = list(module.modules())
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in parts):
        return False
    return any(_hooks(part) for part in parts)


def _hooks(module: torch.nn.Module) -> Mapping[int, Any]:
    found: Mapping[int, Any] = module._load_state_dict_pre_hooks
    return found


def _after_hooks(
    module: torch.nn.Module, state: dict[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what the hooks make of a state dict; nothing where one fails, as for values it wants to see."""
    try:
        for name, part in module.named_modules(remove_duplicate=False):
            for hook in _hooks(part).values():
                prefix = f"{name}." if name else ""
                hook(state, prefix, metadata.get(name, {}), True, [], [], [])
    except Exception:
        return {}
    return state


def _check_own_keys(
    module: torch.nn.Module, state: Mapping[str, Any], path: str | None, source: Source
) -> None:
    """Raises for a module whose state dict lacks keys without which its `load_state_dict` fails.

    It would fail when its tensors have been filled.
    """
    if type(module).load_state_dict is not _Module.load_state_dict:
        return
    if "load_state_dict" in vars(module) or not _is_filtered(module):
        return
    lacking = [key for key in _needed_keys(module) if key not in state]
    if not lacking or any(
        isinstance(item, torch.Tensor) and item.is_meta for item in state.values()
    ):
        return
    kind = type(module).__name__
    few = first_names(lacking, 5, '"{}"'.format)
    raise InvalidArgumentError(
        f'load {source.path}: "{path or ""}": the state_dict of this {kind} lacks {few}, without '
        "which its load_state_dict fails. Nothing was loaded. Give the class a load_state_dict that takes what its "
        "state_dict returns, or load into the dict that state_dict() returns, whose tensors are filled in place"
    )


def _is_filtered(module: torch.nn.Module) -> bool:
    return any(
        type(part).state_dict is not _Module.state_dict
        or "state_dict" in vars(part)
        or part._state_dict_hooks
        for part in module.modules()
    )


def _needed_keys(module: torch.nn.Module) -> Iterator[str]:
    """The keys that torch's `load_state_dict` wants, of modules that do not load themselves in another way."""
    parts = list(module.named_modules(remove_duplicate=False))
    if any(_hooks(part) or part._load_state_dict_post_hooks for _, part in parts):
        return
    for name, part in parts:
        if type(part)._load_from_state_dict is not _Module._load_from_state_dict:
            continue
        prefix = f"{name}." if name else ""
        kept = (key for key in part._buffers if key not in part._non_persistent_buffers_set)
        for key in (*part._parameters, *kept):
            if getattr(part, key) is not None:
                yield prefix + key


# ---- after the load ----


def give_back(
    module: torch.nn.Module,
    state: dict[str, Any],
    fresh: Container[int],
    place_of: Callable[[torch.Tensor], Any],
) -> None:
    """Calls `load_state_dict`; the module takes over the fresh tensors, by their ids, and keeps its others.

    `place_of` returns a key that is equal for tensors of one memory.
    """
    placed = _place_buffers(module, state)
    if placed:
        state = copy.copy(state)  # With the attributes that torch gives it.
        for key in placed:
            del state[key]
    try:
        _load(module, state, fresh, place_of, strict=not placed)
    except Exception:
        for buffers, leaf, before in placed.values():
            buffers[leaf] = before
        raise


def _load(
    module: torch.nn.Module,
    state: dict[str, Any],
    fresh: Container[int],
    place_of: Callable[[torch.Tensor], Any],
    strict: bool,
) -> None:
    made = {key: item for key, item in state.items() if id(item) in fresh}
    if not made:
        module.load_state_dict(state, **({} if strict else {"strict": False}))
        return
    tied = _tied_parameters(module)
    if len(made) == len(state):
        module.load_state_dict(state, strict=strict, assign=True)
    else:
        module.load_state_dict(made, strict=False, assign=True)
        rest = {key: item for key, item in state.items() if key not in made}
        module.load_state_dict(rest, strict=False)
    _tie(module, tied, place_of)


def _place_buffers(
    module: torch.nn.Module, state: Mapping[str, Any]
) -> dict[str, tuple[dict[str, Any], str, Any]]:
    """Gives a module the buffers that its `load_state_dict` cannot copy.

    Of nested tensors torch compares no shapes, and compressed ones it copies only where as many elements are there.
    Returns, by key, where each is, and what was there before.
    """
    if type(module).load_state_dict is not _Module.load_state_dict:
        return {}
    placed: dict[str, tuple[dict[str, Any], str, Any]] = {}
    for key, item in state.items():
        if not isinstance(item, torch.Tensor) or not (item.is_nested or item.layout in COMPRESSED):
            continue
        owner, _, leaf = key.rpartition(".")
        try:
            buffers = module.get_submodule(owner)._buffers
        except AttributeError:  # A hook has given it this name.
            continue
        if leaf in buffers and not _copies(buffers[leaf], item):
            placed[key] = buffers, leaf, buffers[leaf]
            buffers[leaf] = item
    return placed


def _copies(buffer: Any, item: torch.Tensor) -> bool:
    """Returns True where `copy_` makes a compressed tensor of another: of one shape, with as many elements."""
    if not isinstance(buffer, torch.Tensor) or buffer.is_nested or item.is_nested or buffer.is_meta:
        return False
    return (
        buffer.layout == item.layout and buffer.shape == item.shape and buffer._nnz() == item._nnz()
    )


def _tied_parameters(module: torch.nn.Module) -> list[list[str]]:
    """Returns the names of each parameter that a module has under several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def _tie(
    module: torch.nn.Module, tied: list[list[str]], place_of: Callable[[torch.Tensor], Any]
) -> None:
    """Makes names one parameter again that hold the same memory: assignment wraps it anew for each."""
    for first, *others in tied:
        parameter = module.get_parameter(first)
        for name in others:
            place = place_of(parameter)
            if place is not None and place == place_of(module.get_parameter(name)):
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, parameter)
