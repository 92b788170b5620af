"""Copies of state dicts in memory that is kept from save to save."""

from __future__ import annotations

import contextlib
import copy
import errno
import mmap
import threading
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from varve._core import background
from varve.errors import OutOfSpaceError
from varve.torch import _by_torch
from varve.torch._devices import cuda_of, on_host
from varve.torch._shards import NUMBERS
from varve.torch.dcp._compat import copy_state_dict, create_cpu_state_dict

#: Between tensors in a buffer: a cache line, so that no two threads write to one.
_ALIGNMENT = 64

#: Bytes of a huge page. The first touch of memory costs 10-60 times its reuse, and less in huge pages.
_HUGE_PAGE = 2 << 20


class StateCopier:
    """Copies states one after the other, each into a buffer of its own that is used again later.

    A buffer is chosen by its size alone and written to in full, so nothing of an earlier state is ever
    read. There are as many as there were copies in use at once.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def copy(self, state: dict[str, Any]) -> StateCopy:
        """Returns a copy of a state: tensors on the CPU, everything else by `copy.deepcopy`."""
        return StateCopy(self, state)

    def take(self, size: int) -> torch.Tensor:
        """Returns a buffer of at least that many bytes: the smallest that fits, or a new one."""
        with self._lock:
            self._free.sort(key=lambda buffer: buffer.nbytes)
            for i, buffer in enumerate(self._free):
                if buffer.nbytes >= size:
                    return self._free.pop(i)
            self._free.clear()  # All too small: the next copies will be of this size.
        return _mapped(size)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Makes a buffer free for others."""
        with self._lock:
            self._free.append(buffer)


def _mapped(size: int) -> torch.Tensor:
    """Returns new memory, which the system takes back with the last view of it.

    A forked child does not inherit it, and must not touch it: no pages are copied for the child.
    """
    try:
        memory = mmap.mmap(
            -1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
    except (OSError, OverflowError) as error:
        raise OutOfSpaceError(
            f"no memory for a copy of {size} bytes", errno=errno.ENOMEM
        ) from error
    with contextlib.suppress(OSError):  # A kernel without huge pages.
        memory.madvise(mmap.MADV_HUGEPAGE)
    memory.madvise(mmap.MADV_DONTFORK)
    return torch.frombuffer(memory, dtype=torch.uint8)


class StateCopy:
    """One copy. `state` may be used until `release`."""

    def __init__(self, copier: StateCopier, state: dict[str, Any]) -> None:
        self._copier = copier
        self._size = 0
        #: (offset, source, device and stream, name): elements in order, which the engine copies.
        self._reached: list[tuple[int, torch.Tensor, tuple[int, int] | None, str]] = []
        #: (place, source): all others.
        self._others: list[tuple[_Place, torch.Tensor]] = []
        self._memory: torch.Tensor | None = None
        plan = self._plan(state)
        try:
            self._fill()
            self.state: dict[str, Any] = self._build(plan)
        except BaseException:
            self.release()
            raise
        self._reached.clear()
        self._others.clear()

    def release(self) -> None:
        """Gives the memory back; `state` must not be used any more."""
        self.state = {}
        memory, self._memory = self._memory, None
        if memory is not None:
            self._copier.give_back(memory)

    def _plan(self, value: Any, name: str = "") -> Any:
        """Returns the state with a _Place for each tensor; collects the tensors to copy."""
        if type(value) is torch.Tensor or type(value) is torch.nn.Parameter:
            return self._place(value.detach(), name)
        if type(value) is DTensor:
            local = value._local_tensor
            if _by_torch.is_wrapper(local):
                return _Sharded(value, _Made(_by_torch.on_cpu(local, copy=True)))
            return _Sharded(value, self._place(local.detach(), name))
        if isinstance(value, dict):
            made = copy.copy(value)  # Keeps the type: an OrderedDict, say.
            for key, item in value.items():
                made[key] = self._plan(item, f"{name}.{key}" if name else str(key))
            return made
        if type(value) in (list, tuple):
            return type(value)(self._plan(item, f"{name}.{i}") for i, item in enumerate(value))
        return _Made(_copy_of(value))

    def _place(self, tensor: torch.Tensor, name: str) -> Any:
        if (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_meta
            or tensor.is_conj()
            or tensor.is_neg()
            or type(tensor) is not torch.Tensor
            or tensor.dtype not in NUMBERS
            or "float4" in str(tensor.dtype)  # Has no views.
        ):
            return _Made(_copy_of(tensor))
        at = -(-self._size // _ALIGNMENT) * _ALIGNMENT
        self._size = at + tensor.nbytes
        place = _Place(at, tensor.dtype, tuple(tensor.shape))
        cuda = cuda_of(tensor)
        if (tensor.is_cpu or cuda is not None) and tensor.is_contiguous():
            self._reached.append((at, tensor, cuda, name))
        else:
            self._others.append((place, tensor))
        return place

    def _fill(self) -> None:
        self._memory = self._copier.take(max(self._size, 1))
        start = self._memory.data_ptr()
        # Not by torch, which copies on as many threads as it computes on: often one.
        background.copy_pairs(
            True,
            [
                (start + at, t.data_ptr(), t.nbytes, cuda, name)
                for at, t, cuda, name in self._reached
            ],
        )
        for place, tensor in self._others:
            self._view(place).copy_(on_host(tensor))

    def _view(self, place: _Place) -> torch.Tensor:
        assert self._memory is not None
        count = 1
        for size in place.shape:
            count *= size
        part = self._memory[place.at : place.at + count * place.dtype.itemsize]
        if count == 0:
            return torch.empty(place.shape, dtype=place.dtype)
        return part.view(place.dtype).view(place.shape)

    def _build(self, plan: Any) -> Any:
        if isinstance(plan, _Place):
            return self._view(plan)
        if isinstance(plan, _Made):
            return plan.value
        if isinstance(plan, _Sharded):
            return plan.like(self._build(plan.local))
        if isinstance(plan, dict):
            for key in plan:
                plan[key] = self._build(plan[key])
            return plan
        return type(plan)(self._build(item) for item in plan)


class _Place:
    """A tensor in the buffer."""

    def __init__(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.at = at
        self.dtype = dtype
        self.shape = shape


class _Made:
    """A copy that lies elsewhere."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Sharded:
    """A DTensor over a local part that is copied."""

    def __init__(self, tensor: DTensor, local: Any) -> None:
        self._spec = tensor._spec
        self.local = local

    def like(self, local: torch.Tensor) -> DTensor:
        # Not by from_local, which calls operators that the class of a local tensor may lack.
        kind: Any = DTensor
        made: DTensor = kind(local, self._spec, requires_grad=False)
        return made


def _copy_of(value: Any) -> Any:
    """Returns a copy on the CPU as torch makes it, of tensors that are made of others too."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if _by_torch.is_wrapper(value):
        return _by_torch.on_cpu(value, copy=True)
    state = {"": value.detach()}
    return copy_state_dict(state, create_cpu_state_dict(state))[""]  # ShardedTensors too.
