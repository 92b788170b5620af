"""The writes of one rank: from the items of a save plan to `.distcp` files.

Tensors that a planner finds as they are, in memory of the CPU or of CUDA devices, are given to the engine, which
copies them while it writes. Other tensors are resolved, and copied by torch, when the writer reaches them
(_lazy_tensors.py). Plain values, whose size is not known, and all items that extensions transform are resolved
beforehand.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from varve import _core
from varve._engine import collector_at_rest
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.torch import _by_torch
from varve.torch._devices import cuda_of, on_host
from varve.torch._shards import NUMBERS
from varve.torch.dcp._compat import StorageInfo
from varve.torch.dcp._lazy_tensors import LazyTensors, ThreadModes

#: Wraps a stream and names the inverse transforms; torch's `_StorageWriterTransforms`.
Transform = Callable[[WriteItem, io.BytesIO], tuple[Any, list[str]]]

#: How planners make a resolved item of a state. Torch's default ways give the state's own tensors.
_RESOLVING = ("resolve_data", "lookup_object", "transform_object")


@dataclass(frozen=True)
class FileReport:
    """A written file: its size, and what the engine needs to add its checksums to the index."""

    size: int
    report: bytes


@dataclass(frozen=True)
class Written(WriteResult):
    """A result that also brings the coordinator the report of its file, once for each file."""

    file: FileReport | None = None


def split(items: Sequence[WriteItem], count: int) -> list[list[WriteItem]]:
    """Returns items in at most `count` groups of about the same bytes, each to be a file."""
    if count == 1:
        return [list(items)] if items else []
    groups: list[list[WriteItem]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(items, key=_bytes_of, reverse=True):
        least = sizes.index(min(sizes))
        groups[least].append(item)
        sizes[least] += max(_bytes_of(item), 1)
    return [group for group in groups if group]


def _bytes_of(item: WriteItem) -> int:
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def write_files(
    directory: str,
    files: list[tuple[str, list[WriteItem]]],
    planner: SavePlanner,
    threads: int,
    copy_ahead: int,
    transform: Transform | None,
) -> list[Written]:
    """Writes each file, some at once; durable when this returns. The first failure is raised.

    Of each file that is being written, at most `copy_ahead` bytes and one tensor are resolved.
    """

    def write(file: tuple[str, list[WriteItem]]) -> list[Written]:
        return _write_file(directory, *file, planner, copy_ahead, transform)

    if threads == 1 or len(files) < 2:
        return [result for file in files for result in write(file)]
    modes = ThreadModes()

    def write_apart(file: tuple[str, list[WriteItem]]) -> list[Written]:
        with modes.entered():  # What the caller has queued on its stream comes before the copies.
            return write(file)

    pool = ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="varve-dcp")
    try:
        return [result for results in pool.map(write_apart, files) for result in results]
    finally:
        pool.shutdown(cancel_futures=True)


def _write_file(
    directory: str,
    name: str,
    items: list[WriteItem],
    planner: SavePlanner,
    copy_ahead: int,
    transform: Transform | None,
) -> list[Written]:
    path = os.path.join(directory, name)
    undone_by: list[list[str]] = []
    if transform is not None:
        stored = _core.DcpItems()
        for item in items:
            content, names = _transformed(item, _resolved(item, planner), transform)
            stored.add_archive(item.index.fqn, content)
            undone_by.append(names)
        written = stored.write(path)
    else:
        try:
            written = _write_lazily(path, items, planner, LazyTensors(copy_ahead))
        except _OnlyTorchStores:
            # A subclass made of other tensors, which no plan shows: only torch knows its size.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            written = _write_lazily(path, items, planner, None)
    report = FileReport(written.size, written.report)
    results = []
    for number, (item, (offset, length)) in enumerate(zip(items, written.items, strict=True)):
        info = StorageInfo(name, offset, length)
        if transform is not None and undone_by[number]:
            info.transform_descriptors = undone_by[number]
        results.append(Written(item.index, length, info, None if number else report))
    return results


def _write_lazily(
    path: str, items: list[WriteItem], planner: SavePlanner, lazy: LazyTensors | None
) -> _core.DcpFile:
    """Writes a file. Its tensors are resolved when the engine reaches them; without `lazy`, all beforehand."""
    keep: list[torch.Tensor] = []
    in_memory = resolves_as_torch(planner)
    stored = _core.DcpItems()
    with collector_at_rest():
        for item in items:
            _add(stored, item, planner, in_memory, lazy, keep)
    return stored.write(path)


def resolves_as_torch(planner: SavePlanner) -> bool:
    """Returns True for planners that resolve to the state's tensors, as torch's default does."""
    return isinstance(planner, DefaultSavePlanner) and all(
        getattr(type(planner), name) is getattr(DefaultSavePlanner, name) for name in _RESOLVING
    )


def _resolved(item: WriteItem, planner: SavePlanner) -> Any:
    data = planner.resolve_data(item)
    _check(item, data)
    return data


def _check(item: WriteItem, data: Any) -> None:
    """Refuses a tensor that does not agree with the plan: no reader could decode it."""
    fqn = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        if not isinstance(data, io.BytesIO):
            raise InvalidArgumentError(
                f'"{fqn}": the planner resolved a {type(data).__name__}, not a BytesIO'
            )
        return
    if not isinstance(data, torch.Tensor):
        raise InvalidArgumentError(
            f'"{fqn}": the planner resolved a {type(data).__name__}, not a tensor'
        )
    planned = item.tensor_data
    if planned is None:
        raise InvalidArgumentError(f'"{fqn}": the plan has a tensor without its size')
    if data.dtype != planned.properties.dtype or data.shape != planned.chunk.sizes:
        raise InvalidArgumentError(
            f'"{fqn}": the planner resolved {data.dtype} {list(data.shape)}, its plan says '
            f"{planned.properties.dtype} {list(planned.chunk.sizes)}"
        )


def _add(
    stored: _core.DcpItems,
    item: WriteItem,
    planner: SavePlanner,
    in_memory: bool,
    lazy: LazyTensors | None,
    keep: list[torch.Tensor],
) -> None:
    """Adds an item. `in_memory`: resolving takes no memory of its own."""
    fqn = item.index.fqn
    if lazy is not None and not in_memory and _has_known_size(item):
        _add_lazy(stored, item, lambda: _resolved(item, planner), lazy)
        return
    data = _resolved(item, planner)
    if isinstance(data, io.BytesIO):
        stored.add_archive(fqn, data.getvalue())
        return
    if not is_here(data):
        if lazy is not None and _has_known_size(item) and _dense(data) is not None:
            _add_lazy(stored, item, lambda: data, lazy)
            return
        if not _by_torch.is_wrapper(data):
            data = data.cpu()
    if not add_tensor(stored, fqn, data, keep):
        try:
            content = _archive(data)
        except Exception as error:  # Whatever a class raises that cannot be pickled.
            raise UnsupportedError(
                f'tensor "{fqn}": torch cannot pickle this {type(data).__name__} '
                f"({type(error).__name__}: {error})"
            ) from error
        stored.add_archive(fqn, content)


def _has_known_size(item: WriteItem) -> bool:
    """Returns True for a tensor that the engine can lay out by its plan, and that has elements."""
    planned = item.tensor_data
    return (
        item.type != WriteItemType.BYTE_IO
        and planned is not None
        and planned.properties.dtype in NUMBERS
        and planned.properties.layout is torch.strided
        and math.prod(planned.chunk.sizes) > 0
    )


def _add_lazy(
    stored: _core.DcpItems, item: WriteItem, resolve: Callable[[], torch.Tensor], lazy: LazyTensors
) -> None:
    """Adds an item whose tensor is resolved, and copied to the CPU, when the file has come to it."""
    planned = item.tensor_data
    assert planned is not None

    def dense() -> torch.Tensor:
        tensor = _dense(on_host(resolve()))
        if tensor is None:
            raise _OnlyTorchStores
        return tensor.contiguous()

    number = NUMBERS[planned.properties.dtype]
    stored.add_produced(item.index.fqn, number, planned.chunk.sizes, lazy.add(dense))


class _OnlyTorchStores(Exception):
    """A tensor turned out to be one that the engine cannot store, in the middle of its file."""


def is_here(tensor: torch.Tensor) -> bool:
    """Returns True for memory that the engine reads where it is."""
    if tensor.is_cpu:
        return True
    return not _by_torch.is_wrapper(tensor) and cuda_of(tensor.detach()) is not None


def add_tensor(
    stored: _core.DcpItems, fqn: str, data: torch.Tensor, keep: list[torch.Tensor]
) -> bool:
    """Adds a tensor in memory of the CPU or of a device; False for what only torch can store.

    The memory lives as long as what is appended to `keep`.
    """
    tensor = _dense(data)
    if tensor is None:
        return False
    keep.append(tensor)
    strides = None if tensor.is_contiguous() else tensor.stride()
    cuda = cuda_of(tensor)
    number, address = NUMBERS[tensor.dtype], tensor.data_ptr()
    stored.add_tensor(fqn, number, tensor.shape, address, strides, cuda)
    return True


def _dense(data: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor with its elements as stored; None for those only torch can store."""
    if _by_torch.is_wrapper(data):
        return None  # Its operators may be few, and make plain tensors of it.
    tensor = data.detach()
    if tensor.dtype not in NUMBERS or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        return None  # A subclass that is made of other tensors.
    return tensor


def _archive(tensor: torch.Tensor) -> bytes:
    """Returns torch's archive of a tensor that only torch can store."""
    stream = io.BytesIO()
    with (
        torch._C.DisableTorchFunctionSubclass()
    ):  # A class may make a plain tensor of what is asked of it.
        torch.save(_by_torch.on_cpu(tensor), stream)
    return stream.getvalue()


def _transformed(item: WriteItem, data: Any, transform: Transform) -> tuple[bytes, list[str]]:
    raw = io.BytesIO()
    stream, names = transform(item, raw)
    if isinstance(data, io.BytesIO):
        stream.write(data.getbuffer())
    else:
        tensor = on_host(data)
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()  # A view would take its whole storage along.
        torch.save(tensor, stream)
    stream.close()
    return raw.getvalue(), names
