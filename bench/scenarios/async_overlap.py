"""How much slower does training get while saves are staged and written behind its back?

Method. A training step is a number of micro-batches (gradient accumulation), then an update of the
parameters in place. A micro-batch is one matrix product that takes 20 to 50 ms on all cores but one
(`torch.set_num_threads`); the core left free is for whatever saves do. An update negates a strip of
every tensor of the state, the strips in turn, 16 MiB together: cheap, as it stands for the write to
parameters and not for an optimizer's arithmetic, and exactly repeatable. How many micro-batches
make a step is found out first: as many as take twice as long as staging the state with the trainer
idle, one for a small state. A step that is shorter than the copy has to wait for it with every
tool; the copy of a real model's state takes a small part of its step.

With saves, one is started at the first micro-batch and then every so many steps that staging and
writing, trainer idle, take two thirds of that time: for most of the time one is under way. Before
each update the loop waits for the copy (`wait_staged`), in the time. A block has at least 200
micro-batches and a whole number of such intervals. Blocks of all arms are taken in turns. Outside
the time every checkpoint is loaded, the updates made since its call are repeated on it, and every
value is compared with the state.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
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

PLAIN = "training alone"
SAVING = "with saves"

_BLOCK_BATCHES = 200
_BATCH_SECONDS = 0.03
_UPDATE_BYTES = 16 << 20
_STEP_OVER_STAGING = 2.0
_INTERVAL_OVER_SAVE = 1.5
_MOST_TIME = 1.02


class _Loop:
    """A state in training: what a micro-batch, an update, and a block of them do."""

    def __init__(self, context: Context, state: State) -> None:
        self.state = state
        self.batches_per_step = 1
        self.steps_per_save = 1
        self.steps = 1
        self._context = context
        self._destination = make_destination(state)
        self._updates = 0
        self._left, self._right, self._product = _matrices()
        self.batch_seconds = statistics.median(timed(self._batch).seconds for _ in range(10))

    def calibrate(self, stager: Any) -> None:
        """Sets the lengths of a step, of an interval between saves, and of a block."""
        staging, total = 0.0, 0.0
        for _ in range(2):  # The second counts.
            self._context.quiet()
            path = self._path(0)
            reports: list[Any] = []
            total = timed(partial(self._save_and_wait, stager, path, reports)).seconds
            staging = reports[0].staging_seconds
            remove(path)
        batch = self.batch_seconds
        self.batches_per_step = max(1, math.ceil(_STEP_OVER_STAGING * staging / batch))
        step = batch * self.batches_per_step
        self.steps_per_save = max(1, math.ceil(_INTERVAL_OVER_SAVE * total / step))
        # A small state would be saved very often, and its checkpoints fill the disk.
        batches = max(self.batches_per_step * self.steps_per_save, _BLOCK_BATCHES // 5)
        self.steps_per_save = math.ceil(batches / self.batches_per_step)
        interval = self.steps_per_save * self.batches_per_step
        self.steps = self.steps_per_save * math.ceil(_BLOCK_BATCHES / interval)
        words = f"staging {staging:.3f} s, whole save {total:.3f} s with the trainer idle"
        print(f"  {self}; {words}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        """Says what a block is."""
        return (
            f"{self.steps} steps of {self.batches_per_step} micro-batches of "
            f"{self.batch_seconds * 1e3:.1f} ms, a save every {self.steps_per_save} steps"
        )

    def block(self, stager: Any | None) -> Sample:
        """Times one block, with saves by `stager` if there is one; checks them afterwards."""
        self._context.quiet()
        saves: list[tuple[Any, Path, int]] = []
        try:
            sample = timed(partial(self._train, stager, saves))
            for handle, _, _ in saves:
                if handle.result().in_waves:
                    raise AssertionError("the staging memory was too small for the state")
            for _, path, updates in saves:
                self._require_saved(path, updates)
        finally:
            for handle, path, _ in saves:
                handle.exception()
                remove(path)
        return sample

    def _train(self, stager: Any | None, saves: list[tuple[Any, Path, int]]) -> None:
        for step in range(self.steps):
            if stager is not None and step % self.steps_per_save == 0:
                path = self._path(len(saves))
                saves.append((_begin(self.state, path, stager), path, self._updates))
            for _ in range(self.batches_per_step):
                self._batch()
            if saves:
                saves[-1][0].wait_staged()
            self._update(self.state, self._updates)
            self._updates += 1

    def _batch(self) -> None:
        torch.mm(self._left, self._right, out=self._product)

    def _update(self, state: State, update: int) -> None:
        for tensor in state.values():
            strip = max(1, _UPDATE_BYTES // len(state) // tensor.element_size())
            begin = update * strip % tensor.numel()
            tensor[begin : begin + strip].neg_()

    def _save_and_wait(self, stager: Any, path: Path, reports: list[Any]) -> None:
        reports.append(_begin(self.state, path, stager).result())

    def _require_saved(self, path: Path, updates: int) -> None:
        zero(self._destination)
        arms.VARVE.load(self._destination, path)
        for update in range(updates, self._updates):
            self._update(self._destination, update)
        require_equal(self._destination, self.state)

    def _path(self, index: int) -> Path:
        return self._context.directory / f"overlap-{index}"


def run(context: Context) -> Result:
    """Trains in blocks with and without saves, in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    try:
        rounds, block = _rounds(context)
    finally:
        torch.set_num_threads(threads)
    result = Result.of(
        "async overlap",
        'Training on all cores but one, with and without staging="overlapped" saves, updates in '
        f"place: {block}.",
        0,
        rounds,
        {},
        (PLAIN,),
    )
    result.expect_time(SAVING, PLAIN, _MOST_TIME)
    return result


def _rounds(context: Context) -> tuple[Rounds, str]:
    reason = arms.VARVE.unavailable()
    if reason is not None:
        return Rounds({}, {SAVING: reason}), "nothing"
    from varve.torch import Stager

    loop = _Loop(context, make_state(context.size, context.tensors))
    with Stager(memory_budget=arms.staging_budget(bytes_of(loop.state))) as stager:
        stager.prepare(loop.state)
        stager.wait_prepared()
        loop.calibrate(stager)
        rounds = interleave(
            {PLAIN: partial(loop.block, None), SAVING: partial(loop.block, stager)},
            rounds=context.rounds,
            warmups=context.warmups,
        )
        return rounds, str(loop)


def _begin(state: State, path: Path, stager: Any) -> Any:
    from varve.torch import async_save

    return async_save(state, path, stager=stager, staging="overlapped")


def _matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns two square matrices whose product takes `_BATCH_SECONDS` or a little more, and it."""
    side = 256
    while True:
        left, right = torch.rand(side, side), torch.rand(side, side)
        product = torch.mm(left, right)
        action = partial(torch.mm, left, right, out=product)
        if min(timed(action).seconds for _ in range(3)) >= _BATCH_SECONDS:
            return left, right, product
        side = side * 9 // 8 // 8 * 8
