"""Tensors that are made of others, as stock torch opens them: pickles whose storages are the inner tensors.

The engine puts such a pickle and the inner tensors into one archive of torch.save, so that these are not stored
twice. Nothing here reads their elements.
"""

from __future__ import annotations

import collections
import io
import pickle
from typing import Any

import torch

from varve import _tree
from varve.torch import _wrapped
from varve.torch._shards import NUMBERS, Share, is_dtensor

#: The storages of quantized tensors, which say their dtype.
_QUANTIZED = {
    torch.qint8: torch.QInt8Storage,
    torch.quint8: torch.QUInt8Storage,
    torch.qint32: torch.QInt32Storage,
    torch.quint4x2: torch.QUInt4x2Storage,
    torch.quint2x4: torch.QUInt2x4Storage,
}


class _NotWhole(Exception):
    """A rank may hold a part of it alone."""


class _Call:
    """An object that a pickle makes by a call; also one that is called."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced

    def __call__(self) -> None:
        """Makes it a function in the eyes of pickle."""


class _Storage:
    """The storage of an inner tensor.

    Attributes:
        kind: torch's class of it.
        key: Its number in the archive.
        count: The elements of that class.
    """

    def __init__(self, kind: Any, key: int, count: int) -> None:
        self.kind = kind
        self.key = str(key)
        self.count = count


class _Pickler(pickle.Pickler):
    """Pickles calls as torch.save does, for memory of the CPU."""

    def persistent_id(self, obj: Any) -> Any:
        """Returns what torch.load finds a storage by."""
        if isinstance(obj, _Storage):
            return "storage", obj.kind, obj.key, "cpu", obj.count
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Puts the CPU in the place of any device, as torch's own checkpoints do."""
        return (torch.device, ("cpu",)) if isinstance(obj, torch.device) else NotImplemented


def pickled(fqn: str, tensor: Any) -> tuple[bytes, list[str]] | None:
    """Returns a pickle of a tensor that is made of others, and the names of those that are its storages.

    None where the rank may hold a part of it alone, or where its class or attributes cannot be pickled.
    """
    storages: list[str] = []
    out = io.BytesIO()
    # 4: functions of classes have names. Without a memo equal tensors have equal pickles on all ranks.
    pickler = _Pickler(out, protocol=4)
    pickler.fast = True
    try:
        pickler.dump(_made(fqn, tensor, storages))
    except _NotWhole:
        return None
    except Exception:  # Whatever an attribute raises when it is pickled.
        return None
    return (out.getvalue(), storages) if storages else None


def _made(fqn: str, tensor: Any, storages: list[str]) -> _Call:
    if isinstance(tensor, Share) or is_dtensor(tensor):
        raise _NotWhole
    apart = _wrapped.take_apart(fqn, tensor)
    if apart is None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.dtype not in NUMBERS:
            raise _NotWhole
        return _plain(fqn, tensor, tensor.dtype, tensor.shape, storages)
    if apart.name == "torch:bytes":
        name = _tree.join(fqn, "bytes")
        return _plain(name, apart.inner["bytes"], tensor.dtype, tensor.shape, storages)
    if apart.name == "torch:quantized":
        return _quantized(fqn, tensor, apart, storages)
    inner = {
        name: _made(_tree.join(fqn, name), each, storages) for name, each in apart.inner.items()
    }
    if apart.name.startswith("torch:"):
        return _of_torch(tensor, apart, inner)
    unflatten = _Call(getattr, type(tensor), "__tensor_unflatten__")
    size, strides = torch.Size(tensor.shape), tuple(tensor.stride())
    return _Call(unflatten, inner, apart.attributes, size, strides)


def _of_torch(tensor: Any, apart: _wrapped.Apart, inner: dict[str, Any]) -> _Call:
    """A sparse or nested tensor, by the functions that torch's own pickles call."""
    parts = tuple(inner.values())
    if apart.name == "torch:jagged":
        about = apart.attributes
        sizes = about["ragged_idx"], about["min_seqlen"], about["max_seqlen"]
        lengths = inner.get("lengths")
        made = torch.nested.nested_tensor_from_jagged
        return _Call(made, inner["values"], inner["offsets"], lengths, *sizes)
    if apart.name == "torch:nested":
        return _Call(torch._utils._rebuild_nested_tensor, *parts)
    size = tuple(tensor.shape)
    coalesced = (apart.attributes["coalesced"],) if apart.name == "torch:sparse_coo" else ()
    return _Call(torch._utils._rebuild_sparse_tensor, tensor.layout, (*parts, size, *coalesced))


def _strides(shape: Any) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def _storage(fqn: str, kind: Any, count: int, storages: list[str]) -> _Storage:
    storages.append(fqn)
    return _Storage(kind, len(storages) - 1, count)


def _plain(fqn: str, memory: Any, dtype: Any, shape: Any, storages: list[str]) -> _Call:
    """A tensor of these bytes, which lie row-major."""
    storage = _storage(fqn, torch.UntypedStorage, memory.nbytes, storages)
    rebuild = torch._utils._rebuild_tensor_v3
    hooks = collections.OrderedDict[Any, Any]()
    return _Call(rebuild, storage, 0, tuple(shape), _strides(shape), False, hooks, dtype)


def _quantized(fqn: str, tensor: Any, apart: _wrapped.Apart, storages: list[str]) -> _Call:
    codes = apart.inner["int_repr"]
    kind = _QUANTIZED[tensor.dtype]
    storage = _storage(_tree.join(fqn, "int_repr"), kind, codes.numel(), storages)
    about: tuple[Any, ...]
    if "axis" in apart.attributes:
        scales, zeros = (
            _made(_tree.join(fqn, name), apart.inner[name], storages)
            for name in ("scales", "zero_points")
        )
        floats = apart.inner["zero_points"].is_floating_point()
        scheme = torch.per_channel_affine_float_qparams if floats else torch.per_channel_affine
        about = scheme, scales, zeros, apart.attributes["axis"]
    else:
        numbers = apart.attributes["scale"], apart.attributes["zero_point"]
        about = torch.per_tensor_affine, *numbers
    hooks = collections.OrderedDict[Any, Any]()
    shape = tuple(tensor.shape)
    rebuild = torch._utils._rebuild_qtensor
    return _Call(rebuild, storage, 0, shape, _strides(shape), about, False, hooks)
