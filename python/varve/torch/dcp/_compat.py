"""The differences between versions of torch, and the private names of torch that this package needs.

The private names are those of torch 2.13. _events.py has those of the log events.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo

__all__ = [
    "StorageInfo",
    "copy_state_dict",
    "create_cpu_state_dict",
    "flatten_state_dict",
    "fsspec_storage",
    "storage_may_come_second",
]

#: Torch's copy of a state dict, in two steps, which knows all its classes of tensors.
copy_state_dict = _copy_state_dict
create_cpu_state_dict = _create_cpu_state_dict

#: The place of an entry in a checkpoint's files: what `Metadata.storage_data` has, and so every index.
StorageInfo = _StorageInfo

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


def fsspec_storage(reader: bool) -> Any:
    """Returns torch's storage over fsspec; None where fsspec is not installed, or fails to be imported."""
    for name in ("fsspec_filesystem", "_fsspec_filesystem"):  # Torch has the first since 2.15.
        try:
            module: Any = importlib.import_module(f"torch.distributed.checkpoint.{name}")
        except Exception:  # As torch itself.
            continue
        return module.FsspecReader if reader else module.FsspecWriter
    return None
