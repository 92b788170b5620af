"""Resources that a forked child cannot use, because they are its parent's.

A child has none of its parent's threads. Destroying a torch process group, a thread pool or a save in
the child joins threads that are not there: gloo's destructors crash or wait for ever. A child that
forgets such objects therefore keeps them, unused, until it ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import Any

_kept: list[Any] = []


def leave_to_parent(
    *containers: MutableMapping[Any, Any] | MutableSequence[Any] | MutableSet[Any],
) -> None:
    """Empties containers in a forked child without destroying what they hold."""
    for container in containers:
        held = list(container.items() if isinstance(container, MutableMapping) else container)
        _kept.append(held)
        container.clear()


def resend(number: int, handler: Any) -> None:
    """Puts an earlier handler of a signal back, and sends this process the signal again."""
    signal.signal(number, handler)
    os.kill(os.getpid(), number)
