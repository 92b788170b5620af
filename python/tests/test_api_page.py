"""docs/api.md names every public function, argument, method and report field, as docs/generate.py makes it."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import varve
import varve.agent
import varve.torch
import varve.torch.dcp
from varve import _core

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()


def sections() -> dict[str, str]:
    """The text of each section, by each of the names in its heading."""
    found = {}
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        for name in re.findall(r"`([\w.]+)`", heading):
            found[name] = text.split("\n## ")[0]
    return found


SECTIONS = sections()


def public() -> Iterator[tuple[str, Any]]:
    for module in (varve, varve.torch):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for name in ("status", "drain", "stop"):
        yield f"varve.agent.{name}", getattr(varve.agent, name)


PUBLIC = dict(public())

#: Exceptions, warnings and text have no section: the table of errors has the first two.
ERRORS = {
    name
    for name, value in PUBLIC.items()
    if not callable(value) or (inspect.isclass(value) and issubclass(value, BaseException))
}

#: Classes that `open` and `files` make: their arguments are their own.
MADE_BY_OPEN = {varve.Checkpoint, varve.StoredTensor, varve.StoredFiles}


def details(value: Any) -> list[str]:
    """Arguments of a function or class, fields of a report, methods and properties of a class."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    parts = (_core, _core.background, _core.manage, _core.uploads)
    engine = {name: value for part in parts for name, value in vars(part).items()}
    if inspect.isclass(value) and value.__name__ in engine:  # A report of the engine.
        return [name for name in vars(value) if not name.startswith("_")]
    names = [name for name in inspect.signature(value).parameters if name != "self"]
    if value in MADE_BY_OPEN:
        names = []
    if inspect.isclass(value):
        inherited = [vars(base) for base in value.__mro__ if base.__module__.startswith("varve")]
        names += [name for found in inherited for name in found if not name.startswith("_")]
    return names


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "varve.__version__"])
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name.rsplit('.', 1)[1]}\b", PAGE)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in PUBLIC.items()
        if callable(value)
        and not (inspect.isclass(value) and issubclass(value, (BaseException, varve.PerRank)))
    ],
)
def test_every_argument_and_field_is_in_its_section(name: str) -> None:
    text = SECTIONS[name]
    missing = [part for part in details(PUBLIC[name]) if not re.search(rf"\b{part}\b", text)]
    assert missing == []


def test_what_the_agent_reports_is_on_the_page() -> None:
    for report in (varve.agent.AgentReport, varve.agent.AgentFile):
        text = SECTIONS[f"varve.agent.{report.__name__}"]
        assert [part for part in details(report) if part not in text] == []


def test_the_names_of_varve_torch_dcp_are_on_the_page() -> None:
    named = [f"`varve.torch.dcp.{name}`" for name in varve.torch.dcp.__all__]
    assert [name for name in named if name not in PAGE] == []


def test_no_section_is_about_what_is_not_there() -> None:
    for name in SECTIONS:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    assert PUBLIC.keys() - ERRORS <= SECTIONS.keys()


@pytest.mark.parametrize("page", ["api.md", "options.md"])
def test_a_generated_page_is_what_the_program_makes(page: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (DOCS / page).read_text().count("<!-- generated: ") == 2
    made = generate.page(DOCS / page)
    assert (DOCS / page).read_text() == made, "run python docs/generate.py"
