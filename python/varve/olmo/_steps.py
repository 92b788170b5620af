"""Steps that all ranks take together: each ends the same way on every rank.

A rank whose step fails tells the others, and all raise. No rank waits in a barrier for one that has
raised already.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from varve import errors
from varve._core import Channel
from varve.olmo import _errors
from varve.torch.dcp._ranks import TIMEOUT, Ranks

__all__ = ["TIMEOUT", "Steps"]


class Steps:
    """The steps of one save or load. Used by one thread.

    Attributes:
        coordinator: The channel of the ranks; None for a process alone.
        ranks: The ranks that take them.
        rank: This one.
    """

    def __init__(self, coordinator: Channel | None) -> None:
        self.coordinator = coordinator
        self.ranks = Ranks(coordinator)
        self.rank = self.ranks.rank

    def each(self, what: str, function: Callable[[], Any]) -> list[Any]:
        """Calls a function on every rank, and returns what each gave, by rank.

        Raises this rank's own error, or else the first other rank's as an error of the same class.
        """
        with self.raising_alike(what):
            return self.ranks.combine(what, function, lambda given: [given] * self.ranks.size)

    def first(self, what: str, function: Callable[[], Any]) -> Any:
        """Calls a function on rank 0, and returns what it gave on every rank."""
        return self.each(what, lambda: function() if self.rank == 0 else None)[0]

    @contextlib.contextmanager
    def raising_alike(self, what: str) -> Iterator[None]:
        """Raises, where a step of `ranks` has failed, as `each` does."""
        try:
            yield
        except CheckpointException as error:
            causes = {rank: _told(cause) for rank, (cause, _) in error.failures.items()}
            if self.rank in causes:
                raise causes[self.rank] from causes[self.rank].__cause__
            rank = min(causes)
            kind = _kind(type(causes[rank]).__name__)
            raise kind(f"{what}: rank {rank}: {causes[rank]}", rank=rank) from None


def _told(error: BaseException) -> BaseException:
    """Returns what the system says of a file as the engine tells it, and other errors as they are."""
    if not isinstance(error, OSError) or isinstance(error, errors.Error):
        return error
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    told = (errors.OutOfSpaceError if full else errors.UnavailableError)(str(error))
    told.__cause__ = error
    return told


def _kind(name: str) -> type[errors.Error]:
    for module in (_errors, errors):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, errors.Error):
            return found
    return _errors.OLMoCheckpointError
