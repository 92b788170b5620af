"""The steps of a run, as its manager shows them."""

from __future__ import annotations

import os
from typing import Literal

from varve._catalogue import unread
from varve._core import manage
from varve._manage._inputs import is_whole, step_number
from varve._manage._places import Places, path_of
from varve._manage._policy import Keep
from varve.errors import InvalidArgumentError


class RunSteps:
    """Questions to a manager about its steps. Any rank, for itself."""

    _run: str
    _keep: Keep
    _places: Places

    @property
    def run(self) -> str:
        """The run's directory."""
        return self._run

    def steps(self) -> list[manage.RunStep]:
        """Returns the steps of the run, from the oldest to the newest, with those that are not whole."""
        return manage.list_steps(self._run)

    def latest(self) -> manage.RunStep | None:
        """Returns the newest whole step; None where there is none.

        Raises UnsupportedError where a newer Varve wrote the newest, UnavailableError where this process
        cannot read it.
        """
        for step in reversed(self.steps()):
            error = unread(step.state, step.detail, os.path.join(self._run, step.name))
            if error is not None:
                raise error
            if is_whole(step):
                return step
        return None

    def best(
        self, by: str | None = None, mode: Literal["min", "max"] | None = None
    ) -> manage.RunStep | None:
        """Returns the whole step with the best value of a metric; None where none has it.

        Args:
            by: The metric; by default that of `keep`.
            mode: "min" or "max"; by default that of `keep`.
        """
        name = by if by is not None else self._keep.by
        if name is None:
            raise InvalidArgumentError('best: by which metric? Such as best(by="loss")')
        known = [
            step
            for step in self.steps()
            if is_whole(step) and step.metrics.get(name, float("nan")) == step.metrics.get(name)
        ]
        if not known:
            return None
        sign = -1 if (mode or self._keep.mode) == "max" else 1
        return min(reversed(known), key=lambda step: sign * step.metrics[name])

    def pin(self, step: int, why: str = "") -> None:
        """Keeps a step from being removed by rules, until `unpin`. By any rank, for itself."""
        manage.pin(path_of(self._places.find(step_number(step), here=True)), why)

    def unpin(self, step: int) -> None:
        """Takes the pin of a step away."""
        manage.unpin(path_of(self._places.find(step_number(step), here=True)))
