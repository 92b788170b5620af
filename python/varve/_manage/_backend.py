"""The functions that a manager needs of the library whose states it saves: NumPy in one process, torch on many ranks."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import varve
from varve import _arguments, _core
from varve._core import Channel, LoadReport, background
from varve._manage._decisions import told_by_rank_0
from varve.errors import InvalidArgumentError

_LOG = logging.getLogger("varve")

#: Called when a save has ended, on any thread, with its future.
Ended = Callable[[Any], None]


class Backend:
    """See the top of this file. The methods serve a single process; a class for ranks overrides them.

    Attributes:
        rank: This process's rank in the manager's group.
        size: The number of ranks in the manager's group.
        timeout: Seconds that ranks wait for each other in a call.
    """

    rank = 0
    size = 1
    timeout = 0.0

    def call(self, what: str) -> AbstractContextManager[Channel | None]:
        """Enters a call; None in a single process."""
        return nullcontext()

    def of_rank_0(self, what: str, action: Callable[[], Any]) -> Any:
        """Returns what rank 0's action returns, on all ranks; raises its error on all of them."""
        return told_by_rank_0(self.call(what), what, action, self.timeout)

    def outcomes(self, mine: str) -> set[str]:
        """Returns the outcomes of all ranks. Collective."""
        with self.call("compare outcomes") as call:
            if call is None:
                return {mine}
            return {one.decode() for one in call.gather(mine.encode(), self.timeout)}

    def channel(self) -> Channel | None:
        """Returns a connection for messages in the background; None in a single process. Collective."""
        return None

    def background(self, owner: str) -> Channel | None:
        """Returns one more such connection, for `owner`. Collective."""
        return None

    def save(self, state: Any, path: str, files: Mapping[str, bytes], ended: Ended) -> Future[Any]:
        """Begins a save that replaces what is at `path`; `ended` is called with its future."""
        raise NotImplementedError

    def protect(self, state: Any, path: str, files: Mapping[str, bytes]) -> Future[Any]:
        """Leaves a copy with the agent of this node."""
        raise InvalidArgumentError("protect: only varve.torch.CheckpointManager has it")

    def load(self, state: Any, path: str, options: Mapping[str, Any]) -> LoadReport:
        """Loads into a state."""
        raise NotImplementedError

    def tell_past(self, path: str) -> None:
        """Tells ranks that wait for this one to save an earlier step that it is past that, in no call."""

    def wait_for_agent(self, run: str, seconds: float) -> None:
        """Waits until what an ended job left with this node's agent is written."""

    def make_room(self) -> None:
        """Waits for the saves under way where the next one would be left out for them."""

    def drain(self) -> None:
        """Waits for the saves under way."""

    def close(self) -> None:
        """Gives back what was made for the manager."""


class NumpyBackend(Backend):
    """One process; saves are made in the call."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def save(self, state: Any, path: str, files: Mapping[str, bytes], ended: Ended) -> Future[Any]:
        """Saves now."""
        future: Future[Any] = Future()
        try:
            future.set_result(varve.save(state, path, overwrite=True, files=files, **self._options))
        except Exception as error:
            _LOG.warning("the save of %s has failed: %s", path, error)
            future.set_exception(error)
        ended(future)
        return future

    def load(self, state: Any, path: str, options: Mapping[str, Any]) -> LoadReport:
        """Loads into a state."""
        return varve.load(state, path, **options)


def checked_options(options: Mapping[str, Any] | None, known: set[str]) -> dict[str, Any]:
    """Returns the options of saves.

    Raises InvalidArgumentError for an unknown option, and for a value that every save would refuse.
    """
    if options is not None and not isinstance(options, Mapping):
        raise _arguments.refuse("save_options", options, "a dict {argument of save: value}")
    made = dict(options or {})
    for name in made:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            raise InvalidArgumentError(
                f"save_options: {name!r} is none of {', '.join(sorted(known))}"
                + (f"; is it {near[0]}?" if near else "")
            )
    try:
        for kind in (_core.SaveOptions, background.AsyncSaveOptions):
            kind(**{name: value for name, value in made.items() if hasattr(kind, name)})
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"save_options: {error}") from None
    return made


def inside(run: str, path: str) -> bool:
    """Returns True for a path directly in the directory `run`, whatever links lead there."""
    return os.path.realpath(os.path.dirname(path)) == os.path.realpath(run)
