"""Checks of arguments, so that a wrong one is an error of ours that names it."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from varve import _core
from varve.errors import InvalidArgumentError

#: Short names of dtypes that people type, to those of the engine.
_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
}


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200


def shown(value: Any) -> str:
    """Returns a value's text for a message, at most a line: a state may be given by mistake."""
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return f"a {type(value).__name__} of {len(value)} entries"
    if hasattr(value, "state_dict") or hasattr(value, "__array__"):
        return f"a {type(value).__name__}"
    return " ".join(_REPR.repr(value).split())


def fields_shown(kind: str, fields: Mapping[str, Any]) -> str:
    """Returns the repr of a bound struct, with the first ten items of each list."""
    return f"{kind}({', '.join(f'{name}={_shortened(value)}' for name, value in fields.items())})"


def _shortened(value: Any) -> str:
    return f"[{first_names(value, shown=repr)}]" if isinstance(value, list) else repr(value)


def first_names(names: Sequence[Any], most: int = 10, shown: Callable[[Any], str] = str) -> str:
    """Returns the first `most` names, and the number of the others."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + rest


def refuse(name: str, value: Any, want: str) -> InvalidArgumentError:
    """Returns the error for an argument of another type or value."""
    return InvalidArgumentError(f"{name}={shown(value)}: want {want}")


def flag(name: str, value: Any) -> bool:
    """Checks and returns an argument that is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise refuse(name, value, "True or False")
    return bool(value)


def count(name: str, value: Any, least: int = 1) -> int:
    """Checks and returns an argument that is a whole number from `least` on."""
    try:
        number = least - 1 if isinstance(value, bool) else int(value.__index__())
    except (AttributeError, TypeError):  # TypeError: an array of floats, or of several elements.
        number = least - 1
    if not least <= number < 1 << 63:
        raise refuse(name, value, f"a whole number from {least} on")
    return number


def seconds(name: str, value: Any, unit: str = "seconds") -> float:
    """Checks and returns an argument that is a time in seconds, or in another unit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) >= 0:
        raise refuse(name, value, f"a number of {unit} from 0 on")
    return float(value)


def above_zero(name: str, value: Any) -> float:
    """Checks and returns an argument that is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) > 0:
        raise refuse(name, value, "a number above 0")
    return float(value)


def names(name: str, value: Any) -> list[str]:
    """Checks and returns an argument that is a string, or several."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        raise refuse(name, value, "a string or a list of strings")
    listed = list(value)
    if not all(isinstance(item, str) for item in listed):
        raise refuse(name, value, "a string or a list of strings")
    return listed


def prefixes(name: str, value: Any) -> list[tuple[str, str]]:
    """Checks and returns an argument that maps strings to strings, or None."""
    if value is None:
        return []
    if not isinstance(value, Mapping) or not all(
        isinstance(old, str) and isinstance(new, str) for old, new in value.items()
    ):
        raise refuse(name, value, "a dict {prefix: what it becomes}")
    return list(value.items())


def dtype(name: str, value: Any) -> int | None:
    """Returns the engine's number of a dtype of torch or NumPy, or a name such as "bf16"."""
    if value is None:
        return None
    text = str(value).removeprefix("torch.")  # No need to import torch to know its dtypes.
    if not isinstance(value, str) and text not in _core.DTYPE_NAMES:
        try:
            text = np.dtype(value).name
        except TypeError:
            text = ""
    text = _SHORT.get(text, text)
    if text not in _core.DTYPE_NAMES:
        raise refuse(name, value, 'a dtype of torch or NumPy, or a name like "bfloat16" or "bf16"')
    return _core.DTYPE_NAMES.index(text)


#: Whether a save may remove a checkpoint in an object store before it writes the new one.
RemoteOverwrite = Literal["refuse", "in_place"]


def check_remote_overwrite(value: Any) -> None:
    """Raises InvalidArgumentError for what is no RemoteOverwrite."""
    if value not in ("refuse", "in_place"):
        raise refuse("remote_overwrite", value, '"refuse" or "in_place"')
