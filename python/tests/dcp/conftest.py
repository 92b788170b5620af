"""Torch warns of what these tests do on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

_ON_PURPOSE = (
    "torch.distributed is disabled",
    "torch.distributed is unavailable",
    "torch.distributed is not initialized",
    "Detected an existing checkpoint",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _ON_PURPOSE:
            warnings.filterwarnings("ignore", message)
        yield
