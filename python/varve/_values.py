"""Values that need another module to take apart or put together.

The binding handles plain built-ins itself and calls `to_parts` and `from_parts` for the rest. A value
is (kind, text, items): a number from include/varve/value.h, bytes, and nested values.
"""

from __future__ import annotations

import collections
import datetime
import io
import os
import pathlib
import pickle
import sys
import zoneinfo
from typing import Any, Final

import numpy as np

from varve import _classes
from varve.errors import Error, InvalidArgumentError, UnsupportedError

ORDERED_DICT: Final = 12
COUNTER: Final = 15
DEFAULT_DICT: Final = 16
TORCH_SIZE: Final = 17
TORCH_DTYPE: Final = 18
TORCH_DEVICE: Final = 19
DATETIME: Final = 20
DATE: Final = 21
TIME: Final = 22
TIMEDELTA: Final = 23
TIMEZONE: Final = 24
ZONE_INFO: Final = 25
NUMPY_SCALAR: Final = 26
NUMPY_ARRAY: Final = 27
TENSOR: Final = 28
PICKLE: Final = 29
TENSOR_LEAF: Final = 30
OBJECT_LEAF: Final = 31
RANGE: Final = 32
SLICE: Final = 33
TORCH_SAVE: Final = 34
PATH: Final = 35

#: Factories that a defaultdict may have: found again by name, nothing is ever imported.
FACTORIES: Final[dict[str, Any]] = {
    "": None,
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "set": set,
    "str": str,
    "tuple": tuple,
}

Parts = tuple[int, bytes, list[Any], Any]


class NeedsClassesError(UnsupportedError):
    """A value is of classes that Varve does not make.

    Attributes:
        classes: Their names.
        with_pickle: `allow_pickle=True` would open the value.
    """

    def __init__(self, message: str, classes: list[str], with_pickle: bool) -> None:
        super().__init__(message)
        self.classes = classes
        self.with_pickle = with_pickle


class TensorLeaf:
    """In a structure: a tensor is stored under this path. `origin` is "torch" or "numpy"."""

    __slots__ = ("origin",)

    def __init__(self, origin: str) -> None:
        self.origin = origin


class ObjectLeaf:
    """In a structure: a plain value is stored under this path."""

    __slots__ = ()


class Wrapped(dict[str, Any]):
    """In a structure: a tensor that is made of others, which are stored under this path by their names.

    `text` is the class and what else the tensor needs; varve.torch._wrapped writes and reads it.
    """

    __slots__ = ("text",)

    def __init__(self, text: bytes, inner: dict[str, Any]) -> None:
        super().__init__(inner)
        self.text = text

    @property
    def kind(self) -> str:
        """The class, as messages have it."""
        return self.text.partition(b"\0")[0].decode().replace(":", ".")


#: The leaves themselves: they have no state worth more than one object each, and the binding knows
#: these without a call.
LEAVES: Final = {origin: TensorLeaf(origin) for origin in ("torch", "numpy", "")}
OBJECT: Final = ObjectLeaf()


def to_parts(value: Any, path: str, allow_pickle: bool) -> Parts:
    """Takes a value apart; the last element is a mapping whose entries are the items, or None.

    Raises InvalidArgumentError with the path for a type that is not stored.
    """
    kind = type(value)
    if kind is TensorLeaf:
        return TENSOR_LEAF, value.origin.encode(), [], None
    if kind is ObjectLeaf:
        return OBJECT_LEAF, b"", [], None
    if kind is collections.OrderedDict:
        return ORDERED_DICT, b"", [], value
    if kind is collections.Counter:
        return COUNTER, b"", [], value
    if kind is collections.defaultdict:
        factory = factory_name(value)
        if factory is not None:
            return DEFAULT_DICT, factory.encode(), [], value
    if kind is Wrapped:
        return _classes.WRAPPED, value.text, [], value
    for convert in (_standard_parts, _numpy_parts, _torch_parts):
        parts = convert(value, path)
        if parts is not None:
            return (*parts, None)
    named = _classes.parts(value, path, allow_pickle)
    if named is not None:
        return named
    name = f"{kind.__module__}.{kind.__qualname__}"
    if allow_pickle:
        try:
            return PICKLE, pickle.dumps(value, protocol=4), [], None
        except Exception as error:
            raise InvalidArgumentError(
                f'"{path}": a value of type {name} cannot be pickled: {error}'
            ) from error
    raise InvalidArgumentError(
        f'"{path}": values of type {name} are not stored; convert it to plain values, or pass '
        "allow_pickle=True to store it as a pickle"
    )


def factory_name(value: collections.defaultdict[Any, Any]) -> str | None:
    """Returns the name that stands for a defaultdict's factory, or None where there is none."""
    factory = value.default_factory
    name = "" if factory is None else getattr(factory, "__name__", "?")
    return name if FACTORIES.get(name, to_parts) is factory else None


def _standard_parts(value: Any, path: str) -> tuple[int, bytes, list[Any]] | None:
    kind = type(value)
    if kind is datetime.datetime:
        return DATETIME, _iso(value), [value.tzinfo, value.fold]
    if kind is datetime.date:
        return DATE, value.isoformat().encode(), []
    if kind is datetime.time:
        return TIME, _iso(value), [value.tzinfo, value.fold]
    if kind is datetime.timedelta:
        return TIMEDELTA, b"", [value.days, value.seconds, value.microseconds]
    if kind is datetime.timezone:
        name = value.tzname(None)
        offset = value.utcoffset(None)
        plain = datetime.timezone(offset).tzname(None) == name
        return TIMEZONE, b"", [offset] if plain else [offset, name]
    if kind is zoneinfo.ZoneInfo and value.key is not None:
        return ZONE_INFO, value.key.encode(), []
    if kind is pathlib.PosixPath or kind is pathlib.PurePosixPath:
        return PATH, str(value).encode("utf-8", "surrogatepass"), [kind.__name__]
    if kind is range:
        return RANGE, b"", [value.start, value.stop, value.step]
    if kind is slice:
        return SLICE, b"", [value.start, value.stop, value.step]
    return None


def _iso(value: datetime.datetime | datetime.time) -> bytes:
    return value.replace(tzinfo=None, fold=0).isoformat().encode()


def _numpy_parts(value: Any, path: str) -> tuple[int, bytes, list[Any]] | None:
    kind = type(value)
    if not (isinstance(value, np.generic) or kind is np.ndarray):
        return None
    dtype = value.dtype
    # Types of other packages (ml_dtypes) call themselves "V2": they would come back as raw bytes.
    if dtype.hasobject or dtype.fields is not None or np.dtype(dtype.str) != dtype:
        raise InvalidArgumentError(
            f'"{path}": numpy {dtype} values are not stored here; convert it to plain numbers or text'
        )
    if isinstance(value, np.generic):
        return NUMPY_SCALAR, value.tobytes(), [dtype.str]
    return NUMPY_ARRAY, value.tobytes(), [dtype.str, value.shape]


def _torch_parts(value: Any, path: str) -> tuple[int, bytes, list[Any]] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = type(value)
    if kind is torch.Size:
        return TORCH_SIZE, b"", list(value)
    if kind is torch.dtype:
        return TORCH_DTYPE, str(value).removeprefix("torch.").encode(), []
    if kind is torch.device:
        return TORCH_DEVICE, str(value).encode(), []
    if isinstance(value, torch.Tensor):
        if (
            kind not in (torch.Tensor, torch.nn.Parameter)
            or value.layout is not torch.strided
            or value.is_quantized
            or value.is_nested
            or value.is_meta
        ):
            raise InvalidArgumentError(
                f'"{path}": this kind of {kind.__name__} inside a tuple, set or list of plain values is not '
                "stored; keep it in a dict, or in a list of tensors"
            )
        plain = _on_host(value).resolve_conj().resolve_neg().contiguous()
        # One element may keep any stride and be contiguous, and `view` takes a last stride of 1 alone.
        flat = plain.as_strided((plain.numel(),), (1,))
        raw = flat.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return TENSOR, raw, [str(value.dtype).removeprefix("torch."), tuple(value.shape)]
    return None


def _on_host(tensor: Any) -> Any:
    """Returns a tensor of torch detached and on the CPU."""
    if tensor.is_cpu:
        return tensor.detach()
    from varve.torch._devices import on_host

    return on_host(tensor)


def mapping_from_parts(kind: int, text: bytes, entries: dict[Any, Any]) -> Any:
    """Puts a mapping together from its kind and entries."""
    if kind == ORDERED_DICT:
        return collections.OrderedDict(entries)
    if kind == COUNTER:
        return collections.Counter(entries)
    if kind == _classes.NAMED_DICT:
        return _classes.make_dict(text, entries)
    if kind == _classes.WRAPPED:
        return Wrapped(text, entries)
    name = text.decode()
    if name not in FACTORIES:
        raise UnsupportedError(f"defaultdict with unknown factory {name!r}")
    return collections.defaultdict(FACTORIES[name], entries)


def key_text(key: Any, path: str) -> str:
    """Returns the part of names that an object has as a key.

    Raises InvalidArgumentError where it would not come back as a key: hashing it runs code of its class.
    """
    if not _classes.is_key(type(key)):
        raise InvalidArgumentError(
            f'"{path}": a {type(key).__name__} is not stored as a key of a dict, since its class has a hash or an '
            "equality of its own; use a str, a number or a tuple of these as the key"
        )
    return str(key)


def key_from_parts(text: bytes, items: list[Any]) -> Any:
    """Returns an object that is a key, or its part of names where the class is not there or has changed."""
    with _classes.quietly():
        made = _classes.make(text, items[:-1])
    # Hashing an object of another class would run its code.
    return made if _classes.is_key(type(made)) and str(made) == items[-1] else items[-1]


def from_parts(kind: int, text: bytes, items: list[Any], allow_pickle: bool) -> Any:
    """Puts a value together again. Never runs anything but a pickle that the caller allowed."""
    if kind == TENSOR_LEAF:
        return LEAVES.get(text.decode(), LEAVES[""])
    if kind == OBJECT_LEAF:
        return OBJECT
    if kind == PICKLE:
        if not allow_pickle:
            raise UnsupportedError(
                "a value is stored as a pickle, which can run code when opened; pass "
                "allow_pickle=True if you trust who wrote the checkpoint"
            )
        try:
            return pickle.loads(text)
        except Exception as error:
            raise UnsupportedError(f"a stored pickle cannot be opened here: {error}") from error
    if kind == TORCH_SAVE:
        return _unpickled_by_torch(text, items, allow_pickle)
    if kind == _classes.NAMED:
        return _classes.make(text, items)
    if kind in (NUMPY_SCALAR, NUMPY_ARRAY):
        return _numpy_value(kind, text, items)
    if kind in (TORCH_SIZE, TORCH_DTYPE, TORCH_DEVICE, TENSOR):
        return _torch_value(kind, text, items)
    if kind == DATETIME:
        moment = datetime.datetime.fromisoformat(text.decode())
        return moment.replace(tzinfo=items[0], fold=items[1])
    if kind == DATE:
        return datetime.date.fromisoformat(text.decode())
    if kind == TIME:
        clock = datetime.time.fromisoformat(text.decode())
        return clock.replace(tzinfo=items[0], fold=items[1])
    if kind == TIMEDELTA:
        return datetime.timedelta(*items)
    if kind == TIMEZONE:
        zone = datetime.timezone(*items)
        return datetime.timezone.utc if zone == datetime.timezone.utc and len(items) == 1 else zone
    if kind == ZONE_INFO:
        return zoneinfo.ZoneInfo(text.decode())
    if kind == PATH:
        # A PosixPath cannot be made on Windows, its pure part can.
        pure = items != ["PosixPath"] or os.name != "posix"
        return (pathlib.PurePosixPath if pure else pathlib.PosixPath)(
            text.decode("utf-8", "surrogatepass")
        )
    if kind == RANGE:
        return range(*items)
    if kind == SLICE:
        return slice(*items)
    raise UnsupportedError(f"value kind {kind} is not known to this version of Varve")


def _unpickled_by_torch(archive: bytes, needs: list[Any], allow_pickle: bool) -> Any:
    """Returns an object in a torch.save archive that holds more than plain values."""
    what = ", ".join(needs)
    if not archive:
        raise NeedsClassesError(
            f"a value needs {what}, and Varve makes no objects of other software. The value is a part "
            "of the one pickle of a torch.save file, so allow_pickle=True cannot open it alone",
            needs,
            with_pickle=False,
        )
    if not allow_pickle:
        raise NeedsClassesError(
            f"a value needs {what}, which only a pickle can make, and a pickle can run code when "
            "opened; pass allow_pickle=True if you trust who wrote the checkpoint",
            needs,
            with_pickle=True,
        )
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "a value was stored by torch.save, and torch is not installed"
        ) from error
    try:
        return torch.load(io.BytesIO(archive), map_location="cpu", weights_only=False)
    except Exception as error:
        raise UnsupportedError(
            f"a value that needs {what} cannot be opened here: {error}"
        ) from error


def name_failure(fqn: str, error: Exception) -> None:
    """Raises the error again, as one of ours that names the value."""
    if isinstance(error, NeedsClassesError):
        text = f'"{fqn}": {error}'
        raise NeedsClassesError(text, error.classes, error.with_pickle) from error.__cause__
    if isinstance(error, Error):
        text = f'"{fqn}": {error}'
        raise type(error)(text, path=error.path, rank=error.rank) from error.__cause__
    raise UnsupportedError(
        f'"{fqn}": the stored value cannot be made here: {type(error).__name__}: {error}'
    ) from error


def _numpy_value(kind: int, text: bytes, items: list[Any]) -> Any:
    dtype = np.dtype(items[0])
    if dtype.hasobject or dtype.fields is not None:
        raise UnsupportedError(f"stored numpy dtype {items[0]!r} is not plain data")
    if kind == NUMPY_SCALAR:
        # Indexing an array of text would strip NULs from its end.
        if dtype.itemsize and dtype.kind == "S":
            return np.bytes_(text)
        if dtype.itemsize and dtype.kind == "U":
            order = "be" if dtype.str[0] == ">" else "le"
            return np.str_(text.decode(f"utf-32-{order}", "surrogatepass"))
        return np.frombuffer(text, dtype, 1)[0] if dtype.itemsize else dtype.type()
    shape = tuple(items[1])
    if dtype.itemsize == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(text, dtype).reshape(shape).copy()


def _torch_value(kind: int, text: bytes, items: list[Any]) -> Any:
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "a stored value is a torch type, and torch is not installed"
        ) from error
    if kind == TORCH_SIZE:
        return torch.Size(items)
    if kind == TORCH_DEVICE:
        return torch.device(text.decode())
    name = text.decode() if kind == TORCH_DTYPE else items[0]
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this torch has no dtype {name!r}")
    if kind == TORCH_DTYPE:
        return dtype
    flat = (
        torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if text
        else torch.empty(0, dtype=torch.uint8)
    )
    return flat.view(dtype).reshape(tuple(items[1]))
