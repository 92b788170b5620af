"""Torch's log events (logger "dcp_logger"): start, end and exception of each step, under torch's names.

Torch's own decorator makes them, so they have the fields of the torch that is installed. A torch without
that decorator has no events, and nothing happens here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed.checkpoint import logger

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_method_logger: Any = getattr(logger, "_dcp_method_logger", None)

#: The file of the decorator, whose frames stand between the user's call and ours.
FILE = logger.__file__


def logged(function: _Function) -> _Function:
    """Logs each call of a public function, by its name."""
    if _method_logger is None:
        return function
    made: _Function = _method_logger(log_exceptions=True)(function)
    return made


def log_step(
    name: str, step: Callable[[], _T], log_exceptions: bool = True, **arguments: Any
) -> _T:
    """Runs `step` between the events of the name `name`, which contain `arguments`."""
    if _method_logger is None:
        return step()

    def call() -> _T:
        return step()

    call.__name__ = name
    made: _T = _method_logger(log_exceptions=log_exceptions, **arguments)(call)()
    return made


class Step:
    """A step that begins in one call and ends in another: logs its start when it is made.

    Attributes, times and events are those of torch's decorator.
    """

    def __init__(self, name: str, **arguments: Any) -> None:
        self._fields: dict[str, Any] = {}
        if _method_logger is None:
            return
        self._fields = logger._get_msg_dict(name, **arguments)
        self._began = self._log("start", log_exceptions=True)

    def end(self, error: BaseException | None) -> None:
        """Logs the end, or the exception."""
        if _method_logger is None:
            return
        if error is None:
            now = time.time_ns()
            self._log("end", now, times_spent=now - self._began)
        else:
            self._log("exception", error=f"{error}")

    def _log(self, event: str, now: int | None = None, **more: Any) -> int:
        """Logs an event of the time `now` (in nanoseconds; by default the present), and returns that time."""
        now = time.time_ns() if now is None else now
        self._fields |= {"event": event, "time": now, **more}
        failed = event == "exception"
        logger._dcp_logger.log(logging.ERROR if failed else logging.DEBUG, dict(self._fields))
        return now
