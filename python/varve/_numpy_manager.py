"""The manager of a run whose states are NumPy arrays, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from varve._manage._backend import NumpyBackend, checked_options
from varve._manage._inputs import Settings
from varve._manage._manager import Manager
from varve._manage._policy import Ending, Every, Keep


class CheckpointManager(Manager):
    """Keeps the checkpoints of a run: saves when it is time to, removes old steps, resumes.

    `varve.torch.CheckpointManager` says more; this one is for one process, and a save is durable when
    `save` returns.

    Example:
        >>> manager = varve.CheckpointManager("run", every=100, keep=3)  # doctest: +SKIP
        >>> start = manager.resume(state)  # doctest: +SKIP
        >>> for step in range((start or 0) + 1, total + 1):  # doctest: +SKIP
        ...     train(state)
        ...     manager.save(step, state)
        ...     if manager.preempted:
        ...         break
        >>> manager.close()  # doctest: +SKIP

    Args:
        run: As in `varve.torch.CheckpointManager`, like the arguments below.
        every: When to save.
        keep: Which steps to keep.
        ending: What ends the run early.
        name: Names of steps.
        verify: What `resume` checks.
        max_restarts: After how many restarts an older step is taken.
        max_failures: After how many failed saves `save` raises.
        on_saved: Called after each save.
        on_failure: Called after each save that has failed.
        metrics_file: OpenMetrics text.
        upload_to: Where steps are uploaded to, in the background.
        keep_uploaded: Which steps to keep there.
        save_options: Further arguments of `varve.save`: `allow_pickle`.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        every: Every | int | None = None,
        keep: Keep | int | None = None,
        ending: Ending | None = None,
        name: str = "step-{step:08d}",
        verify: Literal["index", "full"] = "index",
        max_restarts: int | None = None,
        max_failures: int | None = None,
        on_saved: Callable[[dict[str, Any]], None] | None = None,
        on_failure: Callable[[int, BaseException], None] | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        upload_to: str | os.PathLike[str] | None = None,
        keep_uploaded: Keep | int | None = None,
        save_options: Mapping[str, Any] | None = None,
    ) -> None:
        settings = Settings.of({**locals(), "timeout": 1800.0})
        super().__init__(NumpyBackend(checked_options(save_options, {"allow_pickle"})), settings)
