"""Arguments that torch's functions accept in one version and not in another."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from varve.errors import UnsupportedError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def storage_may_come_second(name: str) -> Callable[[_Function], _Function]:
    """Accepts the storage as second positional argument, as torch's functions still do."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def accept(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 2:
                return function(*args, **kwargs)
            if name in kwargs:
                raise TypeError(f"{function.__name__}() got two values for {name}")
            warnings.warn(
                f"{function.__name__}: give {name} by its name; torch has changed the order of "
                "arguments",
                stacklevel=2,
            )
            return function(args[0], **{name: args[1]}, **kwargs)

        return cast(_Function, accept)

    return decorate


def arguments_of(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Arguments that this version of torch has; values with a default come as (value, default)."""
    known = inspect.signature(function).parameters
    out = {}
    for name, value in values.items():
        given, default = value if isinstance(value, tuple) else (value, None)
        if name in known:
            out[name] = given
        elif given != default:
            raise UnsupportedError(f"{function.__name__} of this torch has no argument {name}")
    return out
