"""A call in which all ranks get what rank 0 has found out, or its error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from varve._core import Channel
from varve._manage._os_errors import as_error
from varve.errors import BY_CODE, Error, InternalError


def told_by_rank_0(
    call: AbstractContextManager[Channel | None],
    what: str,
    decide: Callable[[], Any],
    timeout: float,
) -> Any:
    """Returns, on all ranks of a call, what `decide` returns on rank 0; raises its error on all of them.

    Args:
        call: Enters the call; gives None in a single process.
        what: Names the call in errors.
        decide: Called on rank 0 alone; returns what JSON can hold. Its OSError becomes an error of Varve's.
        timeout: Seconds that ranks wait for each other, `decide` included.
    """
    told: dict[str, Any] = {}
    failure: Exception | None = None
    with call as channel:
        if channel is None or channel.rank == 0:
            try:
                told = {"value": _done(what, decide)}
            except Exception as error:
                failure = error
                told = _described(error)
        if channel is not None:
            told = json.loads(channel.share(json.dumps(told).encode(), timeout))
    if failure is not None:
        raise failure
    if "code" in told:
        raise BY_CODE.get(told.pop("code"), Error)(told.pop("text"), rank=0, **told)
    return told["value"]


def _done(what: str, action: Callable[[], Any]) -> Any:
    """Returns what an action returns. An OSError of Python's becomes an error of Varve's."""
    try:
        return action()
    except Error:
        raise
    except OSError as error:
        raise as_error(what, error) from error


def _described(error: Exception) -> dict[str, Any]:
    if not isinstance(error, Error):
        error = InternalError(f"{type(error).__name__}: {error}")
    number = getattr(error, "errno", None)
    return {"code": error.code, "text": str(error), "path": error.path, "errno": number}
