"""Values of classes that plain values make: members of enums, namedtuples, dataclasses, subclasses.

Stored is the class's name and the plain value that stands for the object. An object is made of it again
only where the program has the class: it is looked up among the loaded modules and those of `register`,
nothing is imported, and no constructor is called. So a checkpoint can choose among classes, and pass
nothing to their code. Elsewhere the plain value comes back, with a warning.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import fractions
import io
import re
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from varve import _core
from varve._warn import warn
from varve.errors import InvalidArgumentError, UnsupportedError

NAMED_DICT: Final = 36
NAMED: Final = 37
WRAPPED: Final = 38

#: Bases of subclasses, each with a function for the plain value: the base's, as a subclass may override it.
_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),),
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
}
_BASE_NAMES: Final[dict[str, type]] = {base.__name__: base for base in _BASES}

#: Digits are bounded, and there is no exponent: a text of 20 bytes could otherwise ask for all memory.
_FRACTION: Final = re.compile(r"-?\d{1,4000}(/\d{1,4000})?")

#: Classes of the standard library that are made of their text.
_TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "decimal:Decimal": decimal.Decimal,
    "fractions:Fraction": fractions.Fraction,
    "uuid:UUID": uuid.UUID,
}

#: The flag of classes that are made in Python, Py_TPFLAGS_HEAPTYPE; some named tuples of C have it too.
_HEAP: Final = 1 << 9

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


def is_registered(kind: type) -> bool:
    """Returns whether the program has given a class to `register`."""
    return _registered.get(name_of(kind)) is kind


def find(name: str) -> type | None:
    """Returns the class of a stored name if the program has it, else None. Imports nothing."""
    if name in _registered:
        return _registered[name]
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = _names_in(found).get(part)
    return found if isinstance(found, type) else None


def _names_in(holder: Any) -> Any:
    """Returns the names in a class or module. Not by getattr: a module may import others when asked."""
    if isinstance(holder, type):
        return type.__dict__["__dict__"].__get__(holder)
    if isinstance(holder, types.ModuleType):
        return object.__getattribute__(holder, "__dict__")
    return {}


def items_of(mapping: Any) -> Any:
    """Returns the items of a mapping; of a subclass of dict those that it stores, whatever it shows."""
    for base in _MAPPINGS:
        if isinstance(mapping, base):
            return base.items(mapping)
    return mapping.items()


def is_dict(value: Any) -> bool:
    """Returns True for an object of a subclass of dict that can be stored as one."""
    if type(value) in _MAPPINGS:
        return True
    return (
        isinstance(value, dict)
        and not (isinstance(value, collections.defaultdict) and value.default_factory is not None)
        and not _slots(type(value))
    )


def _slots(kind: type) -> set[str]:
    """Returns the attributes of a class that are not in its objects' __dict__."""
    names: set[str] = set()
    for each in kind.__mro__:
        if each.__flags__ & _HEAP:
            slots = _names_in(each).get("__slots__", ())
            names |= {slots} if isinstance(slots, str) else set(slots)
    return names - {"__dict__", "__weakref__"}


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
        if not is_dict(value):
            return None
        return NAMED_DICT, _text(value, path, allow_pickle), [], dict(items_of(value))
    if dataclasses.is_dataclass(value):
        names = {each.name for each in dataclasses.fields(value)}
        if not _slots(kind) <= names:
            return None
        fields = {name: getattr(value, name) for name in names}
        ordered = {each.name: fields[each.name] for each in dataclasses.fields(value)}
        return (
            NAMED,
            name_of(kind).encode(),
            ["dataclass", {**ordered, **_attributes_of(value)}],
            None,
        )
    if (not kind.__flags__ & _HEAP and kind is not collections.deque) or _slots(kind):
        return None
    if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
        return None  # A named tuple of C as time.struct_time: only its own constructor makes one.
    if isinstance(value, collections.deque):
        text = _text(value, path, allow_pickle)
        plain = [*collections.deque.__iter__(value)]
        return NAMED, text, ["deque", plain, value.maxlen], None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        text = _text(value, path, allow_pickle)
        return NAMED, text, ["namedtuple", _BASES[tuple](value), tuple(value._fields)], None
    for base, plain_of in _BASES.items():
        if isinstance(value, base) and kind is not base:
            text = _text(value, path, allow_pickle)
            return NAMED, text, [base.__name__, plain_of(value)], None
    return None


def _attributes_of(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


def _text(value: Any, path: str, allow_pickle: bool) -> bytes:
    """Returns the class's name, and the object's own attributes where it has some."""
    name = name_of(type(value)).encode()
    attributes = _attributes_of(value)
    if not attributes:
        return name
    if attributes is value:
        extra: Any = "self"  # A dict whose attributes are its items.
    elif isinstance(value, dict) and all(
        k in value and value[k] is v for k, v in attributes.items()
    ):
        extra = "items"
    else:
        extra = dict(attributes)
    return name + b"\0" + _core.encode_value(extra, f"{path} (its attributes)", allow_pickle)


def split(text: bytes) -> tuple[str, bytes]:
    """Returns a stored class's name and the encoded value that follows it, or b""."""
    name, _, extra = text.partition(b"\0")
    return name.decode(), extra


def like(mapping: Any, items: dict[Any, Any]) -> Any:
    """Returns a mapping of the same class and with the same attributes, with other items."""
    made = _filled(type(mapping), items)
    attributes = _attributes_of(mapping)
    if attributes is mapping:
        made.__dict__ = made
    elif attributes:
        kept = {
            k: items[k] if k in items and mapping.get(k) is v else v for k, v in attributes.items()
        }
        made.__dict__.update(kept)
    return made


def _filled(kind: Any, entries: dict[Any, Any]) -> Any:
    base = next(each for each in _MAPPINGS if issubclass(kind, each))
    made = base.__new__(kind)
    for key, item in entries.items():
        base.__setitem__(made, key, item)
    return made


def is_key(kind: type) -> bool:
    """Returns True for a class whose objects are hashed and compared by no code of the class."""
    if issubclass(kind, enum.Enum) or name_of(kind) in _TEXTS:
        return True
    return any(
        kind.__hash__ is base.__hash__ and kind.__eq__ is base.__eq__
        for base in (str, int, float, complex, bytes, tuple, frozenset)
    )


def is_made_by_name(kind: type) -> bool:
    """Returns True for a class whose objects are stored with its name (NAMED)."""
    if kind.__module__ == "zoneinfo":
        return False
    return bool(kind.__flags__ & _HEAP) or name_of(kind) in _TEXTS


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
        made_of = _TEXTS.get(name)
        plausible = type(plain) is str and (
            name != "fractions:Fraction" or _FRACTION.fullmatch(plain)
        )
        if made_of is None or not plausible:
            raise UnsupportedError(f"a value of {name} is made of a text in a way not known here")
        return made_of(plain)
    if way == "BytesIO" and type(plain) is bytes:
        return io.BytesIO(plain)
    kind = collections.deque if name == "collections:deque" else find(name)
    made = None if kind is None else _made(kind, way, plain, more)
    if made is None:
        if way not in ("enum", "namedtuple", "dataclass", "deque", *_BASE_NAMES):
            raise UnsupportedError(f"a value of {name}: its way {way!r} is not known here")
        return _plain(name, plain)
    _give(made[0], extra)
    return made[0]


def _made(kind: Any, way: str, plain: Any, more: list[Any]) -> tuple[Any] | None:
    """Returns the object in a tuple; None where the class is no longer of this kind.

    Its parts are of built-in types: those of another class would have their methods called.
    """
    if way == "enum":
        return _member(kind, plain, *more)
    if way == "namedtuple":
        fits = issubclass(kind, tuple) and type(plain) is tuple
        fits = fits and getattr(kind, "_fields", None) == more[0]
        return (tuple.__new__(kind, plain),) if fits else None
    if way == "dataclass" and type(plain) is dict:
        return _dataclass(kind, plain)
    if way == "deque" and issubclass(kind, collections.deque) and type(plain) is list:
        made = collections.deque.__new__(kind)
        collections.deque.__init__(made, plain, more[0])
        return (made,)
    base: Any = _BASE_NAMES.get(way)
    if base is None or not issubclass(kind, base) or type(plain) is not base:
        return None
    try:
        if base in (list, set):
            made = base.__new__(kind)
            base.__init__(made, plain)
            return (made,)
        return (base.__new__(kind, plain),)
    except TypeError:  # A class of C, which only its own constructor makes.
        return None


def _member(kind: Any, value: Any, name: str | None) -> tuple[Any] | None:
    if not issubclass(kind, enum.Enum):
        return None
    members = kind.__members__
    if name in members and _same(members[name].value, value):
        return (members[name],)
    if (
        issubclass(kind, enum.Flag)
        and type(value) is int
        and kind._missing_.__func__ is enum.Flag._missing_.__func__  # type: ignore[attr-defined]
    ):
        known = 0
        for member in members.values():
            known |= member.value
        keeps = getattr(kind, "_boundary_", None) is getattr(enum, "KEEP", kind)
        return (kind(value),) if keeps or value & ~known == 0 else None
    return None


def _same(ours: Any, theirs: Any) -> bool:
    """Compares two values by what is stored of them: NaN is NaN, and no __eq__ is called."""
    try:
        return bool(_core.encode_value(ours, "") == _core.encode_value(theirs, ""))
    except InvalidArgumentError:
        return False


def _dataclass(kind: Any, plain: dict[str, Any]) -> tuple[Any] | None:
    """Sets fields as pickle does, without __init__ and __post_init__."""
    if not dataclasses.is_dataclass(kind):
        return None
    cls: Any = kind
    fields = {each.name for each in dataclasses.fields(kind)}
    has_dict = any("__dict__" in vars(each) for each in cls.__mro__)
    if not fields <= plain.keys() or (not has_dict and plain.keys() != fields):
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
    attributes = _core.decode_value(extra)
    if attributes == "self":
        made.__dict__ = made
    elif isinstance(getattr(made, "__dict__", None), dict):
        made.__dict__.update(made if attributes == "items" else attributes)


def _plain(name: str, value: Any) -> Any:
    if not getattr(_state, "quiet", False):
        warn(
            f"values of {name.replace(':', '.')} come back as {type(value).__name__}: the program has no such "
            "class, or it has changed; import the module that has it before the load",
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
