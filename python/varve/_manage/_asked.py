"""The parts of a save: the state, the metrics and the user's functions that return them.

An error of such a function is this rank's alone. It becomes a state that cannot be saved, so that the save
fails on all ranks with it, as for any other error, and none of them waits for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varve import _arguments
from varve._tree import is_stateful
from varve.errors import InvalidArgumentError


class FunctionFailed(InvalidArgumentError):
    """A function that the user has given has raised an error, which is the cause of this one."""


class FailedState:
    """Stands for the state of a rank that has none to save."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def state_dict(self) -> dict[str, Any]:
        """Raises why there is no state."""
        raise self._error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises likewise."""
        raise self._error


def state_of(given: Any) -> Any:
    """Returns a state, or what a function returns. Raises FunctionFailed."""
    if callable(given) and not isinstance(given, Mapping) and not is_stateful(given):
        return _called("the function that returns the state", given)
    return given


def measured(metrics: Any) -> dict[str, float]:
    """Returns metrics as numbers."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise _arguments.refuse("metrics", metrics, "a dict of names and numbers")
    return {name: number(name, value) for name, value in (metrics or {}).items()}


def number(name: str, value: Any) -> float:
    """Returns a metric's value: of a number, a tensor of one element, or a function that returns one.

    Raises FunctionFailed for an error of the function, InvalidArgumentError for a value that is no number.
    """
    found = _called(f"metrics[{name!r}]", value) if callable(value) else value
    try:
        return float(found.item() if hasattr(found, "item") else found)
    except OverflowError:
        raise _arguments.refuse(
            f"metrics[{name!r}]", "an int of more than 308 digits", "a number that a float can hold"
        ) from None
    except (TypeError, ValueError, RuntimeError):
        raise _arguments.refuse(
            f"metrics[{name!r}]", value, "a number, a tensor of one element or a function of these"
        ) from None


def _called(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise FunctionFailed(f"{what} has raised {type(error).__name__}: {error}") from error
