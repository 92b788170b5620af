"""Skips everything where there is no CUDA device, with one reason; an agent for each test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # For gpu_support.

from gpu_support import why_not


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker for `run`, which does not read the repository's settings."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_runtest_setup() -> None:
    """Skips the tests of this folder, all on one line of the summary."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _emptied() -> Iterator[None]:
    """Gives the device's memory back after each test."""
    yield
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The directory of an agent of this test alone."""
    import varve.agent

    with tempfile.TemporaryDirectory() as home:
        directory = os.path.join(home, "agent")
        monkeypatch.setenv("VARVE_AGENT_DIR", directory)
        yield directory
        if os.path.isdir(directory):
            varve.agent.stop(60.0)
