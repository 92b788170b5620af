"""The pages of documentation: every link leads somewhere, and they are short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.md")]
    if path.is_file()
)
#: Words of docs/, the generated pages included.
MAX_WORDS = 25_000


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        count = sum(one == name or re.fullmatch(rf"{name}-\d+", one) is not None for one in found)
        found.add(f"{name}-{count}" if count else name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{target}: no such heading"


def test_every_page_that_code_names_is_there() -> None:
    missing = []
    for folder in ("src", "include", "tools", "python", "examples", "fuzz", "tests", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in {".py", ".cc", ".h", ".fbs"} or "golden" in path.parts:
                continue
            for name in re.findall(r"\bdocs/([\w-]+\.md)\b", path.read_text()):
                if not (ROOT / "docs" / name).is_file() and name != "x.md":
                    missing.append(f"{path.relative_to(ROOT)}: docs/{name}")
    assert missing == []


def test_the_pages_are_short_enough_to_be_read() -> None:
    words = {
        path.name: sum(re.search(r"\w", word) is not None for word in path.read_text().split())
        for path in (ROOT / "docs").glob("*.md")
    }
    assert sum(words.values()) <= MAX_WORDS, words
