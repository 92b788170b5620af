"""The tests of a store that an option names; see plugin.py."""

from __future__ import annotations

import pytest

from varve.storage import ObjectStore
from varve.testing import StorageConformance


class TestStore(StorageConformance):
    """The promises of the store of --varve-store."""

    @pytest.fixture
    def store(self, varve_store: ObjectStore) -> ObjectStore:
        """Returns the store."""
        return varve_store

    @pytest.fixture(autouse=True)
    def _folder(self, request: pytest.FixtureRequest) -> None:
        self.folder = request.config.getoption("--varve-folder")
