"""What users give a manager, checked; and who it is."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from varve import _arguments
from varve._core import manage


def is_whole(step: manage.RunStep) -> bool:
    """Returns True for a step that can be loaded, as far as its index tells."""
    return step.state in ("whole", "displaced")


def step_number(step: Any) -> int:
    """Returns the number of a step. Raises InvalidArgumentError for what is none."""
    try:
        found = int(step.__index__())
    except AttributeError:
        found = -1
    if isinstance(step, bool) or not 0 <= found < 1 << 63:
        raise _arguments.refuse("step", step, "a whole number from 0 on")
    return found


def number(name: str, value: Any) -> float:
    """Returns a metric's value: of a number, a tensor of one element, or a function that returns one."""
    try:
        found = value() if callable(value) else value
        return float(found.detach() if hasattr(found, "detach") else found)
    except (TypeError, ValueError, RuntimeError):
        raise _arguments.refuse(
            f"metrics[{name!r}]", value, "a number, a tensor of one element or a function of these"
        ) from None


def holder() -> str:
    """Says who this job is, for the message that a second one gets."""
    job = os.environ.get("SLURM_JOB_ID")
    in_slurm = f", SLURM job {job}" if job else ""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()}{in_slurm}, since {since}"
