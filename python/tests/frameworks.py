"""The training frameworks that tests run: installed from requirements/frameworks.txt, or skipped."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch

from varve.torch import _tensors
from varve.torch._tensors import TorchArrays


def framework(name: str) -> Any:
    """Returns a framework's package. Skips the tests of a module that calls it where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            raise
        reason = f"{name} cannot be imported: {error} (pip install -r requirements/frameworks.txt)"
        pytest.skip(reason, allow_module_level=True)


def forget_the_default_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets the names of the tensors that loads make on the default device.

    That is another one than the CPU for them, as it is where the parameters are on GPUs.
    """
    there: list[str] = []
    create = TorchArrays.create

    def noted(
        self: TorchArrays, fqn: str, dtype: int, shape: Any, origin: str, like: Any = None
    ) -> Any:
        if like is None:
            there.append(fqn)
            self._device = "cpu"
        return create(self, fqn, dtype, shape, origin, like)

    monkeypatch.setattr(TorchArrays, "create", noted)
    monkeypatch.setattr(_tensors, "_default_device", lambda: torch.device("meta"))
    return there
