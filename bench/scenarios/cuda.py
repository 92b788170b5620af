"""How long does an asynchronous save of tensors on a GPU keep the training, and at what speed?

The state is on the first CUDA device. The baseline copies it into pinned memory that is used again,
tensor by tensor with `non_blocking=True`, and waits for the stream: what the bus can do. The other
arms are timed from the call to `wait_staged`, with the device idle before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import arms
from bench.context import Context
from bench.files import remove
from bench.measure import Rounds, Sample, interleave, timed
from bench.results import Result
from bench.state import State, bytes_of, make_destination, make_state, require_equal, zero

PINNED = "copy to pinned tensors"
DIRECT = "async_save, copy_from_devices, pinned_memory"
PAGEABLE = "async_save, copy_from_devices"
BY_TORCH = "async_save, default (torch copies first)"


def run(context: Context) -> list[Result]:
    """Answers the question, or says that there is no device."""
    reason = arms.VARVE.unavailable()
    if reason is None and not torch.cuda.is_available():
        reason = "no CUDA device"
    if reason is not None:
        return [_result(context, Rounds({}, {PINNED: reason, DIRECT: reason}))]
    from varve.torch import Stager

    host = make_state(context.size, context.tensors)
    state = {name: tensor.cuda() for name, tensor in host.items()}
    pinned = {name: torch.zeros_like(tensor).pin_memory() for name, tensor in host.items()}
    budget = arms.staging_budget(bytes_of(state))
    with (
        Stager(memory_budget=budget, copy_from_devices=True, pinned_memory=True) as direct,
        Stager(memory_budget=budget, copy_from_devices=True) as pageable,
        Stager(memory_budget=budget) as by_torch,
    ):
        turns: dict[str, Callable[[], Sample]] = {
            PINNED: partial(_copy_sample, context, state, pinned)
        }
        for name, stager in ((DIRECT, direct), (PAGEABLE, pageable), (BY_TORCH, by_torch)):
            stager.prepare(state)
            stager.wait_prepared()
            turns[name] = partial(_stall_sample, context, stager, state, host)
        rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    return [_result(context, rounds)]


def _copy_sample(context: Context, state: State, pinned: State) -> Sample:
    zero(pinned)
    context.quiet()
    torch.cuda.synchronize()

    def copy() -> None:
        for name, tensor in state.items():
            pinned[name].copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()

    sample = timed(copy)
    require_equal(pinned, {name: tensor.cpu() for name, tensor in state.items()})
    return sample


def _stall_sample(context: Context, stager: Any, state: State, host: State) -> Sample:
    from varve.torch import async_save

    path: Path = context.directory / "saved"
    remove(path)
    context.quiet()
    torch.cuda.synchronize()
    saves: list[Any] = []

    def save() -> None:
        saves.append(async_save(state, path, stager=stager))
        saves[0].wait_staged()

    try:
        sample = timed(save)
        saves[0].result()
        destination = make_destination(host)
        arms.VARVE.load(destination, path)
        require_equal(destination, host)
    finally:
        remove(path)
    return sample


def _result(context: Context, rounds: Rounds) -> Result:
    result = Result.of(
        "cuda stall",
        "How long a save of tensors on a GPU keeps the training, until the tensors may change.",
        context.size,
        rounds,
        {},
        (PINNED, BY_TORCH),
    )
    result.expect_speed(DIRECT, PINNED, 0.9)
    return result
