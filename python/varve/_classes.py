"""Values of classes that plain values make: members of enums, namedtuples, dataclasses, subclasses.

Stored is the class's name and the plain value that stands for the object. An object is made of it again
only where the program has the class: it is looked up among the loaded modules and those of `register`,
nothing is imported, and no function of the class is called. So a checkpoint can choose among classes,
and run none of their code. Elsewhere the plain value comes back, with a warning.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import fractions
import io
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from varve import _core
from varve._warn import warn
from varve.errors import InvalidArgumentError, UnsupportedError

NAMED_DICT: Final = 36
NAMED: Final = 37
WRAPPED: Final = 38

#: What a subclass may be of, as what it is stored; bool has no subclasses.
_BASES: Final[dict[str, type]] = {
    base.__name__: base for base in (list, tuple, set, frozenset, str, bytes, int, float)
}

#: Classes of the standard library that are made of their text.
_TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "decimal:Decimal": decimal.Decimal,
    "fractions:Fraction": fractions.Fraction,
    "uuid:UUID": uuid.UUID,
}

_MAPPINGS: Final = (collections.OrderedDict, collections.Counter, dict)

_registered: dict[str, type] = {}
_state = threading.local()


def name_of(kind: type) -> str:
    """Returns the name that a class is stored under, "module:qualified.name"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def register(*classes: type) -> None:
    """Lets loads and reads make objects of these classes where they cannot be found by their names.

    A class at the top of a loaded module needs no registration. One that is made in a function does, and one that has
    moved: register it in a module or under a name that is the stored one's.

    Args:
        classes: Enums, namedtuples, dataclasses, subclasses of built-in types, or tensors that are made of others.

    Raises:
        InvalidArgumentError: One is not a class.
    """
    for kind in classes:
        if not isinstance(kind, type):
            raise InvalidArgumentError(f"{kind!r} is not a class")
        _registered[name_of(kind)] = kind


def find(name: str) -> type | None:
    """Returns the class of a stored name if the program has it, else None. Imports nothing."""
    if name in _registered:
        return _registered[name]
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # Not getattr: a module may import others when it is asked for an attribute.
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def is_dict(value: Any) -> bool:
    """Returns True for an object of a subclass of dict that can be stored as one."""
    return isinstance(value, dict) and not (
        isinstance(value, collections.defaultdict) and value.default_factory is not None
    )


def parts(value: Any, path: str, allow_pickle: bool) -> tuple[int, bytes, list[Any], Any] | None:
    """Takes a value apart as `_values.to_parts` does; None for one of another kind."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return NAMED, name_of(kind).encode(), ["enum", value.value, value.name], None
    if kind is io.BytesIO:
        return NAMED, b"io:BytesIO", ["BytesIO", value.getvalue()], None
    if name_of(kind) in _TEXTS:
        return NAMED, name_of(kind).encode(), ["text", str(value)], None
    if isinstance(value, dict):
        return (NAMED_DICT, _text(value, path, allow_pickle), [], value) if is_dict(value) else None
    if isinstance(value, collections.deque):
        text = _text(value, path, allow_pickle)
        return NAMED, text, ["deque", list(value), value.maxlen], None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        text = _text(value, path, allow_pickle)
        return NAMED, text, ["namedtuple", tuple(value), tuple(value._fields)], None
    for name, base in _BASES.items():
        if isinstance(value, base) and kind is not base and _is_made_in_python(kind):
            of_base: Any = base
            plain = of_base(value) if base in (list, set) else of_base.__new__(base, value)
            return NAMED, _text(value, path, allow_pickle), [name, plain], None
    if dataclasses.is_dataclass(value):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return NAMED, name_of(kind).encode(), ["dataclass", {**fields, **_own(value)}], None
    return None


def _is_made_in_python(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE: not a structseq of C.


def _own(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


def _text(value: Any, path: str, allow_pickle: bool) -> bytes:
    """Returns the class's name, and the object's own attributes where it has some."""
    name = name_of(type(value)).encode()
    own = _own(value)
    if not own:
        return name
    if own is value:
        extra: Any = "self"  # A dict whose attributes are its items.
    elif isinstance(value, dict) and all(k in value and value[k] is v for k, v in own.items()):
        extra = "items"
    else:
        extra = dict(own)
    return name + b"\0" + _core.encode_value(extra, f"{path} (its attributes)", allow_pickle)


def split(text: bytes) -> tuple[str, bytes]:
    """Returns a stored class's name and the encoded value that follows it, or b""."""
    name, _, extra = text.partition(b"\0")
    return name.decode(), extra


def like(mapping: Any, items: dict[Any, Any]) -> Any:
    """Returns a mapping of the same class and with the same attributes, with other items."""
    made = _filled(type(mapping), items)
    own = _own(mapping)
    if own is mapping:
        made.__dict__ = made
    elif own:
        kept = {k: items[k] if k in items and mapping.get(k) is v else v for k, v in own.items()}
        made.__dict__.update(kept)
    return made


def _filled(kind: Any, entries: dict[Any, Any]) -> Any:
    base = next(each for each in _MAPPINGS if issubclass(kind, each))
    made = base.__new__(kind)
    for key, item in entries.items():
        base.__setitem__(made, key, item)
    return made


def make_dict(text: bytes, entries: dict[Any, Any]) -> Any:
    """Returns a mapping of its class, or a dict with a warning."""
    name, extra = split(text)
    kind = find(name)
    if kind is None or not issubclass(kind, dict):
        return _plain(name, entries)
    made = _filled(kind, entries)
    _give(made, extra)
    return made


def make(text: bytes, items: list[Any]) -> Any:
    """Returns an object of its class, or its plain value with a warning.

    Raises UnsupportedError for a way of making it that this version does not have.
    """
    name, extra = split(text)
    way, plain, *more = items
    if way == "text":
        if name not in _TEXTS:
            raise UnsupportedError(f"a value of {name} is made of a text in a way not known here")
        return _TEXTS[name](plain)
    if way == "BytesIO":
        return io.BytesIO(plain)
    kind = collections.deque if name == "collections:deque" else find(name)
    made = None if kind is None else _made(kind, way, plain, more)
    if made is None:
        if way not in ("enum", "namedtuple", "dataclass", "deque", *_BASES):
            raise UnsupportedError(f"a value of {name}: its way {way!r} is not known here")
        return _plain(name, plain)
    _give(made[0], extra)
    return made[0]


def _made(kind: Any, way: str, plain: Any, more: list[Any]) -> tuple[Any] | None:
    """Returns the object in a tuple; None where the class is no longer of this kind."""
    if way == "enum":
        return _member(kind, plain, *more)
    if way == "namedtuple":
        fits = issubclass(kind, tuple) and getattr(kind, "_fields", None) == more[0]
        return (tuple.__new__(kind, plain),) if fits else None
    if way == "dataclass":
        return _dataclass(kind, plain)
    if way == "deque" and issubclass(kind, collections.deque):
        made = collections.deque.__new__(kind)
        collections.deque.__init__(made, plain, more[0])
        return (made,)
    base = _BASES.get(way)
    if base is None or not issubclass(kind, base):
        return None
    if base in (list, set):
        made = base.__new__(kind)
        base.__init__(made, plain)
        return (made,)
    return (base.__new__(kind, plain),)


def _member(kind: Any, value: Any, name: str | None) -> tuple[Any] | None:
    if not issubclass(kind, enum.Enum):
        return None
    if name in kind.__members__ and kind.__members__[name].value == value:
        return (kind.__members__[name],)
    if issubclass(kind, enum.Flag) and isinstance(value, int):
        known = 0
        for member in kind.__members__.values():
            known |= member.value
        return (kind(value),) if value & ~known == 0 else None
    return None


def _dataclass(kind: Any, plain: dict[str, Any]) -> tuple[Any] | None:
    """Sets fields as pickle does, without __init__ and __post_init__."""
    if not dataclasses.is_dataclass(kind):
        return None
    cls: Any = kind
    fields = {each.name for each in dataclasses.fields(kind)}
    own = any("__dict__" in vars(each) for each in cls.__mro__)
    if not fields <= plain.keys() or (not own and plain.keys() != fields):
        return None  # The class has changed since.
    made = object.__new__(cls)
    for key, item in plain.items():
        slot = any(key in vars(each).get("__slots__", ()) for each in cls.__mro__)
        if slot:
            object.__setattr__(made, key, item)
        else:
            made.__dict__[key] = item
    return (made,)


def _give(made: Any, extra: bytes) -> None:
    """Gives an object its own attributes."""
    if not extra:
        return
    own = _core.decode_value(extra)
    if own == "self":
        made.__dict__ = made
    elif isinstance(getattr(made, "__dict__", None), dict):
        made.__dict__.update(made if own == "items" else own)


def _plain(name: str, value: Any) -> Any:
    if not getattr(_state, "quiet", False):
        warn(
            f"values of {name.replace(':', '.')} come back as {type(value).__name__}: the program has no "
            "such class; import its module before the load",
            UserWarning,
        )
    return value


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps loads from warning of classes that are not there, where only names are wanted."""
    before = getattr(_state, "quiet", False)
    _state.quiet = True
    try:
        yield
    finally:
        _state.quiet = before
