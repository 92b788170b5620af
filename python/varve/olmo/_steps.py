"""Steps that all ranks take together: each ends the same way on every rank.

A rank whose step fails tells the others, and all raise. No rank waits in a barrier for one that has
raised already.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from typing import Any

from varve import errors
from varve._core import Channel
from varve.olmo import _errors

#: Seconds that any rank waits for the others, the slowest rank's writing included.
TIMEOUT = 1800.0


class Steps:
    """The steps of one save or load. Used by one thread."""

    def __init__(self, coordinator: Channel | None) -> None:
        self.coordinator = coordinator
        self.rank = 0 if coordinator is None else coordinator.rank

    def each(self, what: str, function: Callable[[], Any]) -> list[Any]:
        """Calls a function on every rank, and returns what each gave, by rank. JSON alone crosses.

        Raises this rank's own error, or else the first other rank's as an error of the same class.
        """
        try:
            answer = {"value": function()}
            error: Exception | None = None
        except Exception as raised:
            error = _told(raised)
            answer = {"class": type(error).__name__, "text": str(error)}
        answers = self._exchange(answer)
        if error is not None:
            raise error
        for rank, other in enumerate(answers):
            if "class" in other:
                raise _kind(other["class"])(f"{what}: rank {rank}: {other['text']}", rank=rank)
        return [other["value"] for other in answers]

    def first(self, what: str, function: Callable[[], Any]) -> Any:
        """Calls a function on rank 0, and returns what it gave on every rank."""
        return self.each(what, lambda: function() if self.rank == 0 else None)[0]

    def error_of(self, what: str, causes: Mapping[int, BaseException]) -> BaseException:
        """Returns what this rank raises, as `each` does, where these ranks have failed."""
        own = causes.get(self.rank)
        if own is not None:
            return _told(own) if isinstance(own, Exception) else own
        rank = min(causes)
        cause = causes[rank]
        told = _told(cause) if isinstance(cause, Exception) else cause
        return _kind(type(told).__name__)(f"{what}: rank {rank}: {told}", rank=rank)

    def _exchange(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        if self.coordinator is None:
            return [answer]
        messages = self.coordinator.gather(json.dumps(answer).encode(), TIMEOUT)
        return [json.loads(message) for message in messages]


def _told(error: Exception) -> Exception:
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
