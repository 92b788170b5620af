"""The arguments of a manager, checked, and the identity of its job."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from varve import _arguments, _core
from varve._core import manage
from varve._engine import local_path_text, path_text
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
    upload_to: str | os.PathLike[str] | None
    keep_uploaded: Keep | int | None
    timeout: float

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Returns the settings among the arguments of a manager: `locals()`, where its call begins."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls)})


def is_whole(step: manage.RunStep) -> bool:
    """Returns True for a step that can be loaded, as far as its index tells."""
    return step.state in ("whole", "displaced")


def step_number(step: Any) -> int:
    """Returns the number of a step. Raises InvalidArgumentError for what is none."""
    return _arguments.count("step", step, least=0)


def every_of(given: object) -> Every | None:
    """Returns what a manager's argument `every` stands for."""
    if given is None or isinstance(given, Every):
        return given
    if hasattr(given, "__index__"):
        return Every(steps=_arguments.count("every", given))
    raise _arguments.refuse(
        "every", given, 'a number of steps, None, or when to save: varve.Every("auto")'
    )


def keep_of(given: object) -> Keep:
    """Returns what a manager's argument `keep` stands for."""
    if given is None or isinstance(given, Keep):
        return given or Keep()
    if hasattr(given, "__index__"):
        return Keep(last=_arguments.count("keep", given))
    raise _arguments.refuse(
        "keep", given, "a number of steps, None, or rules: varve.Keep(last=3, every=1000)"
    )


def ending_of(given: object) -> Ending:
    """Returns what a manager's argument `ending` stands for."""
    if given is None or isinstance(given, Ending):
        return given or Ending()
    raise _arguments.refuse("ending", given, 'None or varve.Ending(signals=["SIGTERM"])')


def name_of(template: object, step: int) -> str:
    """Returns the name of a step; "" where the template gives none."""
    try:
        return str(template.format(step=step)) if isinstance(template, str) else ""
    except (LookupError, ValueError, AttributeError):
        return ""


def name_prefix(template: str) -> str:
    """Returns the letters that the names of steps begin with."""
    return name_of(template, 7).rstrip("0123456789")


def upload_place(settings: Settings) -> str:
    """Returns the run's place in another storage; "" for none. Raises InvalidArgumentError."""
    if settings.upload_to is None:
        if settings.keep_uploaded is not None:
            raise InvalidArgumentError("keep_uploaded: only with upload_to")
        return ""
    to = path_text(settings.upload_to)
    if manage.is_in_object_store(path_text(settings.run)):
        raise InvalidArgumentError(
            f"upload_to={settings.upload_to!r}: the run {settings.run!r} is in an object store itself"
        )
    if os.path.realpath(to) == os.path.realpath(path_text(settings.run)):
        raise InvalidArgumentError(f"upload_to={settings.upload_to!r} is the run itself")
    keep_of(settings.keep_uploaded)
    return to


def check_settings(settings: Settings) -> tuple[Every | None, Keep, Ending]:
    """Returns when to save, what to keep and what ends the run, of a manager's settings.

    Raises InvalidArgumentError for settings that make no sense.
    """
    name = name_of(settings.name, 7)
    if not _STEP_NAME.fullmatch(name) or _core.step_from_name(name) != 7:
        raise InvalidArgumentError(
            f'name={settings.name!r}: want letters and the step behind them, such as "step-{{step:08d}}"'
        )
    if settings.verify not in ("index", "full"):
        raise _arguments.refuse("verify", settings.verify, '"index" or "full"')
    if settings.metrics_file is not None:
        local_path_text(settings.metrics_file)
    for option in ("max_restarts", "max_failures"):
        if getattr(settings, option) is not None:
            _arguments.count(option, getattr(settings, option))
    for option in ("on_saved", "on_failure"):
        if getattr(settings, option) is not None and not callable(getattr(settings, option)):
            raise _arguments.refuse(option, getattr(settings, option), "a function")
    return every_of(settings.every), keep_of(settings.keep), ending_of(settings.ending)


def holder() -> str:
    """Says who this job is, for the message that a second one gets."""
    job = os.environ.get("SLURM_JOB_ID")
    in_slurm = f", SLURM job {job}" if job else ""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()}{in_slurm}, since {since}"
