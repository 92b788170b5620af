"""What one rank writes: from the items of a save plan to `.distcp` files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from varve import _core
from varve._engine import collector_at_rest
from varve.errors import InvalidArgumentError
from varve.torch._tensors import _NUMBERS

#: Wraps a stream and names what undoes it; torch's `_StorageWriterTransforms`.
Transform = Callable[[WriteItem, io.BytesIO], tuple[Any, list[str]]]


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
    """Items in at most `count` groups of about the same bytes, each to be a file."""
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
    transform: Transform | None,
) -> list[Written]:
    """Writes each file, some at once; durable when this returns. The first failure is raised."""

    def write(file: tuple[str, list[WriteItem]]) -> list[Written]:
        return _write_file(directory, *file, planner, transform)

    if threads == 1 or len(files) < 2:
        return [result for file in files for result in write(file)]
    pool = ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="varve-dcp")
    try:
        return [result for results in pool.map(write, files) for result in results]
    finally:
        pool.shutdown(cancel_futures=True)


def _write_file(
    directory: str,
    name: str,
    items: list[WriteItem],
    planner: SavePlanner,
    transform: Transform | None,
) -> list[Written]:
    keep: list[torch.Tensor] = []
    stored: list[tuple[Any, ...]] = []
    undone_by: list[list[str]] = []
    with collector_at_rest():
        for item in items:
            data = planner.resolve_data(item)
            _check(item, data)
            if transform is None:
                stored.append(_engine_item(item, data, keep))
            else:
                content, names = _transformed(item, data, transform)
                stored.append((item.index.fqn, content))
                undone_by.append(names)
    written = _core.write_dcp_file(os.path.join(directory, name), stored, {})
    report = FileReport(written["size"], written["report"])
    results = []
    for number, (item, (offset, length)) in enumerate(zip(items, written["items"], strict=True)):
        info = _StorageInfo(name, offset, length)
        if transform is not None and undone_by[number]:
            info.transform_descriptors = undone_by[number]
        results.append(Written(item.index, length, info, None if number else report))
    return results


def _check(item: WriteItem, data: Any) -> None:
    """Refuses what does not agree with the plan: no reader could make sense of it."""
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


def _engine_item(item: WriteItem, data: Any, keep: list[torch.Tensor]) -> tuple[Any, ...]:
    fqn = item.index.fqn
    if isinstance(data, io.BytesIO):
        return fqn, data.getvalue()
    if not data.is_cpu:
        data = data.cpu()
    return engine_tensor(fqn, data, keep) or (fqn, _archive(data))


def engine_tensor(fqn: str, data: torch.Tensor, keep: list[torch.Tensor]) -> tuple[Any, ...] | None:
    """A tensor in CPU memory as the engine takes it; None for what only torch can store.

    The memory lives as long as what is appended to `keep`.
    """
    tensor = data.detach()
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    address = tensor.data_ptr()
    if address == 0 and tensor.numel() > 0:
        return None  # A subclass that is made of other tensors.
    keep.append(tensor)
    strides = None if tensor.is_contiguous() else tensor.stride()
    return fqn, number, tuple(tensor.shape), address, strides


def _archive(tensor: torch.Tensor) -> bytes:
    """What only torch can store, as torch stores it."""
    stream = io.BytesIO()
    torch.save(tensor.detach().cpu(), stream)
    return stream.getvalue()


def _transformed(item: WriteItem, data: Any, transform: Transform) -> tuple[bytes, list[str]]:
    raw = io.BytesIO()
    stream, names = transform(item, raw)
    if isinstance(data, io.BytesIO):
        stream.write(data.getbuffer())
    else:
        tensor = data.detach().cpu()
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()  # A view would take its whole storage along.
        torch.save(tensor, stream)
    stream.close()
    return raw.getvalue(), names
