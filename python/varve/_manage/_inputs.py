"""What users give a manager, checked; and who it is."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from varve import _arguments, _core
from varve._core import manage
from varve._manage._policy import Ending, Every, Keep
from varve.errors import InvalidArgumentError

_STEP_NAME = re.compile(r"[A-Za-z_=-]*[0-9]+")


@dataclass
class Settings:
    """The arguments that managers of all backends have."""

    run: str | os.PathLike[str]
    every: Every | int | None
    keep: Keep | int | None
    ending: Ending | None
    name: str
    verify: Literal["index", "full"]
    max_restarts: int | None
    max_failures: int | None
    on_saved: Callable[[dict[str, Any]], None] | None
    on_failure: Callable[[int, BaseException], None] | None
    metrics_file: str | os.PathLike[str] | None
    timeout: float


def check_settings(settings: Settings) -> None:
    """Raises InvalidArgumentError for arguments that make no sense."""
    name = settings.name.format(step=7)
    if not _STEP_NAME.fullmatch(name) or _core.step_from_name(name) != 7:
        raise InvalidArgumentError(
            f'name={settings.name!r}: want letters and the step behind them, such as "step-{{step:08d}}"'
        )
    if settings.verify not in ("index", "full"):
        raise _arguments.refuse("verify", settings.verify, '"index" or "full"')
    for option in ("max_restarts", "max_failures"):
        if getattr(settings, option) is not None:
            _arguments.count(option, getattr(settings, option))
    for option in ("on_saved", "on_failure"):
        if getattr(settings, option) is not None and not callable(getattr(settings, option)):
            raise _arguments.refuse(option, getattr(settings, option), "a function")


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
