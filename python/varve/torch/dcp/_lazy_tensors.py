"""Tensors of a file that are resolved when the writer reaches them, and dropped after that.

1. The file is laid out from the plan: sizes and dtypes are known before any tensor is resolved.
2. The engine fills the file front to back. When it comes to a tensor it asks here for its bytes, on the
   thread that fills (`_core.DcpItems.write`).
3. That tensor is resolved if it is not held yet, and those after it as long as less than `ahead` bytes
   are held.
4. A tensor is dropped with its last byte.

So at most `ahead` bytes and one tensor are held for each file that is being written.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable

import torch

#: Fills memory: the first byte of the tensor, the address to fill, and how many bytes.
Produce = Callable[[int, int, int], None]

#: Gives a tensor in CPU memory, contiguous.
Resolve = Callable[[], torch.Tensor]


class LazyTensors:
    """The tensors of one file, in the order in which they are added."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._waiting: list[Resolve | None] = []
        self._next = 0
        self._held: dict[int, torch.Tensor] = {}
        self._bytes = 0
        self._modes = ThreadModes()

    def add(self, resolve: Resolve) -> Produce:
        """Adds a tensor with elements. The result is what the engine calls."""
        self._waiting.append(resolve)
        return functools.partial(self._fill, len(self._waiting) - 1)

    def _fill(self, number: int, at: int, address: int, size: int) -> None:
        if at == 0:
            with self._modes.entered():
                self._resolve(number)
        tensor = self._held[number]
        ctypes.memmove(address, tensor.data_ptr() + at, size)
        if at + size == tensor.nbytes:
            del self._held[number]
            self._bytes -= tensor.nbytes

    def _resolve(self, number: int) -> None:
        count = len(self._waiting)
        while self._next <= number or (self._next < count and self._bytes < self._ahead):
            resolve = self._waiting[self._next]
            assert resolve is not None
            tensor = resolve()
            self._waiting[self._next] = None  # With all that it holds.
            self._held[self._next] = tensor
            self._bytes += tensor.nbytes
            self._next += 1


class ThreadModes:
    """Torch's modes and CUDA stream, both kept for each thread, of the thread that made this."""

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream() if started else None

    def entered(self) -> contextlib.ExitStack:
        """Enters the same modes and stream on this thread, until the result is left."""
        stack = contextlib.ExitStack()
        stack.enter_context(torch.inference_mode(self._inference))
        stack.enter_context(torch.set_grad_enabled(self._grad))
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack
