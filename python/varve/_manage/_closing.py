"""The waits of a manager for its saves and what follows them; the last one outlasts Ctrl-C."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from varve._manage._backend import Backend
from varve._manage._followup import FollowUp
from varve._manage._uploads import Uploads

_LOG = logging.getLogger("varve")

#: Seconds for the history and the user's functions, once Ctrl-C has given the saves up.
_LAST = 10.0


def drain(
    backend: Backend,
    after: FollowUp,
    uploads: Uploads | None,
    once_more: bool = True,
    limit: float = math.inf,
) -> None:
    """Waits for the saves under way and their uploads, and `limit` seconds at most for what follows them."""
    backend.drain()
    after.finish(limit)
    if uploads is not None:
        uploads.drain(once_more)
        after.finish(limit)


def end_saves(
    run: str,
    backend: Backend,
    after: FollowUp,
    uploads: Uploads | None,
    remove: Callable[[], None],
    error: BaseException | None,
) -> None:
    """Waits as `drain`, then for `remove`. Raises KeyboardInterrupt in the end where Ctrl-C came meanwhile.

    The first Ctrl-C, which may be the `error` that the program ends with, ends the uploads, which stay
    pending, and lets the saves go on. The second one gives the saves up. The third one is raised at once.
    """
    presses = int(isinstance(error, KeyboardInterrupt))
    if presses and uploads is not None:
        uploads.abort()
    while True:
        limit = _LAST if presses > 1 else math.inf
        try:
            if presses:
                _tell(run, after.under_way if presses == 1 else after.give_up(), presses == 1)
            drain(backend, after, uploads, error is None and presses == 0, limit)
            remove()
            after.finish(limit)
            break
        except BaseException as failure:
            presses += 1
            if uploads is not None:
                uploads.abort()
            if not isinstance(failure, KeyboardInterrupt) or presses > 2:
                raise
    if presses and not isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt


def _tell(run: str, steps: list[int], go_on: bool) -> None:
    if not steps:
        return
    numbers = ", ".join(map(str, steps))
    those = f"steps {numbers} are" if len(steps) > 1 else f"step {numbers} is"
    if go_on:
        _LOG.warning(
            "%s: Ctrl-C: this job ends when %s durable; Ctrl-C once more gives that up", run, those
        )
    else:
        _LOG.warning("%s: Ctrl-C: %s given up", run, those)
