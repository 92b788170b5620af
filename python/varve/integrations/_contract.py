"""The names of a framework that an adapter needs, many of them private, in one table per adapter.

A table maps "package.module:Class.method" to the parameters that the adapter gives or takes there. For
an attribute that is no function the parameters are empty.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from varve.errors import UnsupportedError

#: The names that an adapter needs of a framework.
Table = Mapping[str, Sequence[str]]


def differences(table: Table) -> list[str]:
    """Returns a sentence for each name or parameter of the table that the installed framework lacks."""
    found = []
    for name, parameters in table.items():
        module, _, attributes = name.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for attribute in attributes.split("."):
                value = getattr(value, attribute)
        except (ImportError, AttributeError):
            found.append(f"{name} does not exist")
            continue
        if parameters:
            there = inspect.signature(value).parameters
            found += [f"{name} has no parameter {p!r}" for p in parameters if p not in there]
    return found


def require(adapter: str, package: str, tested: str, table: Table) -> None:
    """Checks the table.

    Raises:
        UnsupportedError: The installed framework lacks something; the message lists all of it.
    """
    lacking = differences(table)
    if lacking:
        version = getattr(importlib.import_module(package), "__version__", "of unknown version")
        raise UnsupportedError(
            f"{adapter} does not work with the installed {package} {version}: "
            + "; ".join(lacking)
            + f". It is tested with {package} {tested}"
        )


def missing_package(adapter: str, package: str, extra: str, error: ImportError) -> ImportError:
    """Returns the error of an adapter whose framework cannot be imported; says what to install."""
    return ImportError(
        f'{adapter} needs {package}, which cannot be imported ({error}); pip install "varve[{extra}]"',
        name=package,
    )
