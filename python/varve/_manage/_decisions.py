"""Calls in which all ranks of a manager get what rank 0 has found out, or its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varve._manage._agreement import decoded, encoded
from varve._manage._backend import Backend
from varve._manage._os_errors import as_error
from varve.errors import BY_CODE, Error


class Decisions:
    """The collective calls of a manager. Threads: one."""

    def __init__(self, backend: Backend, run: str, timeout: float) -> None:
        self._backend = backend
        self._run = run
        self._timeout = timeout

    def of_rank_0(self, what: str, action: Callable[[], Any]) -> Any:
        """Returns what rank 0's action returns, on all ranks; raises its error on all of them."""
        with self._backend.call(what) as call:
            told: list[Any] = []
            if self._backend.rank == 0:
                try:
                    told = ["ok", _done(what, action)]
                except Error as error:
                    if call is None:
                        raise
                    number = getattr(error, "errno", None)
                    told = [error.code, str(error), error.path or self._run, number]
            if call is not None:
                told = decoded(call.share(encoded(told), self._timeout))
        if told[0] != "ok":
            code, message, path, number = told
            raise BY_CODE[code](message, path=path, errno=number)
        return told[1]

    def outcomes(self, mine: str) -> set[str]:
        """Returns the outcomes of all ranks."""
        with self._backend.call("compare outcomes") as call:
            if call is None:
                return {mine}
            return {one.decode() for one in call.gather(mine.encode(), self._timeout)}


def _done(what: str, action: Callable[[], Any]) -> Any:
    """Returns what an action returns. An OSError of Python's becomes an error of Varve's."""
    try:
        return action()
    except Error:
        raise
    except OSError as error:
        raise as_error(what, error) from error
