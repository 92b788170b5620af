"""Objects of a state that have a state of their own: `state_dict` gives it, `load_state_dict` takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from varve.torch.dcp._events import log_step


def plain_of(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns the state to save: objects are asked for theirs, each between events of its own."""
    name = "_stateful_to_state_dict"

    def ask(key: str, value: Any) -> Any:
        return log_step(f"{name}.{key}", value.state_dict)

    return log_step(name, lambda: plain_by(state_dict, ask))


def plain_by(
    state_dict: dict[str, Any], ask: Callable[[str, Any], Any] = lambda _, value: value.state_dict()
) -> dict[str, Any]:
    """Returns a state with what `ask` gets of its objects in their places."""
    return {
        key: ask(key, value) if is_stateful(value) else value for key, value in state_dict.items()
    }


def is_stateful(value: Any) -> bool:
    """Returns True for such an object; a tensor is none, though asking a protocol would take 40 us."""
    return not isinstance(value, torch.Tensor) and isinstance(value, Stateful)
