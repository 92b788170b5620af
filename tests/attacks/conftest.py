"""The command line under attack, and the modules of this folder made importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def binary() -> Path:
    named = os.environ.get("VARVE_CLI")
    places = (Path(sys.executable).parent / "varve", ROOT / "build" / "dev" / "bin" / "varve")
    found = Path(named) if named else next((place for place in places if place.exists()), None)
    if found is None:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("no varve command was built")
        pytest.skip("no varve command here; ./setup builds it")
    return found
