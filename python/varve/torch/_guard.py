"""Guards of overlapped saves: the next step of an optimizer waits until the copy has been made.

Each optimizer gets one hook, at its first guard, which stays. A hook cannot remove itself: torch calls
the hooks while it iterates over them, and raises RuntimeError when one is removed and another follows.
Where no copy is under way the hook returns at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any
from weakref import WeakKeyDictionary

import torch

from varve._forks import leave_to_parent
from varve.errors import InvalidArgumentError

#: Attributes of objects that step other optimizers: `optimizer` of accelerate's and Lightning's,
#: `_optimizer` of Lightning's and of torch's _NamedOptimizer, `optimizers` of torchtitan's container.
_INNER = ("optimizer", "_optimizer", "optimizers")


class Guard:
    """The hook of one optimizer. Threads: the copies may end on any thread."""

    def __init__(self) -> None:
        self.copies: set[Future[None]] = set()
        """The copies under way that the next step waits for."""

    def __call__(self, *_: Any) -> None:
        """Waits for the copies. Never raises their errors: those are the handles'."""
        if self.copies:
            wait(tuple(self.copies))

    def hold(self, copy: Future[None]) -> None:
        """Makes the next step wait for a copy."""
        self.copies.add(copy)
        copy.add_done_callback(self.copies.discard)


#: The guards of all optimizers that have one.
_guards: WeakKeyDictionary[Any, Guard] = WeakKeyDictionary()


def guards_of(optimizers: Iterable[Any]) -> list[Guard]:
    """Returns the guard of each optimizer. Registers the hooks of those that have none."""
    return [_guard_of(optimizer) for optimizer in optimizers]


def _guard_of(optimizer: Any) -> Guard:
    guard = _guards.get(optimizer)
    if guard is None:
        guard = Guard()
        optimizer.register_step_pre_hook(guard)
        _guards[optimizer] = guard
    return guard


def optimizers_of(guard: Any) -> list[Any]:
    """Returns the optimizers that an argument `guard` means, each once.

    Args:
        guard: None, an optimizer, an object that wraps optimizers, or an iterable of such.

    Raises:
        InvalidArgumentError: One of them takes no hooks.
    """
    found: dict[int, Any] = {}
    for one in _members(guard):
        takers = _takers(one)
        if not takers:
            raise InvalidArgumentError(
                f"guard: {type(one).__name__} has no register_step_pre_hook; want a torch optimizer, "
                "or several"
            )
        found.update((id(taker), taker) for taker in takers)
    return list(found.values())


def optimizers_in(state: Any) -> list[Any]:
    """Returns the optimizers among the objects of a state, also those that other objects wrap."""
    found: dict[int, Any] = {}
    _look_in(state, found, 0)
    return list(found.values())


def _members(guard: Any) -> list[Any]:
    if guard is None:
        return []
    if _takers(guard) or not isinstance(guard, Iterable):
        return [guard]
    return list(guard)


def _takers(value: Any, depth: int = 8) -> list[Any]:
    """Returns the objects with hooks that the steps of `value` pass: itself, and those that it wraps."""
    attributes = getattr(value, "__dict__", {})  # No property is called.
    found = []
    for name in _INNER:
        inner = attributes.get(name)
        for one in inner if isinstance(inner, list | tuple) else [inner]:
            if depth > 0:
                found += _takers(one, depth - 1)
    if not callable(getattr(value, "register_step_pre_hook", None)) or isinstance(value, type):
        return found
    # A wrapper that is an Optimizer by its class alone has no hooks of its own.
    if not isinstance(value, torch.optim.Optimizer) or "_optimizer_step_pre_hooks" in attributes:
        found.append(value)
    return found


def _look_in(value: Any, found: dict[int, Any], depth: int) -> None:
    if isinstance(value, torch.Tensor | torch.nn.Module | str | bytes) or depth > 200:
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _look_in(item, found, depth + 1)
        return
    found.update((id(taker), taker) for taker in _takers(value))


def _in_child() -> None:
    """A forked child has no thread that would end its parent's copies."""
    leave_to_parent(*(guard.copies for guard in _guards.values()))


os.register_at_fork(after_in_child=_in_child)
