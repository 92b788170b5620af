"""A pytest plugin: the tests of `StorageConformance` for a store that an option names.

pytest -p varve.testing.plugin --varve-store mypackage.stores:make --pyargs varve.testing.conformance
"""

from __future__ import annotations

import importlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("varve")
    group.addoption(
        "--varve-store",
        metavar="MODULE:FUNCTION",
        help="the function, or class, that returns the varve.storage.ObjectStore to test",
    )
    group.addoption(
        "--varve-folder",
        default="varve-conformance",
        metavar="NAME",
        help="where in the store the tests write, 'bucket/folder' for example (default: %(default)s)",
    )


@pytest.fixture
def varve_store(request: pytest.FixtureRequest) -> object:
    """Returns a new store of those that --varve-store names."""
    name = request.config.getoption("--varve-store")
    if not name or ":" not in name:
        raise pytest.UsageError("name the store to test: --varve-store MODULE:FUNCTION")
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)()
