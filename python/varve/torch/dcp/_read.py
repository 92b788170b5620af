"""The reads of one rank: from the items of a load plan to the planner's memory."""

from __future__ import annotations

import functools
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from varve import _core
from varve._core import states, storage
from varve._engine import collector_at_rest
from varve.errors import CheckpointNotFoundError, InvalidArgumentError
from varve.torch import _by_torch, _wrapped
from varve.torch._devices import cuda_of
from varve.torch._shards import NUMBERS, Share, overlaps
from varve.torch.dcp._metadata import Stored, dtype_of

#: Tensors are read in batches of so many bytes, which bounds the memory of planners and copies.
_BATCH_BYTES = 1 << 30

_ZSTD = b"\x28\xb5\x2f\xfd"


class PlanReader:
    """Carries out load plans on one open checkpoint."""

    def __init__(self, reader: _core.Reader, storage_data: Mapping[MetadataIndex, Any]) -> None:
        self._reader = reader
        self._storage = storage_data
        self._extents = reader.object_extents()
        #: Shards made of other tensors that are filled, by name and offsets.
        self._wrapped: set[tuple[str, tuple[int, ...]]] = set()

    def read(
        self, plan: LoadPlan, planner: LoadPlanner, request: states.LoadRequest | None = None
    ) -> None:
        """Fills all that the plan and the request ask for, or raises. Values are read first, put in place last."""
        tensors = [item for item in plan.items if item.type != LoadItemType.BYTE_IO]
        values = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        contents = [self._content(self._stored(item).fqn) for item in values]
        self._wrapped.clear()
        if request is not None:
            self._load(request)
        with collector_at_rest():
            for batch in self._batches(tensors):
                self._fill(batch, planner)
        for item, content in zip(values, contents, strict=True):
            planner.load_bytes(item, io.BytesIO(content))

    def needed(self, plan: LoadPlan) -> states.LoadRequest:
        """Returns a request for the tensors of a plan that are stored, which has no memory for them."""
        request = states.LoadRequest()
        for item in plan.items:
            stored = self._stored(item)
            number, shape = self._tensors.get(stored.fqn, (0, ()))
            begin = [a + b for a, b in zip(stored.offsets, item.storage_offsets, strict=False)]
            if len(begin) == len(item.lengths) == len(shape) > 0:
                request.add(stored.fqn, number, shape, 0, None, begin, item.lengths)
        return request

    def _stored(self, item: ReadItem) -> Stored:
        index = item.storage_index
        stored = self._storage.get(index)
        if isinstance(stored, Stored):
            return stored
        # Metadata that another reader has made.
        return Stored("", 0, 0, fqn=index.fqn, offsets=tuple(index.offset or ()))

    def _batches(self, items: list[ReadItem]) -> Iterator[list[ReadItem]]:
        batch: list[ReadItem] = []
        size = 0
        for item in items:
            batch.append(item)
            dtype = dtype_of(item.storage_index.fqn, self._tensor(self._stored(item).fqn)[0])
            size += math.prod(item.lengths) * dtype.itemsize
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    @functools.cached_property
    def _tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        return self._reader.tensors()

    def _load(self, request: states.LoadRequest) -> None:
        self._reader.load(request, _core.LoadOptions(strict=False, on_difference="first"), None)

    def _tensor(self, fqn: str) -> tuple[int, tuple[int, ...]]:
        try:
            return self._tensors[fqn]
        except KeyError:
            raise CheckpointNotFoundError(
                f'{self._reader.directory} holds no tensor "{fqn}"'
            ) from None

    def _fill(self, items: list[ReadItem], planner: Any) -> None:
        request = states.LoadRequest()
        filled: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        by_torch: Any = (
            isinstance(planner, DefaultLoadPlanner)
            and type(planner).resolve_tensor is DefaultLoadPlanner.resolve_tensor
        )
        for item in items:
            whole: Any = planner.lookup_tensor(item.dest_index) if by_torch else None
            if _by_torch.is_wrapper(whole):
                self._fill_wrapped(item, whole, [0] * whole.dim())
                planner.commit_tensor(item, whole)
                continue
            resolved = (
                planner.transform_tensor(item, whole) if by_torch else planner.resolve_tensor(item)
            )
            if _by_torch.is_wrapper(resolved):
                self._fill_wrapped(item, resolved, item.dest_offsets)
                planner.commit_tensor(item, resolved)
                continue
            tensor = resolved.detach()
            stored = self._stored(item)
            if tensor.shape != item.lengths:
                raise InvalidArgumentError(
                    f'"{item.dest_index.fqn}": the planner resolved a tensor of size '
                    f"{list(tensor.shape)} for a read of size {list(item.lengths)}"
                )
            number, shape = self._tensor(stored.fqn)
            memory = tensor
            if not can_be_filled(tensor, number):
                memory = torch.empty(item.lengths, dtype=dtype_of(stored.fqn, number), device="cpu")
            filled.append((item, tensor, memory))
            if memory.numel() > 0:
                begin = [a + b for a, b in zip(stored.offsets, item.storage_offsets, strict=True)]
                strides = None if memory.is_contiguous() else memory.stride()
                address = memory.data_ptr()
                cuda = cuda_of(memory)
                lengths = item.lengths
                request.add(stored.fqn, number, shape, address, strides, begin, lengths, cuda)
        self._load(request)
        for item, tensor, memory in filled:
            if memory is not tensor:
                tensor.copy_(memory)
            planner.commit_tensor(item, tensor)

    def _fill_wrapped(self, item: ReadItem, tensor: torch.Tensor, at: Sequence[int]) -> None:
        """Fills a tensor that is made of others, at an offset in its shard, from those that torch has pickled.

        Not by operators of its class, which may be few, or round.
        """
        stored = self._stored(item)
        index = item.dest_index
        shard = index.offset or [0] * tensor.dim()
        offsets = tuple(a + b for a, b in zip(shard, at, strict=True))
        if (index.fqn, offsets) in self._wrapped:
            return  # One read fills all of it.
        self._wrapped.add((index.fqn, offsets))
        dims = [[(low, low + size)] for low, size in zip(offsets, tensor.shape, strict=True)]
        share = Share(self._tensor(stored.fqn)[1], dims, tensor)
        apart = _wrapped.take_apart(index.fqn, share)
        assert apart is not None
        unlike, fill = _by_torch.plan(self._reader, stored.fqn, share, apart)
        if unlike or not apart.in_place:
            wanted = apart.name.replace(":", ".")
            raise InvalidArgumentError(
                f'"{index.fqn}": {unlike or "what cannot be filled in place"} is stored, wanted a {wanted}'
            )
        fill()

    def _content(self, fqn: str) -> bytes:
        """Returns a value's torch.save archive, as stored or made anew."""
        extent = self._extents.get(fqn)
        if self._reader.format == "dcp" and extent is not None:
            name, begin, end = extent
            path = os.path.join(self._reader.directory, name)
            content = storage.read_bytes(path, begin, end)
            if not content.startswith(_ZSTD):
                _by_torch.check_archive(content, f'"{fqn}" in {path} at {begin}')
                return content
            # Compressed. Its content goes to an unpickler in any case, as with torch's planner.
            return _saved(self._reader.objects([fqn], True)[0])
        return _saved(self._reader.objects([fqn], False)[0])


def can_be_filled(tensor: torch.Tensor, number: int) -> bool:
    """Returns True when the engine can write the stored elements where the tensor has them."""
    return (
        (tensor.is_cpu or cuda_of(tensor) is not None)
        and tensor.layout is torch.strided
        and NUMBERS.get(tensor.dtype) == number
        and not (tensor.is_conj() or tensor.is_neg())
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
        and (tensor.is_contiguous() or not overlaps(tensor))
    )


def _saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
