"""The agent of this node: a process that writes the checkpoints which trainers submit to it.

`varve.torch.async_save(..., executor="process")` starts it when it is needed. It goes on when a
trainer is killed, keeps the last saves in memory, so that a trainer that is started again on the
node loads from there, and ends itself when idle. There is one for each user; `varve agent` shows
what it does.

Attributes:
    PROGRAM: The environment variable that names the program, if it is not beside the interpreter's
        scripts nor in the PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Callable

from varve import _core
from varve._core import AgentFile, AgentReport
from varve.errors import CheckpointNotFoundError

__all__ = ["PROGRAM", "AgentFile", "AgentReport", "drain", "program", "status", "stop"]

PROGRAM = "VARVE_AGENT"


def status() -> AgentReport | None:
    """Returns the agent's report; None when no agent runs."""
    try:
        return _core.agent_status()
    except CheckpointNotFoundError:
        return None


def drain(timeout: float = 1800.0) -> None:
    """Waits until everything that was submitted is written; at once when there is no agent.

    A trainer that is started again calls it before it looks for the newest checkpoint: the last one
    that the killed trainer has submitted may still be on its way.

    Raises:
        UnavailableError: Not within `timeout` seconds.
        InvalidArgumentError: A timeout that is none.
    """
    _unless_none_runs(_core.agent_drain, timeout)


def stop(timeout: float = 1800.0) -> None:
    """Waits as `drain`, then ends the agent. Copies that it keeps in memory are lost."""
    _unless_none_runs(_core.agent_stop, timeout)


def _unless_none_runs(tell: Callable[[float], None], timeout: float) -> None:
    """Not checked beforehand: an idle agent may end in between."""
    with contextlib.suppress(CheckpointNotFoundError):
        tell(timeout)


def program() -> str:
    """Returns the program that is started where no agent runs."""
    chosen = os.environ.get(PROGRAM)
    if chosen:
        return chosen
    inside = os.path.join(os.path.dirname(__file__), "bin")  # In a wheel that brings its libraries.
    for folder in (inside, sysconfig.get_path("scripts")):
        found = os.path.join(folder, "varve-agent")
        if os.path.exists(found):
            return found
    return shutil.which("varve-agent") or "varve-agent"
