"""docs/options.md names every option of the public headers and every environment variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "options.md").read_text()
ON_THE_PAGE = set(re.findall(r"`(?:State::)?(\w+)`", PAGE))

STRUCTS = {
    "options.h": ("SaveOptions", "LoadOptions"),
    "async_save.h": ("StagedSaveOptions", "AsyncSaveOptions", "DeferSaveOptions", "StagerOptions"),
    "convert.h": ("ConvertOptions",),
    "agent.h": ("AgentOptions", "AgentServerOptions"),
}
FIELD = re.compile(r"^  [\w:<>, ()&*]+? (\w+)(?: = [^;]+|\{\})?;", re.MULTILINE)


def fields(header: str, struct: str) -> list[str]:
    text = (ROOT / "include" / "varve" / header).read_text()
    body = re.search(rf"^struct {struct}(?: : \w+)? {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    assert body is not None, f"{struct} is not in {header}"
    return FIELD.findall(re.sub(r"//.*", "", body[1]))


def options() -> Iterator[tuple[str, str]]:
    for header, structs in STRUCTS.items():
        for struct in structs:
            for field in fields(header, struct):
                yield struct, field


def variables() -> set[str]:
    """Names that the library, its programs and the package read from the environment."""
    found: set[str] = set()
    for folder in ("src", "tools", "python/varve"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".cc", ".h", ".py"} and not path.stem.endswith("_test"):
                text = path.read_text()
                found |= set(re.findall(r'getenv\("(\w+)"\)', text))
                found |= set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', text))
                found |= set(re.findall(r'^PROGRAM = "(\w+)"', text, re.MULTILINE))
    return found


def test_the_headers_are_understood() -> None:
    found = list(options())
    assert ("SaveOptions", "writes_in_flight") in found
    assert ("AgentServerOptions", "idle") in found
    assert len(found) > 45


@pytest.mark.parametrize(("struct", "field"), list(options()))
def test_every_option_is_on_the_page(struct: str, field: str) -> None:
    assert field in ON_THE_PAGE, f"{struct}::{field} is not in docs/options.md"


def test_every_environment_variable_is_on_the_page() -> None:
    read = variables()
    assert {"VARVE_AGENT_DIR", "VARVE_AGENT", "NO_COLOR", "LOCAL_WORLD_SIZE"} <= read
    assert read <= ON_THE_PAGE
