"""How long does an asynchronous save keep the trainer waiting, and what goes on behind its back?

Four tables: the stall of the call in steady state, the write phase alone, training while saves are
under way (`async_overlap.py`), and the first call of a process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import arms, machine
from bench.arms import Arm
from bench.context import Context, available
from bench.files import remove
from bench.measure import Rounds, Sample, interleave, timed
from bench.results import Result
from bench.scenarios import async_overlap
from bench.state import State, bytes_of, make_state, negate, require_equal, zero
from bench.worker import Worker

COPY = "parallel memcpy"
VARVE = "varve.torch.async_save"
TORCH = "torch async_save"
TORCH_KEPT = "torch async_save, stager kept"

SYNC = "varve.torch.save"
WRITE = "async_save, staged to done"

PREPARED = "first, prepared"
UNPREPARED = "first, not prepared"
STEADY = "third, prepared"

_COPY_PIECE_BYTES = 8 << 20
# Sizes of the state that must be free for torch's kept stager to join: its copy, the fresh one of
# torch's default, and one more for page cache and the tools' own buffers.
_MEMORY_FACTOR_KEPT = 3
_PREPARE_AHEAD_SECONDS = 2.0


@dataclass(frozen=True)
class AsyncArm:
    """`begin(state, path)` returns when the tensors may change; its future ends with the upload."""

    name: str
    begin: Callable[[State, Path], Future[Any]]
    load: Callable[[State, Path], None]


class ParallelCopy:
    """Copies one state over another: a memcpy per piece of 8 MiB, a thread per core, no GIL.

    The caller is one of the threads; the others exist before the first copy is timed. A free thread
    takes the next piece.
    """

    def __init__(self, source: State, destination: State) -> None:
        self._helpers = len(os.sched_getaffinity(0)) - 1
        self._pool = ThreadPoolExecutor(max(1, self._helpers))
        self._pieces = [
            (
                target.data_ptr() + at,
                source[name].data_ptr() + at,
                min(_COPY_PIECE_BYTES, target.nbytes - at),
            )
            for name, target in destination.items()
            for at in range(0, target.nbytes, _COPY_PIECE_BYTES)
        ]
        self()

    def __call__(self) -> None:
        """Copies all of it."""
        pieces = iter(self._pieces)  # Taking the next of a list is atomic.
        others = [self._pool.submit(_copy_pieces, pieces) for _ in range(self._helpers)]
        _copy_pieces(pieces)
        for other in others:
            other.result()


def _copy_pieces(pieces: Iterator[tuple[int, int, int]]) -> None:
    for target, source, size in pieces:
        ctypes.memmove(target, source, size)


def run(context: Context) -> list[Result]:
    """Answers the four questions, one after the other."""
    return [*_stall_and_write(context), async_overlap.run(context), _first(context)]


def _stall_and_write(context: Context) -> list[Result]:
    reason = arms.VARVE.unavailable()
    if reason is not None:
        stall = _stall_result(context, Rounds({}, {VARVE: reason}), {})
        _expect_stall(stall)
        return [
            stall,
            _write_result(context, Rounds({}, {SYNC: reason, WRITE: reason})),
        ]
    from varve.torch import Stager

    state = make_state(context.size, context.tensors)
    destination = huge_destination(state)
    with Stager(memory_budget=arms.staging_budget(bytes_of(state))) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        save = partial(begin_varve, stager)
        varve = AsyncArm(VARVE, save, arms.VARVE.load)
        stall = stalls(context, varve, state, destination, kept=True)
        _expect_stall(stall)
        writes = interleave(
            {
                SYNC: partial(sync_sample, context, state, destination),
                WRITE: partial(write_sample, context, save, state, destination),
            },
            rounds=context.rounds,
            warmups=context.warmups,
        )
    return [stall, _write_result(context, writes)]


def stalls(
    context: Context, varve: AsyncArm, state: State, destination: State, *, kept: bool
) -> Result:
    """Times the calls, Torch's with the stager that is kept too if `kept`."""
    skipped: dict[str, str] = {}
    turns: dict[str, Callable[[], Sample]] = {
        COPY: partial(copy_sample, context, ParallelCopy(state, destination), state, destination),
        varve.name: partial(stall_sample, context, varve, state, destination),
    }
    torch_reason = arms.DCP.unavailable()
    if torch_reason is not None:
        skipped[TORCH] = torch_reason
    else:
        default = AsyncArm(TORCH, begin_torch, arms.DCP.load)
        turns[TORCH] = partial(stall_sample, context, default, state, destination)
    if kept:
        reason = torch_reason or _shortage_for_kept(context)
        if reason is None:
            # A stager that is not given to the call is closed with its memory after each save.
            begin = partial(begin_torch, stager=_torch_stager())
            arm = AsyncArm(TORCH_KEPT, begin, arms.DCP.load)
            turns[TORCH_KEPT] = partial(stall_sample, context, arm, state, destination)
        else:
            skipped[TORCH_KEPT] = reason
    rounds = interleave(turns, rounds=context.rounds, warmups=context.warmups)
    return _stall_result(context, rounds, skipped)


def _stall_result(context: Context, rounds: Rounds, skipped: dict[str, str]) -> Result:
    return Result.of(
        "async stall",
        "How long the call keeps the trainer, in steady state, until the tensors may change.",
        context.size,
        rounds,
        skipped,
        (COPY, TORCH),
    )


def _expect_stall(result: Result) -> None:
    result.expect_time(VARVE, COPY, 1.10)
    result.expect_speed(VARVE, TORCH, 5.0)


def copy_sample(context: Context, copy: ParallelCopy, state: State, destination: State) -> Sample:
    zero(destination)
    context.quiet()
    sample = timed(copy)
    require_equal(destination, state)
    return sample


def stall_sample(context: Context, arm: AsyncArm, state: State, destination: State) -> Sample:
    """Times the call; afterwards changes the state, waits, and loads what the call was given.

    The state keeps the other sign, so that the next save cannot pass with the copy of this one.
    """
    path = context.directory / "staged"
    remove(path)
    context.quiet()
    uploads: list[Future[Any]] = []
    try:
        sample = timed(lambda: uploads.append(arm.begin(state, path)))
        negate(state)
        _require_one_wave(uploads[0].result())
        _require_saved(arm.load, path, state, destination, negated=True)
    finally:
        for upload in uploads:
            upload.exception()
        remove(path)
    return sample


def sync_sample(context: Context, state: State, destination: State) -> Sample:
    path = context.directory / "saved"
    remove(path)
    context.quiet()
    try:
        sample = timed(partial(arms.VARVE.save, state, path))
        _require_saved(arms.VARVE.load, path, state, destination)
    finally:
        remove(path)
    negate(state)
    return sample


def write_sample(
    context: Context,
    begin: Callable[[State, Path], Future[Any]],
    state: State,
    destination: State,
) -> Sample:
    """Times what is left when the call has returned: nothing is written before the copy is made."""
    path = context.directory / "written"
    remove(path)
    context.quiet()
    try:
        upload = begin(state, path)
        sample = timed(upload.result)
        _require_one_wave(upload.result())
        _require_saved(arms.VARVE.load, path, state, destination)
    finally:
        remove(path)
    negate(state)
    return sample


def _write_result(context: Context, rounds: Rounds) -> Result:
    result = Result.of(
        "async write",
        "The write phase of an asynchronous save, trainer idle, beside a synchronous save.",
        context.size,
        rounds,
        {},
        (SYNC,),
    )
    result.expect_speed(WRITE, SYNC, 0.9)
    return result


def _first(context: Context) -> Result:
    """Starts fresh processes in turns, one that prepares its stager and one that does not."""
    samples: dict[str, list[Sample]] = {}
    failures: dict[str, str] = {}
    usable, skipped = available((arms.VARVE,))
    turns: dict[str, Callable[[], dict[str, Sample]]] = {
        PREPARED: partial(_prepared_process, context, arms.VARVE),
        UNPREPARED: partial(_unprepared_process, context, arms.VARVE),
    }
    for repetition in range(context.rounds if usable else 0):
        for name in turns if repetition % 2 == 0 else reversed(turns):
            if name in failures:
                continue
            try:
                found = turns[name]()
            except Exception as error:
                failures[name] = f"failed: {type(error).__name__}: {error}"
                continue
            for label, sample in found.items():
                samples.setdefault(label, []).append(sample)
            words = ", ".join(f"{label}: {sample.seconds:.3f} s" for label, sample in found.items())
            progress = f"  repetition {repetition + 1}/{context.rounds}  {words}"
            print(progress, file=sys.stderr, flush=True)
    return Result.of(
        "async first",
        "The call's stall in a fresh process: its first save, with the stager prepared "
        f"{_PREPARE_AHEAD_SECONDS:g} s or more ahead and without, and a later one.",
        context.size,
        Rounds(samples, failures),
        skipped,
        (STEADY,),
    )


def _prepared_process(context: Context, arm: Arm) -> dict[str, Sample]:
    with Worker(arm, context.size, context.tensors) as worker:
        worker.prepare_staging()
        time.sleep(_PREPARE_AHEAD_SECONDS)
        longer = worker.wait_prepared()
        if longer > 0.001:
            words = f"  memory was ready {longer:.3f} s after {_PREPARE_AHEAD_SECONDS:g} s"
            print(words, file=sys.stderr, flush=True)
        series = [_worker_sample(context, worker) for _ in range(3)]
    return {PREPARED: series[0], STEADY: series[2]}


def _unprepared_process(context: Context, arm: Arm) -> dict[str, Sample]:
    with Worker(arm, context.size, context.tensors) as worker:
        return {UNPREPARED: _worker_sample(context, worker)}


def _worker_sample(context: Context, worker: Worker) -> Sample:
    path = context.directory / "first-async"
    context.quiet()
    try:
        return worker.async_save(path)
    finally:
        remove(path)


def begin_varve(stager: Any, state: State, path: Path) -> Future[Any]:
    future: Future[Any] = _module("varve.torch").async_save(state, path, stager=stager)
    return future


def begin_torch(state: State, path: Path, stager: Any = None) -> Future[Any]:
    """Torch stages in the call unless told otherwise: a future is all it returns then."""
    dcp = _module("torch.distributed.checkpoint")
    options = {} if stager is None else {"async_stager": stager}
    future: Future[Any] = dcp.async_save(state, checkpoint_id=path, no_dist=True, **options)
    return future


def _torch_stager() -> Any:
    staging = _module("torch.distributed.checkpoint.staging")
    # Torch's own default but for who keeps it: no pinned or shared memory, no thread.
    return staging.DefaultStager(staging.StagingOptions(False, False, False, False))


def _shortage_for_kept(context: Context) -> str | None:
    # Called with the state, its destination and our stager's memory in place.
    wanted = _MEMORY_FACTOR_KEPT * context.size
    free = machine.available_memory_bytes()
    if free >= wanted:
        return None
    return f"{free >> 20} MiB of memory are free, {wanted >> 20} needed to keep a copy more"


def huge_destination(state: State) -> State:
    """Returns warm tensors like those of `state`, in NumPy's memory.

    NumPy asks for huge pages, as our staging memory does; torch does not, and copies into its
    memory are slower where the system grants huge pages to those that ask.
    """
    return {
        name: torch.from_numpy(np.full(tensor.shape, 1, dtype=np.float32))
        for name, tensor in state.items()
    }


def _require_saved(
    load: Callable[[State, Path], None],
    path: Path,
    state: State,
    destination: State,
    *,
    negated: bool = False,
) -> None:
    zero(destination)
    load(destination, path)
    if negated:
        negate(destination)
    require_equal(destination, state)


def _require_one_wave(report: Any) -> None:
    if getattr(report, "in_waves", False):
        raise AssertionError("the staging memory was too small for the state")


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(name)
