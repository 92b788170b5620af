"""The ranks of test_options_of_ranks.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import time
from typing import Any

import torch

import varve.torch

#: Options of which rank 1 gives another value than the others; names are below the test's directory.
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "upload_to": ("copy", None),
    "format": ("varve", "dcp"),
    "overwrite": (False, True),
    "on_difference": ("keep", "first"),
    "check_replicas": ("samples", "full"),
}


def differ(rank: int, size: int, directory: str) -> tuple[dict[str, Any], float]:
    """Makes saves with options that differ, each followed by one with the same; returns all outcomes."""
    state = {"w": torch.arange(1000), "mine": varve.torch.PerRank(rank)}

    def save(verb: str, name: str, options: dict[str, Any]) -> str:
        given = {
            key: f"{directory}/{name}-{value}" if key == "upload_to" and value else value
            for key, value in options.items()
        }
        try:
            if verb == "save":
                varve.torch.save(state, f"{directory}/{name}", timeout=30, **given)
            else:
                varve.torch.async_save(state, f"{directory}/{name}", timeout=30, **given).result(30)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "done"

    found: dict[str, Any] = {}
    began = time.monotonic()
    for verb in ("save", "async_save"):
        for option, values in DIFFERENT.items():
            # Either side first: rank 0 is the one that gives an `upload_to`, and then it is not.
            for turn in (0, 1):
                name = f"{verb}-{option}-{turn}"
                found[name] = save(verb, name, {option: values[(rank == 1) ^ turn]})
                found[f"{name}-next"] = save(verb, f"{name}-next", {option: values[turn]})
    return found, time.monotonic() - began
