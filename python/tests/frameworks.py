"""The training frameworks that tests run: installed from requirements/frameworks.txt, or skipped."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def framework(name: str) -> Any:
    """Returns a framework's package. Skips the tests of a module that calls it where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            raise
        reason = f"{name} cannot be imported: {error} (pip install -r requirements/frameworks.txt)"
        pytest.skip(reason, allow_module_level=True)
