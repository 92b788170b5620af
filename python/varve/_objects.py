"""The functions that a match calls for objects with state dicts; see varve._match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Source(Protocol):
    """The reads of a match from a checkpoint, by names of the destination."""

    @property
    def path(self) -> str:
        """The checkpoint's name."""

    def values(self, names: Sequence[str]) -> list[Any] | None:
        """Returns plain values; None where one of them is not there."""

    def geometry(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Returns dtype number and shape of a tensor."""


class Objects(Protocol):
    """Knowledge of objects that have a state dict. The part of Arrays that a match asks."""

    def is_module(self, value: Any) -> bool:
        """Returns True for an object whose `load_state_dict` takes the keys of its state dict alone."""

    def is_shard(self, tensor: Any) -> bool:
        """Returns True for a tensor of which each rank may hold another part."""

    def plan_module(
        self, module: Any, state: Any, stored: Any, path: str | None, source: Source
    ) -> Upgrade:
        """Returns how a module's hooks make keys of its state dict that are not stored.

        Raises InvalidArgumentError for a module whose `load_state_dict` would refuse its own state dict.
        """

    def plan_optimizer(
        self,
        value: Any,
        state: Any,
        stored: Any,
        path: str | None,
        source: Source,
        chosen: Callable[[], bool],
    ) -> Planned | None:
        """Returns what is stored for an optimizer, whose keys are all `chosen` or not; None for other objects."""

    def give_back(self, value: Any, state: Any) -> None:
        """Loads a filled state dict into the object it came from."""


@dataclass
class Upgrade:
    """Keys of a module's state dict that its hooks for loading make of what is stored.

    Attributes:
        renamed: The stored key that holds the values, by key.
        made: Keys whose values hooks compute while the module loads.
        needed: Stored keys that they take for that.
    """

    renamed: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """The stored state of one parameter of an optimizer, and its name.

    `present` is the parameter's key in the destination's state dict, `key` in the one that is given back.
    `unlike` says which of its tensors are of another class or shape than the optimizer makes. `dropped` are keys of the present
    state whose tensors give way to others, as the optimizer makes them in another world. `make` returns tensors that
    the state needs before it is filled, in the layout of the parameter, and others that need no filling.
    """

    key: Any
    present: Any
    name: str
    stored: Any
    parameter: Any
    unlike: list[str] = field(default_factory=list)
    dropped: set[Any] = field(default_factory=set)
    make: Callable[[], tuple[dict[str, Any], dict[str, Any]]] | None = None


class First(Protocol):
    """The state that an optimizer makes in its first step, compared with the stored one."""

    def plan(self, entry: Entry, present: Any) -> None:
        """Sets `unlike` and `make` of an entry; `present` is the state that is there, or None.

        Raises InvalidArgumentError where the layout of the state among ranks is not known.
        """

    def notes(self) -> list[str]:
        """Returns what the caller is to know."""

    def remedy(self) -> str:
        """Returns what to do where entries are `unlike`; "" where an error says enough."""


@dataclass
class Planned:
    """The stored state of an optimizer.

    Attributes:
        entries: States of parameters.
        others: Stored keys of the state that belong to no parameter.
        halves: Names that a stored state lacks and should have.
        options: By group of the destination, the stored group that each option is from. None: groups are
            as they were stored.
        given: By group of the destination, then, the options that are not stored and that the optimizer
            itself gives to the groups it loads, such as those that older releases of it did not have.
        notes: Remarks for the caller.
        beside: Some parameters are divided among ranks, or elsewhere than tensors are made by default: new
            state goes where they are.
        first: Knows what the optimizer makes of its parameters.
    """

    entries: list[Entry]
    others: list[Any]
    halves: list[str]
    options: list[dict[Any, int]] | None = None
    given: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    beside: bool = False
    first: First | None = None
