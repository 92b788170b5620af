"""Names of parameters: those that a checkpoint has, those that a model has, and parameter ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module

from varve.errors import InvalidArgumentError

#: DistributedDataParallel puts it before the names of the module that it wraps.
_WRAPPER = "module."


def renamed(stored: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Returns, by stored name, the wanted name that is the same but for one leading `module.`.

    A stored name that no wanted one is like keeps its own.
    """
    wanted = set(wanted)
    result: dict[str, str] = {}
    for name in stored:
        choices = (name, name.removeprefix(_WRAPPER), _WRAPPER + name)
        result[name] = next((choice for choice in choices if choice in wanted), name)
    return result


def named_model(state: Mapping[str, Any], model: Module) -> dict[str, Any]:
    """Returns a model's state under the names, and in the order, that `model` has."""
    wanted = list(model.state_dict())
    names = renamed(state, wanted)
    found = {names[stored]: value for stored, value in state.items()}
    first = [name for name in wanted if name in found]
    return {
        name: found[name] for name in (*first, *(rest for rest in found if rest not in set(first)))
    }


def ids_of(optimizer: Mapping[str, Any]) -> list[Any]:
    """Returns the parameter ids of an optimizer's state dict, in the order of its groups."""
    return [number for group in optimizer["param_groups"] for number in group["params"]]


def parameter_names(optimizer: Mapping[str, Any], models: Sequence[Module]) -> list[str]:
    """Returns the names of an optimizer's parameters, taking them to be those of the models in order.

    All parameters, or those that require a gradient. Raises InvalidArgumentError where neither are
    as many as the optimizer has, or a state has another shape than the parameter.
    """
    named = [item for model in models for item in model.named_parameters()]
    ids = ids_of(optimizer)
    choices = [named, [(name, param) for name, param in named if param.requires_grad]]
    for choice in choices:
        if len(choice) == len(ids):
            _check_shapes(optimizer, ids, choice)
            return [name for name, _ in choice]
    raise InvalidArgumentError(
        f"the optimizer has {len(ids)} parameters, the model {len(named)} ({len(choices[1])} of them "
        "require a gradient): pass names=, the parameters' names in the order of the optimizer's groups"
    )


def _check_shapes(
    optimizer: Mapping[str, Any], ids: list[Any], named: Sequence[tuple[str, torch.Tensor]]
) -> None:
    """Checks states that are as large as a parameter: moments of Adam, momentum of SGD."""
    for number, (name, param) in zip(ids, named, strict=True):
        entry = optimizer["state"].get(number)
        for key, value in entry.items() if isinstance(entry, Mapping) else ():
            moment = isinstance(value, torch.Tensor) and value.ndim > 0
            if moment and key in _MOMENTS and value.shape != param.shape:
                raise InvalidArgumentError(
                    f"optimizer state {number}.{key} has the shape {list(value.shape)}, parameter "
                    f'"{name}" {list(param.shape)}: the groups have the parameters in another order '
                    "than the model; pass names=, in the order of the groups"
                )


_MOMENTS = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"))


def by_name(optimizer: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns an optimizer's state dict with names in the place of ids, as torch's `get_state_dict` has.

    Raises InvalidArgumentError unless there are as many names as parameters, all different.
    """
    ids = ids_of(optimizer)
    if len(names) != len(ids) or len(set(names)) != len(names):
        raise InvalidArgumentError(
            f"names= has {len(names)} names, {len(set(names))} of them different: the optimizer's groups "
            f"have {len(ids)} parameters"
        )
    name_of = dict(zip(ids, names, strict=True))
    groups = [
        {**group, "params": [name_of[number] for number in group["params"]]}
        for group in optimizer["param_groups"]
    ]
    state = {name_of.get(number, number): entry for number, entry in optimizer["state"].items()}
    return {**optimizer, "state": state, "param_groups": groups}
