"""Loads with fit="overlap": the moments of parameters that have grown or shrunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from varve._tree import PerRank, join

#: Shapes of parameters, by the name of what an optimizer keeps for each: "optim.state.3".
Shapes = dict[str, tuple[int, ...]]


def shapes_of_parameters(state: Any) -> Shapes:
    """Returns the shapes of the parameters of all optimizers in a state that have not yet stepped.

    A load makes the tensors that such an optimizer keeps, and makes them as large as its parameters are now.
    """
    shapes: Shapes = {}
    for path, optimizer in _optimizers(state, None):
        if optimizer.state:
            continue  # Its tensors are there, and have their sizes.
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        for number, parameter in enumerate(parameters):
            shapes[join(join(path, "state"), str(number))] = tuple(parameter.shape)
    return shapes


def made_shape(shapes: Shapes, fqn: str, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a tensor to make: its parameter's, where that has as many dimensions."""
    shape = shapes.get(fqn.rpartition(".")[0], stored)
    return shape if len(shape) == len(stored) else stored


def _optimizers(value: Any, path: str | None) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, torch.optim.Optimizer):
        yield path, value
    elif isinstance(value, PerRank):
        yield from _optimizers(value.value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _optimizers(item, join(path, str(key)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _optimizers(item, join(path, str(i)))
