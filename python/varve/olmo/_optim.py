"""An optimizer's state by the names of its parameters, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from varve._warn import warn
from varve.errors import UnsupportedError
from varve.olmo._errors import WrongGroupsError
from varve.olmo._pieces import HeldModel, Parameter, Piece

#: Fields of a group that are the configuration's and not the checkpoint's.
CONFIGURED = ("sharded", "max_grad_norm", "max_grad_norm_ratio", "param_names")

#: Fields of a group that tell one kind of optimizer from another.
_OF_ITS_KIND = ("alpha", "betas", "dampening", "etas", "lambd", "momentum", "rho")


def names_of_groups(held: HeldModel, optimizer: Optimizer) -> list[list[str]]:
    """Returns the names of the parameters of each group."""
    return [
        [parameter.name for item in group["params"] for parameter, _ in held.parameters_of(item)]
        for group in optimizer.param_groups
    ]


def groups_by_name(held: HeldModel, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Returns the groups as they are stored: `params` and `param_names` are names."""
    names = names_of_groups(held, optimizer)
    return [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "param_names": mine,
            "params": mine,
        }
        for group, mine in zip(optimizer.param_groups, names, strict=True)
    ]


def state_by_name(held: HeldModel, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Returns what this rank holds of the optimizer's state: tensors, pieces and plain values.

    Raises UnsupportedError for a state that is neither one number nor as large as its parameter, where
    ranks hold pieces.
    """
    named: dict[str, dict[str, Any]] = {}
    for item in _parameters(optimizer):
        for key, value in optimizer.state.get(item, {}).items():
            for parameter, begin in held.parameters_of(item):
                named.setdefault(parameter.name, {})[key] = _held_state(
                    parameter, begin, item, key, value
                )
    return named


def named_state(held: HeldModel, optimizer: Optimizer) -> dict[str, Any]:
    """Returns what this rank holds of an optimizer as a state dict by the names of parameters."""
    return {
        "state": state_by_name(held, optimizer),
        "param_groups": groups_by_name(held, optimizer),
    }


def _held_state(parameter: Parameter, begin: int, item: torch.Tensor, key: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if isinstance(parameter.held, Piece) and value.numel() != item.numel():
        raise UnsupportedError(
            f'optimizer state "{key}" of "{parameter.name}" has {value.numel()} elements on this rank, its '
            f"parameter {item.numel()}: it cannot be saved in pieces"
        )
    return parameter.state(value, begin)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


class Stored:
    """The optimizer's part of a checkpoint: which keys each parameter's state has."""

    def __init__(self, tensors: Mapping[str, Any], objects: list[str]) -> None:
        self.keys: dict[str, list[str]] = {}
        for name in (*tensors, *objects):
            if name.startswith("optim.state."):
                parameter, _, key = name[len("optim.state.") :].rpartition(".")
                self.keys.setdefault(parameter, []).append(key)


class NewState:
    """A state dict for an optimizer, with room for what a checkpoint has.

    Attributes:
        state: By the optimizer's own numbers, as `Optimizer.load_state_dict` takes it.
        targets: Tensors to fill: stored name, tensor or piece.
        values: Plain values to put: stored name, container, key.
        alone: Entries of parameters that have no other state: parameter, key, tensor. Adam refuses such
            a state in a state dict, so they are put when that has been loaded.
    """

    def __init__(self) -> None:
        self.state: dict[int, dict[str, Any]] = {}
        self.targets: list[tuple[str, torch.Tensor | Piece]] = []
        self.values: list[tuple[str, dict[str, Any], str]] = []
        self.alone: list[tuple[torch.Tensor, str, torch.Tensor]] = []

    def add(
        self,
        number: int,
        item: torch.Tensor,
        runs: list[tuple[Parameter, int]],
        stored: Stored,
        source: Mapping[str, str],
        tensors: Mapping[str, tuple[Any, tuple[int, ...]]],
        numbered: Mapping[str, str],
    ) -> None:
        """Makes the state of one of the optimizer's parameters."""
        own: dict[str, Any] = {}
        for parameter, begin in runs:
            name = source.get(parameter.name, parameter.name)
            if name not in stored.keys:
                name = numbered.get(parameter.name, name)
            empty = isinstance(parameter.held, Piece) and parameter.held.data.numel() == 0
            for key in stored.keys.get(name, ()):
                full = f"optim.state.{name}.{key}"
                if full not in tensors:
                    self.values.append((full, own, key))
                elif not tensors[full][1]:
                    # FSDP makes no state where a rank holds nothing. The clipping's average is
                    # an exception: OLMo's optimizers keep it on every rank.
                    if empty and key != "grad_norm_exp_avg":
                        continue
                    scalar = torch.zeros((), dtype=_dtype(tensors[full][0]))
                    self.targets.append((full, scalar))
                    if empty:
                        self.alone.append((item, key, scalar))
                    else:
                        own[key] = scalar
                elif not empty:
                    if key not in own:
                        own[key] = torch.zeros_like(item.detach())
                    self.targets.append((full, parameter.state(own[key], begin)))
        if own or any(container is own for _, container, _ in self.values):
            self.state[number] = own


def _dtype(number: int) -> torch.dtype:
    from varve.torch._tensors import TorchArrays

    found = TorchArrays().dtype_at(number)
    if found is None:
        raise UnsupportedError(f"this torch has no dtype for the engine's number {number}")
    kind: torch.dtype = found
    return kind


def groups_of_fields(entries: Mapping[str, Any], names: list[list[str]]) -> list[dict[str, Any]]:
    """Returns the groups of a checkpoint that keeps a group's fields for each parameter.

    Entries are called `param_groups.NAME.FIELD`: OLMo-core flattens the optimizer's state as torch does with
    `flatten_optimizer_state_dict`. `names`: the parameters of each group of the optimizer.

    Raises WrongGroupsError where parameters of one group have different fields.
    """
    fields: dict[str, dict[str, Any]] = {}
    for key, value in entries.items():
        name, _, field = key.removeprefix("param_groups.").rpartition(".")
        fields.setdefault(name, {})[field] = value
    groups = []
    for number, own in enumerate(names):
        stored = [name for name in own if name in fields]
        for name in stored:
            if fields[name] != fields[stored[0]]:
                raise WrongGroupsError(
                    f"group {number} of the optimizer has {stored[0]} and {name}, which were in different "
                    "groups when the checkpoint was saved"
                )
        groups.append(dict(fields[stored[0]]) if stored else {})
    return groups


def restored_groups(optimizer: Optimizer, stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the checkpoint's groups for this optimizer, without `params`.

    An optimizer with two groups, the second without weight decay, takes both from one stored group.
    It keeps the values that the configuration sets.

    Raises WrongGroupsError where the numbers of groups differ otherwise.
    """
    live = optimizer.param_groups
    if len(stored) == 1 and len(live) == 2:
        if live[1].get("weight_decay") != 0.0:
            raise WrongGroupsError(
                "the checkpoint has one group, the optimizer two: the second must have weight_decay 0, "
                f"not {live[1].get('weight_decay')}"
            )
        stored = [stored[0], {**stored[0], "weight_decay": 0.0}]
    if len(stored) != len(live):
        raise WrongGroupsError(
            f"the checkpoint has {len(stored)} groups, the optimizer {len(live)}"
        )
    groups = []
    for wanted, saved in zip(live, stored, strict=True):
        foreign = [key for key in _OF_ITS_KIND if key in saved and key not in wanted]
        if foreign:
            warn(
                f"groups of the checkpoint have {', '.join(foreign)}, which {type(optimizer).__name__} has "
                "not: they are of another optimizer, and so is the state that is restored",
                UserWarning,
            )
        group = {key: value for key, value in saved.items() if key not in ("params", "param_names")}
        group.update({key: wanted[key] for key in CONFIGURED if key in wanted})
        lacking = [key for key in wanted if key not in group and key != "params"]
        if lacking:
            warn(
                f"groups of the checkpoint have no {', '.join(lacking)}: the optimizer's are kept",
                UserWarning,
            )
            group.update({key: wanted[key] for key in lacking})
        groups.append(group)
    return groups
