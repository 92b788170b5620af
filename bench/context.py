"""What every scenario is given, and the steps that surround each timing."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.arms import Arm
from bench.files import bytes_under, cached_fraction, drop_cache, remove, warm_cache
from bench.measure import Sample, timed
from bench.raw import RawIo
from bench.state import State, bytes_of, require_equal, zero

# Fractions of a checkpoint in the page cache that count as warm and as cold. Not 1 and 0, because
# reading a directory's small files (and mincore's own mapping) may leave a few pages behind.
_WARM = 0.99
_COLD = 0.01


@dataclass(frozen=True)
class Context:
    """Settings of one run. `directory` is on the storage under test and is removed at the end."""

    directory: Path
    size: int
    tensors: int
    rounds: int
    warmups: int
    settle_seconds: float
    raw: RawIo
    index_codec: Path | None = None

    def quiet(self) -> None:
        """Waits until nothing that an earlier arm left is under way.

        All dirty pages are written, and where the file system discards deleted blocks in the
        background, it gets `settle_seconds` to do so.
        """
        gc.collect()
        os.sync()
        time.sleep(self.settle_seconds)

    def save_sample(self, arm: Arm, state: State) -> Sample:
        """Times one durable save to a fresh path; what it wrote is removed outside the time."""
        path = self.directory / "saved"
        remove(path)
        self.quiet()
        try:
            sample = timed(lambda: arm.save(state, path))
            if bytes_under(path) < bytes_of(state):
                raise AssertionError("fewer bytes were written than the state holds")
        finally:
            remove(path)
        return sample

    def load_sample(self, arm: Arm, path: Path, saved: State, destination: State) -> Sample:
        """Times one load into `destination` (zeroed, warm) and checks every value afterwards."""
        zero(destination)
        gc.collect()
        sample = timed(lambda: arm.load(destination, path))
        require_equal(destination, saved)
        return sample


def from_warm_cache(path: Path, load: Callable[[], Sample]) -> Sample:
    """Runs `load` with the files under `path` in the page cache, and drops them afterwards.

    Dropped first and then read anew, so that every arm's cache was built in the same way and is not
    what its writer happened to leave; dropped afterwards, so that only one arm's files use memory.
    """
    drop_cache(path)
    warm_cache(path)
    if (fraction := cached_fraction(path)) < _WARM:
        raise AssertionError(f"only {fraction:.0%} of the files stayed in the page cache")
    try:
        return load()
    finally:
        drop_cache(path)


def from_cold_cache(path: Path, load: Callable[[], Sample]) -> Sample:
    """Runs `load` with no file under `path` in the page cache, and drops what it left there."""
    drop_cache(path)
    if (fraction := cached_fraction(path)) > _COLD:
        raise AssertionError(f"{fraction:.0%} of the files stay in the page cache (tmpfs?)")
    try:
        return load()
    finally:
        drop_cache(path)


def available(arms: tuple[Arm, ...]) -> tuple[list[Arm], dict[str, str]]:
    """Splits `arms` into those that can run here and the reasons of those that cannot."""
    usable: list[Arm] = []
    skipped: dict[str, str] = {}
    for arm in arms:
        reason = arm.unavailable()
        if reason is None:
            usable.append(arm)
        else:
            skipped[arm.name] = reason
    return usable, skipped
