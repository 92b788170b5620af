"""CUDA tensors as memory that the engine copies from and to, without torch."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

import torch

from varve._core import background, states
from varve.errors import InvalidArgumentError

_log = logging.getLogger("varve")


@functools.cache
def problem() -> str:
    """Returns why the engine can use no device, for the whole process; empty where it can.

    Says so in the log: torch then copies each tensor by way of the CPU, at a fifth of the speed.
    """
    reason = states.device_problem()
    if reason:
        _log.warning(
            "tensors on devices are copied by torch, one after the other, which is slower: %s",
            reason,
        )
    return reason


def cuda_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns (device, stream) of a tensor whose elements the engine can copy where they are, else None.

    The stream is the current one of this thread: what the caller has queued there comes before.
    """
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or not tensor.is_cuda
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
        or problem()
    ):
        return None
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream


def device_of(device: Any) -> torch.device | None:
    """Returns the device of a caller's argument; None for torch's default one.

    Raises InvalidArgumentError for what is no device, or one without memory.
    """
    if device is None:
        return None
    try:
        made = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(f"device={device!r}: {str(error).splitlines()[0]}") from None
    if made.type == "meta":
        raise InvalidArgumentError(f"device={device!r}: tensors there have no values to read")
    return made


def memory_of(buffer: background.HostBuffer) -> torch.Tensor:
    """Returns the bytes of a buffer, which lives as long as any view of them."""
    raw = (ctypes.c_byte * buffer.size).from_address(buffer.address)
    raw.buffer = buffer  # type: ignore[attr-defined]
    return torch.frombuffer(raw, dtype=torch.uint8)
