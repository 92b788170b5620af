"""The agent of this node: a process that writes the checkpoints which trainers submit to it.

`varve.torch.async_save(..., executor="process")` starts it when it is needed. It goes on when a trainer
is killed, keeps in memory what was saved last, so that a trainer which is started again on the node
loads from there, and ends itself when idle. There is one for each user; `varve agent` says what it does.

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
from dataclasses import dataclass

from varve import _core
from varve.errors import CheckpointNotFoundError

PROGRAM = "VARVE_AGENT"


@dataclass(frozen=True)
class AgentFile:
    """A data file that the agent writes, is going to write, or keeps in memory.

    Attributes:
        path: The checkpoint.
        rank: Whose file.
        bytes: Of its data.
        writing: It is being written.
        trainer_lives: The process that handed it over is still there.
    """

    path: str
    rank: int
    bytes: int
    writing: bool
    trainer_lives: bool


@dataclass(frozen=True)
class AgentReport:
    """What the agent does.

    Attributes:
        version: Of Varve.
        pid: Its process.
        stopping: It takes nothing more.
        trainers: Stagers that are connected.
        saves: What is not yet written.
        held: What is written, and in memory.
    """

    version: str
    pid: int
    stopping: bool
    trainers: int
    saves: list[AgentFile]
    held: list[AgentFile]


def status() -> AgentReport | None:
    """What the agent does; None when there is none."""
    try:
        known = _core.agent_status()
    except CheckpointNotFoundError:
        return None
    for files in ("saves", "held"):
        known[files] = [AgentFile(**file) for file in known[files]]
    return AgentReport(**known)


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
    """The same, and ends the agent. What it keeps in memory goes."""
    _unless_none_runs(_core.agent_stop, timeout)


def _unless_none_runs(tell: Callable[[float], None], timeout: float) -> None:
    """Not asked for beforehand: an idle agent may end in between."""
    with contextlib.suppress(CheckpointNotFoundError):
        tell(timeout)


def program() -> str:
    """The program that is started where no agent runs."""
    beside = os.path.join(sysconfig.get_path("scripts"), "varve-agent")
    return os.environ.get(PROGRAM) or (
        beside if os.path.exists(beside) else shutil.which("varve-agent") or "varve-agent"
    )
