"""Tests for what users write for Varve. Needs pytest.

`StorageConformance` tests a store of `varve.storage.ObjectStore`, each of its promises by one test:

    class TestMyStore(varve.testing.StorageConformance):
        @pytest.fixture
        def store(self):
            return MyStore(...)
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("varve.testing._storage")

from varve.testing._storage import StorageConformance  # noqa: E402 - rewritten from now on

__all__ = ["StorageConformance"]
