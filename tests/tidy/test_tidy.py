"""clang-tidy is run on what can have findings, and on nothing less."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tidy", Path(__file__).with_name("tidy.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, text in {
        "include/varve/a.h": "#pragma once\n",
        "src/base/b.h": '#pragma once\n#include "varve/a.h"\n#include "base/c.h"\n',
        "src/base/c.h": '#pragma once\n#include "base/b.h"\n',
        "src/base/b.cc": '#include "base/b.h"\n#include <vector>\n',
        "src/base/d.cc": "int d;\n",
        "tools/varve/ls.cc": '#include "verb.h"\n',
        "tools/varve/verb.h": "#include <varve/a.h>\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return module


EVERYTHING = ["src/base/b.cc", "src/base/d.cc", "tools/varve/ls.cc"]


@pytest.mark.parametrize(
    ("changed", "checked"),
    [
        (set(), []),
        ({"src/base/d.cc"}, ["src/base/d.cc"]),
        ({"src/base/c.h"}, ["src/base/b.cc"]),
        ({"include/varve/a.h"}, ["src/base/b.cc", "tools/varve/ls.cc"]),
        ({"docs/python.md"}, []),
        ({".clang-tidy"}, EVERYTHING),
        ({"CMakeLists.txt"}, []),  # The flags that come of it are compared.
    ],
)
def test_sources_that_include_a_change_are_checked(
    tidy: ModuleType, changed: set[str], checked: list[str]
) -> None:
    assert tidy.to_check(EVERYTHING, changed) == checked


def test_a_tree_that_the_clone_does_not_have_means_all_sources(
    tidy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_tree").write_text("0" * 40 + "\nas now\n")
    monkeypatch.setattr(tidy, "CHECKED", tmp_path / "checked_tree")
    monkeypatch.setattr(tidy, "sources", lambda: EVERYTHING)
    monkeypatch.setattr(tidy, "configuration", lambda: "as now")
    assert tidy.select(whole=False) == EVERYTHING


def test_other_flags_mean_all_sources(
    tidy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled_with(flags: str, root: str) -> str:
        command = f"{root}/clang++ {flags} -I{root}/src -c {root}/src/base/d.cc"
        monkeypatch.setattr(tidy, "commands", lambda: [{"command": command}])
        configured: str = tidy.configuration()
        return configured

    (tmp_path / "checked_tree").write_text("tree\n" + compiled_with("-Wall", "/a") + "\n")
    monkeypatch.setattr(tidy, "CHECKED", tmp_path / "checked_tree")
    monkeypatch.setattr(tidy, "sources", lambda: EVERYTHING)
    monkeypatch.setattr(tidy, "changed_files", lambda tree: set())
    compiled_with("-Wall", "/b")
    assert tidy.select(whole=False) == []
    compiled_with("-Wall -DA", "/b")
    assert tidy.select(whole=False) == EVERYTHING


def beside_b(tidy: ModuleType, root: Path, text: str) -> Any:
    """Returns b.cc and, with this text, d.cc as one unit."""
    tidy.JOINED = root / "joined"
    (root / "src/base/d.cc").write_text(text)
    return tidy.Unit(["-std=c++20", "-Isrc", "-Iinclude"], ["src/base/b.cc", "src/base/d.cc"])


def test_a_finding_is_at_its_place_in_its_own_source(tidy: ModuleType, tmp_path: Path) -> None:
    unit = beside_b(tidy, tmp_path, "int a;\nusing Unused = bool;\nint d = Lacking();\n")
    found = tidy.check(unit, set())
    assert any(line.startswith("src/base/d.cc:3:9: error: ") for line in found), found


def test_an_include_that_a_source_before_it_has_is_wanted(tidy: ModuleType, tmp_path: Path) -> None:
    unit = beside_b(tidy, tmp_path, "std::vector<int> d;\n")
    assert tidy.check(unit, set()) == []
    found = tidy.check(unit, {"src/base/d.cc"})
    assert found[0].startswith("src/base/d.cc:1:1: error: use of undeclared identifier 'std'")
