"""Tensors that are made of other tensors: taken apart for a save, put together after a read.

Of torch's wrapper subclasses (torchao's weights and optimizer states, Float8Tensor, TwoTensor, NF4) the
protocol `__tensor_flatten__` names the inner tensors and gives the attributes. Sparse, nested and quantized
tensors and those of packed dtypes are taken apart by rules here, each under a name "torch:kind".

A class is never imported for the sake of a file: `varve._classes.find` has those that the program has.

How what is inside follows the shards of a DTensor around it: `_following`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from varve import _classes, _core
from varve._values import TensorLeaf, Wrapped
from varve._warn import warn
from varve.errors import CorruptCheckpointError, Error, InvalidArgumentError
from varve.torch import _following, _layout
from varve.torch._shards import (
    NUMBERS,
    Part,
    Share,
    boxes_of,
    dtensor_around,
    is_dtensor,
    stretches_of,
)

#: The names of the inner tensors of sparse layouts, by the layout.
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


_LAYOUTS = {str(layout).removeprefix("torch."): layout for layout in COMPRESSED}


class Apart:
    """A tensor taken apart.

    Attributes:
        name: The class, as `_classes.name_of` has it, or "torch:kind".
        attributes: The rest that the class makes one of, besides the inner tensors; a plain value.
        inner: The inner tensors by name; a `Part` where this rank holds a part of it.
        in_place: Whether filling the inner tensors fills the tensor.
    """

    def __init__(
        self, name: str, attributes: Any, inner: dict[str, Any], in_place: bool = True
    ) -> None:
        self.name = name
        self.attributes = attributes
        self.inner = inner
        self.in_place = in_place


def take_apart(fqn: str, tensor: Any) -> Apart | None:
    """Returns the parts of a tensor that has inner tensors, None for one that has not.

    Args:
        fqn: Its name, for messages.
        tensor: Any tensor, on any device.

    Raises:
        InvalidArgumentError: It can be neither stored as it is nor taken apart.
    """
    if isinstance(tensor, Share):
        apart = take_apart(fqn, tensor.local)
        assert apart is not None
        apart.inner = _shares(fqn, tensor, apart)
        return apart
    if not isinstance(tensor, torch.Tensor):
        return None
    if is_dtensor(tensor):
        apart = take_apart(fqn, tensor._local_tensor)
        if apart is not None and tensor.device_mesh.get_coordinate() is not None:
            share = Share(tensor.shape, stretches_of(fqn, tensor), tensor._local_tensor)
            apart.inner = _shares(fqn, share, apart)
        return apart
    # First, since a wrapper may answer for its inner tensors; a jagged one is nested by a class of torch's.
    if hasattr(type(tensor), "__tensor_flatten__") and not tensor.is_nested:
        apart = _flattened(fqn, tensor)
        below = (take_apart(fqn, inner) for inner in apart.inner.values())
        apart.in_place = all(each is None or each.in_place for each in below)
        return apart
    for taker in (_sparse, _nested, _quantized):
        taken = taker(fqn, tensor)
        if taken is not None:
            return taken
    if tensor.dtype not in NUMBERS and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return Apart("torch:bytes", {"dtype": tensor.dtype}, {"bytes": _bytes(tensor)})
    return None


def text_of(fqn: str, tensor: Any, apart: Apart) -> bytes:
    """Returns what a structure says of a tensor: its class, attributes, shape, strides and dtype.

    Raises:
        InvalidArgumentError: An attribute is no plain value.
    """
    distributed = is_dtensor(tensor)
    sharded = distributed and any(not each.is_replicate() for each in tensor.placements)
    if isinstance(tensor, Share):
        sharded, whole = True, torch.empty(tensor.shape, dtype=tensor.local.dtype, device="meta")
    else:
        whole = tensor
    about = (_attributes(tensor, apart), *_geometry(whole), whole.dtype, sharded)
    try:
        encoded = _core.encode_value(about, f"{fqn} (the attributes of a {apart.name})", False)
    except Error as error:
        raise InvalidArgumentError(f'tensor "{fqn}" cannot be stored: {error}') from None
    return apart.name.encode() + b"\0" + bytes(encoded)


def _attributes(tensor: Any, apart: Apart) -> Any:
    """Returns the attributes of the whole of a tensor of which this rank may hold a shard; no device is told."""
    attributes = _following.on_device(apart.attributes, torch.device("cpu"))
    distributed = is_dtensor(tensor)
    local = tensor._local_tensor if distributed else getattr(tensor, "local", None)
    if local is None or local.is_nested:
        return attributes
    return _following.of_whole(attributes, tuple(local.shape), tuple(tensor.shape))


def _geometry(tensor: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns shape and strides; None for a dimension that has no one size (of nested tensors)."""
    if tensor.is_nested:
        sizes = (tensor.size(0), *[None] * (tensor.dim() - 1))
        return sizes, ()
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(map(int, tensor.shape)), tuple(map(int, strides))


def difference(tensor: Any, apart: Apart, stored: Wrapped, cast: bool) -> str:
    """Returns in what a stored tensor is another than one to fill; "" where it fits.

    Args:
        tensor: The tensor to fill.
        apart: The same, taken apart.
        stored: What a checkpoint has under its name.
        cast: Another class with the same inner tensors and attributes will do, also of another dtype.
    """
    name, about = _read_text(stored.text)
    shown = name.replace(":", ".")
    if name != apart.name and not cast:
        return f"a {shown}, wanted a {apart.name.replace(':', '.')}"
    if list(stored) != list(apart.inner):
        return f"a {shown} of {', '.join(stored)}, wanted {', '.join(apart.inner)}"
    shape = tensor.shape if isinstance(tensor, Share) else _geometry(tensor)[0]
    if tuple(about[1]) != tuple(shape):
        return f"a {shown} of shape {list(about[1])}, wanted {list(shape)}"
    if name in _MAKERS:  # It is replaced, or has no attribute besides.
        dtype = tensor.local.dtype if isinstance(tensor, Share) else tensor.dtype
        return "" if cast or about[3] == dtype else f"a {shown} of {about[3]}, wanted {dtype}"
    passed = (torch.device, *((torch.dtype,) if cast else ()))
    unlike = _unlike(about[0], _plain(_attributes(tensor, apart)), passed)
    of_shards = " (of its shards: only the same layout loads it)" if about[4] else ""
    return f"a {shown} with other attributes: {unlike}{of_shards}" if unlike else ""


def packed(apart: Apart, stored: Wrapped, shape_of: Callable[[str], tuple[int, ...]]) -> str:
    """Returns which inner tensors do not follow the shards that were saved and are of another size here; or "".

    Args:
        apart: A tensor to fill, taken apart.
        stored: What is stored under its name.
        shape_of: Gives the stored shape of an inner tensor.
    """
    name, about = _read_text(stored.text)
    if not about[4]:
        return ""
    plain = {
        each: tuple(inner.shape)
        for each, inner in apart.inner.items()
        if isinstance(inner, torch.Tensor) and isinstance(stored[each], TensorLeaf)
    }
    own = [each for each, shape in plain.items() if shape_of(each) != shape]
    return (
        f"a {name.replace(':', '.')} in shards, of which each has {' and '.join(own)} for itself: only the same layout "
        "loads it"
        if own
        else ""
    )


def _unlike(stored: Any, wanted: Any, passed: tuple[type, ...]) -> str:
    """Returns the attributes that differ; those of the types `passed` do not count."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        names = [*stored, *(name for name in wanted if name not in stored)]
        pairs = [(str(name), stored.get(name), wanted.get(name)) for name in names]
    elif isinstance(stored, (list, tuple)) and isinstance(wanted, (list, tuple)):
        if len(stored) != len(wanted):
            return f"{len(stored)} of them, wanted {len(wanted)}"
        pairs = [(str(i), *pair) for i, pair in enumerate(zip(stored, wanted, strict=True))]
    else:
        pairs = [("", stored, wanted)]
    said = [
        f"{name} {ours!r}, wanted {theirs!r}"
        for name, ours, theirs in pairs
        if not (isinstance(ours, passed) or isinstance(theirs, passed) or _same(ours, theirs))
    ]
    return "; ".join(said)


def _same(ours: Any, theirs: Any) -> bool:
    return bool(_core.encode_value(ours, "", False) == _core.encode_value(theirs, "", False))


def _plain(value: Any) -> Any:
    """Returns a value as it comes back from a checkpoint."""
    return _core.decode_value(_core.encode_value(value, "", False))


def _read_text(text: bytes) -> tuple[str, tuple[Any, ...]]:
    name, about = _classes.split(text)
    return name, _core.decode_value(about)


def put_together(text: bytes, inner: dict[str, Any], fqn: str) -> Any:
    """Returns a tensor made of its inner ones, or these where the program does not have the class."""
    with _classes.quietly():
        name, (attributes, shape, strides, *_) = _read_text(text)
    maker = _MAKERS.get(name)
    if maker is not None:
        return maker(attributes, inner, shape)
    kind = _classes.find(name)
    if kind is None or not hasattr(kind, "__tensor_unflatten__"):
        warn(
            f'"{fqn}" is a {name.replace(":", ".")}, which the program has not imported: its inner '
            f"tensors ({', '.join(inner)}) come back as a dict",
            UserWarning,
        )
        return inner
    try:
        made = unflatten(kind, inner, attributes, shape, strides)
    except Exception as error:  # Whatever a class raises that is another one than it was.
        warn(
            f'"{fqn}" is a {name.replace(":", ".")}, and the class does not make one of what was saved '
            f"({type(error).__name__}: {error}): its inner tensors ({', '.join(inner)}) come back as a dict",
            UserWarning,
        )
        return inner
    if tuple(made.shape) != tuple(shape):
        warn(
            f'"{fqn}" was saved from shards of a {name.replace(":", ".")}, and the class makes none of '
            f"shape {tuple(shape)} of them: its inner tensors ({', '.join(inner)}) come back as a dict",
            UserWarning,
        )
        return inner
    return made


def like(tensor: Any, apart: Apart, device: Any) -> Any:
    """Returns a tensor with memory in place of one on the meta device, of the same parts."""
    if is_dtensor(tensor):
        local = tensor._local_tensor
        local_apart = take_apart("", local)
        assert local_apart is not None
        return dtensor_around(like(local, local_apart, tensor.device_mesh.device_type), tensor)
    inner = {name: torch.empty_like(each, device=device) for name, each in apart.inner.items()}
    maker = _MAKERS.get(apart.name)
    if maker is not None:
        return maker(apart.attributes, inner, tuple(tensor.shape))
    return unflatten(type(tensor), inner, apart.attributes, tensor.shape, tensor.stride())


def unflatten(kind: Any, inner: dict[str, Any], attributes: Any, shape: Any, strides: Any) -> Any:
    """Returns a tensor that the class makes of inner ones, with all of them and on their device."""
    device = next((each.device for each in inner.values()), torch.device("cpu"))
    attributes = _following.on_device(attributes, device)
    made = kind.__tensor_unflatten__(inner, attributes, torch.Size(shape), tuple(strides))
    for name in inner.keys() - set(made.__tensor_flatten__()[0]):
        setattr(made, name, inner[name])  # A class of torchao's forgets a scale.
    return made


def _flattened(fqn: str, tensor: Any) -> Apart:
    """A subclass with torch's protocol of wrappers."""
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        raise InvalidArgumentError(
            f'tensor "{fqn}": the collective that fills it has not been waited for; save tensor.wait()'
        )
    names, attributes = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    for name, each in inner.items():
        if not isinstance(each, torch.Tensor):
            raise InvalidArgumentError(
                f'tensor "{fqn}": the inner tensor {name} of a {type(tensor).__name__} is a '
                f"{type(each).__name__}"
            )
    return Apart(_classes.name_of(type(tensor)), attributes, inner)


def _sparse(_fqn: str, tensor: Any) -> Apart | None:
    if tensor.layout is torch.sparse_coo:
        inner = {"indices": tensor._indices(), "values": tensor._values()}
        attributes = {"coalesced": tensor.is_coalesced()}
        return Apart("torch:sparse_coo", attributes, inner, in_place=False)
    names = COMPRESSED.get(tensor.layout)
    if names is None:
        return None
    inner = {name: getattr(tensor, name)() for name in (*names, "values")}
    name = str(tensor.layout).removeprefix("torch.")
    return Apart(f"torch:{name}", {"layout": name}, inner, in_place=False)


def _nested(fqn: str, tensor: Any) -> Apart | None:
    if not tensor.is_nested:
        return None
    if tensor.layout is not torch.jagged:
        inner = {
            "values": tensor.values(),
            "sizes": tensor._nested_tensor_size(),
            "strides": tensor._nested_tensor_strides(),
            "storage_offsets": tensor._nested_tensor_storage_offsets(),
        }
        return Apart("torch:nested", {}, inner, in_place=False)
    inner = {"values": tensor.values(), "offsets": tensor.offsets()}
    if tensor.lengths() is not None:
        inner["lengths"] = tensor.lengths()
    attributes = {
        "ragged_idx": tensor._ragged_idx,
        "min_seqlen": tensor._maybe_min_seqlen,
        "max_seqlen": tensor._maybe_max_seqlen,
    }
    return Apart("torch:jagged", attributes, inner, in_place=False)


def _quantized(_fqn: str, tensor: Any) -> Apart | None:
    if not tensor.is_quantized:
        return None
    inner = {"int_repr": _codes(tensor)}
    attributes = {"dtype": tensor.dtype}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        attributes |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    else:
        attributes["axis"] = tensor.q_per_channel_axis()
        inner["scales"] = tensor.q_per_channel_scales()
        inner["zero_points"] = tensor.q_per_channel_zero_points()
    return Apart("torch:quantized", attributes, inner, in_place=False)


_CODES = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}


def _codes(tensor: Any) -> torch.Tensor:
    """Returns the memory of a quantized tensor; of a packed one its bytes."""
    code = _CODES.get(tensor.dtype)
    storage = tensor.untyped_storage()
    alias: Any = torch.empty(0, dtype=code or torch.uint8, device=tensor.device)
    if code is None:
        alias.set_(storage, 0, (storage.nbytes(),))
    else:
        alias.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    made: torch.Tensor = alias
    return made


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a tensor as bytes: those of an element are a dimension of its own."""
    size = tensor.element_size()
    alias = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    strides = tuple(step * size for step in tensor.stride())
    start = tensor.storage_offset() * size
    if size == 1:
        return alias.set_(tensor.untyped_storage(), start, tensor.shape, strides)
    return alias.set_(tensor.untyped_storage(), start, (*tensor.shape, size), (*strides, 1))


def _make_coo(attributes: Any, inner: dict[str, Any], shape: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        inner["indices"],
        inner["values"],
        tuple(shape),
        is_coalesced=attributes["coalesced"],
        check_invariants=True,
    )


def _make_compressed(attributes: Any, inner: dict[str, Any], shape: Any) -> torch.Tensor:
    layout = _LAYOUTS[attributes["layout"]]
    rows, columns = COMPRESSED[layout]
    return torch.sparse_compressed_tensor(
        inner[rows],
        inner[columns],
        inner["values"],
        tuple(shape),
        layout=layout,
        check_invariants=True,
    )


def _make_nested(_attributes: Any, inner: dict[str, Any], _shape: Any) -> torch.Tensor:
    made: torch.Tensor = torch._nested_view_from_buffer(
        inner["values"], inner["sizes"], inner["strides"], inner["storage_offsets"]
    )
    return made


def _make_jagged(attributes: Any, inner: dict[str, Any], _shape: Any) -> torch.Tensor:
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        inner["values"],
        inner["offsets"],
        inner.get("lengths"),
        jagged_dim=attributes["ragged_idx"],
        min_seqlen=attributes["min_seqlen"],
        max_seqlen=attributes["max_seqlen"],
    )
    return made


def _make_quantized(attributes: Any, inner: dict[str, Any], shape: Any) -> torch.Tensor:
    dtype, codes = attributes["dtype"], inner["int_repr"]
    if "axis" in attributes:
        made = torch._empty_per_channel_affine_quantized(
            tuple(shape),
            scales=inner["scales"],
            zero_points=inner["zero_points"],
            axis=attributes["axis"],
            dtype=dtype,
        )
    else:
        made = torch._empty_affine_quantized(
            tuple(shape),
            scale=attributes["scale"],
            zero_point=attributes["zero_point"],
            dtype=dtype,
        )
    memory = _codes(made)
    if memory.shape != codes.shape:
        raise CorruptCheckpointError(
            f"codes of shape {tuple(codes.shape)} are stored for {dtype} of shape {tuple(shape)}"
        )
    memory.copy_(codes)
    return made


def _make_bytes(attributes: Any, inner: dict[str, Any], shape: Any) -> torch.Tensor:
    content = inner["bytes"].contiguous()
    if content.numel() != math.prod(shape) * attributes["dtype"].itemsize:
        raise CorruptCheckpointError(
            f"{content.numel()} bytes are stored for {attributes['dtype']} of shape {tuple(shape)}"
        )
    made: torch.Tensor = torch.empty(0, dtype=attributes["dtype"], device=content.device)
    storage: Any = content.untyped_storage()
    steps = torch.empty(shape, device="meta").stride()
    return made.set_(storage, 0, tuple(shape), steps)


_MAKERS: dict[str, Callable[[Any, dict[str, Any], Any], torch.Tensor]] = {
    "torch:sparse_coo": _make_coo,
    **{f"torch:{str(layout).removeprefix('torch.')}": _make_compressed for layout in COMPRESSED},
    "torch:nested": _make_nested,
    "torch:jagged": _make_jagged,
    "torch:quantized": _make_quantized,
    "torch:bytes": _make_bytes,
}


def _shares(fqn: str, share: Share, apart: Apart) -> dict[str, Any]:
    """Returns the inner tensors of a local tensor, as the parts that this rank holds of them."""
    dims = share.dims
    if all(stretch == [(0, size)] for stretch, size in zip(dims, share.shape, strict=True)):
        return apart.inner
    if not apart.in_place:
        raise InvalidArgumentError(
            f'tensor "{fqn}": a DTensor whose shards are {apart.name.replace("torch:", "")} tensors is not '
            "stored; save its shards under names of their own"
        )
    local = tuple(share.local.shape)
    shares: dict[str, Any] = {}
    for name, inner in apart.inner.items():
        if 0 in local and 0 in inner.shape:  # This rank holds nothing, and knows no more.
            shares[name] = Part(share.shape, [], inner.dtype)
            continue
        rule = _following.rule(apart.name, name, apart.attributes)
        followed = _layout.follow(share.shape, dims, local, tuple(inner.shape), rule)
        if followed is None:
            shares[name] = inner
        elif take_apart(fqn, inner) is not None:
            shares[name] = Share(*followed, inner)
        else:
            shares[name] = Part(followed[0], boxes_of(inner, followed[1]), inner.dtype)
    return shares
