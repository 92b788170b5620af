"""The manager of a run whose states are PyTorch's, on any number of ranks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, Literal

import torch.distributed as dist

import varve.torch
from varve import agent
from varve._core import Channel, LoadReport
from varve._manage._backend import Backend, Ended, checked_options, inside
from varve._manage._inputs import Settings
from varve._manage._manager import Manager
from varve._manage._policy import Ending, Every, Keep
from varve.errors import InvalidArgumentError
from varve.torch._coordinator import (
    FIRST_NOTICE,
    collective,
    make_background,
    name_of,
    tell_past,
)
from varve.torch._failures import Failures, kept_in
from varve.torch._guard import optimizers_in
from varve.torch._save import async_save, defer_save
from varve.torch._stager import Stager

_LOG = logging.getLogger("varve")

#: Arguments of async_save that a manager passes on: those of both calls, but for what it gives itself.
_PASSED_ON = (set(signature(async_save).parameters) & set(signature(defer_save).parameters)) - {
    *("state_dict", "path", "process_group", "stager"),
    *("overwrite", "files", "timeout", "on_failure"),
}


class TorchBackend(Backend):
    """Ranks of a process group; saves go by a stager."""

    def __init__(
        self,
        process_group: Any,
        stager: Stager | None,
        executor: Literal["thread", "process"],
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self._group = process_group
        self.timeout = timeout
        self._options = dict(options)
        self._warned_of_guard = False
        self._owned = stager is None
        self._stager = stager
        self._executor = executor if stager is None else stager.executor
        self.rank = dist.get_rank(process_group) if joined else 0
        self.size = dist.get_world_size(process_group) if joined else 1

    def call(self, what: str) -> AbstractContextManager[Channel | None]:
        """Enters a call of all ranks."""
        return collective(self._group, self.timeout, what)

    def channel(self) -> Channel | None:
        """Returns a channel of its own for the manager's messages, and makes the stager."""
        if self._stager is None:
            self._stager = Stager(self._group, executor=self._executor, timeout=self.timeout)
        return make_background(
            self._group, self.timeout, "the manager of a run", "the manager's next decision"
        )

    def background(self, owner: str) -> Channel | None:
        """Returns one more channel."""
        return make_background(self._group, self.timeout, owner, owner)

    def save(self, state: Any, path: str, files: Mapping[str, bytes], ended: Ended) -> Future[Any]:
        """Saves in the background."""
        with kept_in(Failures()):  # `ended` tells of it, not the next save of the stager.
            handle = varve.torch.async_save(
                state,
                path,
                stager=self._stager,
                overwrite=True,
                files=files,
                timeout=self.timeout,
                **self._options_for(state),
            )
        if handle._warning:
            _LOG.warning("save %s: %s", path, handle._warning)
        handle.add_done_callback(ended)
        return handle

    def _options_for(self, state: Any) -> dict[str, Any]:
        """Returns the options of a save; overlapped ones are guarded by the optimizers of the state."""
        if self._options.get("staging") != "overlapped" or "guard" in self._options:
            return self._options
        optimizers = optimizers_in(state)
        if optimizers:
            return {**self._options, "guard": optimizers}
        if not self._warned_of_guard:
            self._warned_of_guard = True
            _LOG.warning(
                'staging="overlapped": the state holds no optimizer whose step could wait for the copy, '
                "so the call waits; give save_options a guard"
            )
        return {**self._options, "staging": "blocking"}

    def protect(self, state: Any, path: str, files: Mapping[str, bytes]) -> Future[Any]:
        """Leaves a copy with the agent."""
        if self._executor != "process":
            raise InvalidArgumentError(
                'protect: the manager was made with executor="thread"; only an agent '
                '(executor="process") can write a copy when this job has exited'
            )
        known = self._options_for(state)
        options = {name: value for name, value in known.items() if name != "deadline"}
        return varve.torch.defer_save(
            state,
            path,
            stager=self._stager,
            overwrite=True,
            files=files,
            timeout=self.timeout,
            **options,
        )

    def load(self, state: Any, path: str, options: Mapping[str, Any]) -> LoadReport:
        """Loads into a state, on all ranks."""
        given = {"timeout": self.timeout, **options}
        return varve.torch.load(state, path, process_group=self._group, **given)

    def tell_past(self, path: str) -> None:
        """Tells ranks that wait for this one in the save of an earlier step that it has missed that."""
        tell_past(self._group, name_of("save", path))

    def wait_for_agent(self, run: str, seconds: float) -> None:
        """Waits until this node's agent has written what an ended job of the run left with it."""
        start = time.monotonic()
        notice = FIRST_NOTICE
        while (waited := time.monotonic() - start) < seconds:
            report = agent.status()
            left = [] if report is None else [one for one in report.saves if inside(run, one.path)]
            if not left:
                return
            if waited >= notice:
                notice *= 2
                _LOG.warning(
                    "resume: the agent has been writing %s for %.0f s, of a job that has ended",
                    left[0].path,
                    waited,
                )
            time.sleep(0.05)
        _LOG.warning("resume: the agent has not written all that an ended job left in %s", run)

    def make_room(self) -> None:
        """Waits for the saves under way where the next one would be left out."""
        if self._stager is not None and self._stager._skips:
            self._stager.drain()

    def drain(self) -> None:
        """Waits for the saves under way."""
        if self._stager is not None:
            self._stager.drain()

    def close(self) -> None:
        """Closes the stager, if it was made here."""
        if self._owned and self._stager is not None:
            self._stager.close()


class CheckpointManager(Manager):
    """Keeps the checkpoints of a run: saves when it is time to, removes old steps, resumes.

    All ranks make one, together, and call its methods alike. What differs between ranks is agreed on
    while training computes: clocks and signals of single ranks never make one rank save alone. The
    run's directory is locked: a second job that would save there is refused, with the name of the
    first.

    Example, on every rank of a job:
        >>> manager = varve.torch.CheckpointManager(  # doctest: +SKIP
        ...     "run",
        ...     every=varve.Every(steps=100, minutes=20),
        ...     keep=varve.Keep(last=3, every=1000, best=2, by="loss"),
        ... )
        >>> start = manager.resume(state)  # doctest: +SKIP
        >>> for step in range((start or 0) + 1, total + 1):  # doctest: +SKIP
        ...     loss = train(state)
        ...     manager.save(step, state, metrics={"loss": loss})
        ...     if manager.preempted:
        ...         break
        >>> manager.close()  # doctest: +SKIP

    Args:
        run: A directory, which is made if need be, on storage that all ranks share.
        every: When to save: `Every`, or a number of steps. None: on demand alone.
        keep: Which steps to keep: `Keep`, or how many of the last. None: all.
        ending: What ends the run early; by default SIGTERM and SIGUSR1. A run also ends when somebody
            makes the file `varve-stop` in its directory, and saves when somebody makes `varve-save`.
        process_group: As in `save`.
        executor: "thread", or "process": the agent of the node writes the saves, goes on when this job is
            killed, and a restarted job loads from its memory. `protect` needs it.
        stager: A stager of the caller's, for its memory budget and the like; not closed by the manager.
        name: Names of steps: letters, then the step.
        verify: "index" checks index, sizes and commit record of the step that is resumed; its bytes are
            checked as they are loaded. "full" reads all of them before.
        max_restarts: When so many restarts from a step have ended without a further save, `resume` takes an
            older one. None: never.
        max_failures: When so many saves in a row have failed, `save` raises UnavailableError on all ranks.
            None: never; failures are logged and counted.
        on_saved: Called on rank 0, on a thread of the manager's, with the history's line of each save that
            was made, for TensorBoard and the like.
        on_failure: Called on every rank, on such a thread, with the step and the error of a save that has
            failed.
        metrics_file: A file that rank 0 writes OpenMetrics text to after each save.
        upload_to: The run's place in another storage, such as "s3://bucket/run": each step is uploaded there
            under its name when it is durable here, in the background. `resume` looks at both places and
            takes the newest step. An upload that fails is logged, counted and given to `on_failure`; it is
            tried again after the next save, and by the next job. `keep` removes no step before it is
            uploaded; `close` and `wait` wait for uploads.
        keep_uploaded: Which steps to keep there, as `keep`. None: all.
        save_options: Further arguments of `async_save`: allow_pickle, check_replicas, check_torn, deadline,
            format, guard, hf, max_write_bandwidth, on_difference, retries, staging, strip_wrappers. With format="hf" every
            state must hold tensors alone. With staging="overlapped" the next step of each optimizer object
            in the state waits for the copy, or of those in `guard`; without any the call itself waits.
        timeout: Seconds any rank waits for the others in a save or load.

    Raises:
        PreconditionError: Another job has the run.
        InvalidArgumentError: An argument makes no sense.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        every: Every | int | None = None,
        keep: Keep | int | None = None,
        ending: Ending | None = None,
        process_group: Any = None,
        executor: Literal["thread", "process"] = "thread",
        stager: Stager | None = None,
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
        timeout: float = 1800.0,
    ) -> None:
        settings = Settings.of(locals())
        if stager is not None and process_group is None:
            process_group = stager.process_group
        options = checked_options(save_options, _PASSED_ON)
        backend = TorchBackend(process_group, stager, executor, timeout, options)
        super().__init__(backend, settings)
