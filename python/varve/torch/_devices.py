"""CUDA tensors as memory that the engine copies from and to, without torch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import increment_version

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


def wanted_cuda(where: Any) -> torch.device | None:
    """Returns the CUDA device that a caller's argument names; None for anything else."""
    if isinstance(where, bool) or not isinstance(where, (str, int, torch.device)):
        return None
    try:
        made = torch.device(where)
    except RuntimeError:
        return None  # The caller passes the name to torch, which raises.
    return made if made.type == "cuda" else None


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor detached and on the CPU: itself, or a copy by the engine through registered memory.

    By torch where the engine cannot reach it.
    """
    tensor = tensor.detach()
    cuda = cuda_of(tensor)
    if cuda is None:
        return tensor.cpu()
    made = torch.empty_like(tensor, device="cpu")
    if made.stride() != tensor.stride():  # There are gaps between its elements.
        tensor = tensor.contiguous()
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    pair = made.data_ptr(), tensor.data_ptr(), tensor.nbytes, cuda, ""
    background.copy_pairs(True, [pair])
    return made


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a tensor on a device, as `tensor.to(device)` does; from the CPU to CUDA by the engine."""
    if device.type != "cuda" or not _is_plain(tensor):
        return tensor.to(device)
    made = _made_on(device, tensor)
    fill([(made, tensor.detach())])
    return made


def _made_on(device: torch.device, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, device=device, requires_grad=False)


def fill(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies the second tensor of each pair to the first, from the CPU to CUDA devices by the engine.

    All else goes by torch: targets that the engine cannot reach, or with gaps between their elements.
    """
    copies: list[background.CopyPair] = []
    filled, kept = [], []
    for target, source in pairs:
        plain = target.detach()
        cuda = cuda_of(plain)
        if cuda is None or not _is_plain(source) or not _is_like(plain, source):
            with torch.no_grad():
                target.copy_(source)
            continue
        source = source.detach()
        if source.stride() != plain.stride():
            source = torch.empty_strided(
                plain.shape, plain.stride(), dtype=source.dtype, device="cpu"
            ).copy_(source)
        copies.append((source.data_ptr(), plain.data_ptr(), plain.nbytes, cuda, ""))
        kept.append(source)
        filled.append(target)
    if copies:
        background.copy_pairs(False, copies)
        increment_version([each for each in filled if not each.is_inference()])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns True for a tensor of the CPU whose memory is its elements."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _is_like(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Returns True where the memory of a target, which has no gaps, can be that of the source."""
    return (
        target.shape == source.shape
        and target.dtype == source.dtype
        and torch.empty_like(target, device="meta").stride() == target.stride()
    )
