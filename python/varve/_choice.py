"""The choice of the entries that a load fills."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from varve import _arguments
from varve._select import Rename


@dataclass(frozen=True)
class Choice:
    """Which entries a load fills, and from where.

    Raises InvalidArgumentError for a flag that is neither True nor False.
    """

    keys: str | Iterable[str] | None
    rename: Rename | None
    allow_pickle: bool
    use_agent: bool
    assign: bool = False
    one_will_do: str | Iterable[str] | None = None
    """Names of which the lowest rank's value will do where ranks cannot get their own."""

    def __post_init__(self) -> None:
        for name in ("allow_pickle", "use_agent", "assign"):
            _arguments.flag(name, getattr(self, name))
