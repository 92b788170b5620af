"""The repository keeps its rules, and each rule reports a small repository that breaks it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load_rules():
    spec = importlib.util.spec_from_file_location(
        "repository_rules", Path(__file__).with_name("repository_rules.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rules = _load_rules()


@pytest.mark.parametrize("rule", rules.FILE_RULES, ids=lambda rule: rule.__name__)
def test_this_repository_keeps(rule):
    assert rule(ROOT) == []


def test_every_written_cpp_test_is_in_the_test_binary():
    binary = Path(os.environ.get("VARVE_TESTS_BINARY", ROOT / "build" / "dev" / "varve_tests"))
    if not binary.exists() and not os.environ.get("VARVE_REQUIRE_BUILD"):
        pytest.skip(f"{binary} is not built; ./test builds it and requires it")
    listing = subprocess.run(
        [binary, "--gtest_list_tests"], capture_output=True, text=True, check=True
    )
    assert rules.tests_are_built(ROOT, listing.stdout) == []


# ---- each rule fails on a repository that breaks it ----


def repository(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


BREAKS = {
    "a lower module includes a higher one": (
        rules.modules_include_downwards,
        {"src/tensor/x.cc": '#include "format/y.h"\n'},
        "src/tensor/x.cc:1: tensor may not include format/y.h",
    ),
    "the engine hears of its own users": (
        rules.modules_include_downwards,
        {"src/save/x.cc": '#include "varve/protocol/plan.h"\n'},
        "src/save/x.cc:1: save may not include varve/protocol/plan.h of protocol",
    ),
    "storage hears of tensors": (
        rules.modules_include_downwards,
        {"src/storage/x.cc": '#include "varve/tensor.h"\n'},
        "storage may not include varve/tensor.h of tensor",
    ),
    "a module includes the facade's header": (
        rules.modules_include_downwards,
        {"src/plan/x.h": "#pragma once\n# include <varve/checkpoint.h>\n"},
        "src/plan/x.h:2: plan may not include varve/checkpoint.h of catalogue",
    ),
    "a module nobody knows": (
        rules.modules_include_downwards,
        {"src/util/x.cc": "int x;\n"},
        "src/util is not one of the modules",
    ),
    "a semaphore that loses wake-ups": (
        rules.no_lost_wake_ups,
        {"src/pipeline/x.h": "#pragma once\n\n#include <semaphore>\n"},
        "src/pipeline/x.h:3: <semaphore> loses wake-ups",
    ),
    "a wait on an atomic": (
        rules.no_lost_wake_ups,
        {"src/pipeline/x.cc": "#include <atomic>\nvoid F() { flag.notify_all(); }\n"},
        "src/pipeline/x.cc: notifies something that is no condition variable",
    ),
    "a header named from its own folder": (
        rules.modules_include_downwards,
        {"src/base/x.cc": '#include "x.h"\n', "src/base/x.h": "#pragma once\n"},
        '"x.h" is not of this repository',
    ),
    "a pure module reads the clock": (
        rules.modules_include_downwards,
        {"src/plan/x.cc": "#include <chrono>\n"},
        "plan is pure and may not include <chrono>",
    ),
    "a tool looks behind the public API": (
        rules.users_include_public_headers,
        {"tools/varve/ls.cc": '#include "publish/commit.h"\n'},
        "tools/varve/ls.cc:1: may include only include/varve, not publish/commit.h",
    ),
    "a binding includes what is not there": (
        rules.users_include_public_headers,
        {"python/src/module.cc": '#include "varve/gone.h"\n'},
        "there is no public header varve/gone.h",
    ),
    "a public header shows a third party": (
        rules.public_headers_include_downwards,
        {"include/varve/status.h": "#include <zstd.h>\n"},
        "include/varve/status.h:1: a public header may not include zstd.h",
    ),
    "a type of the protocol with an engine's name": (
        rules.types_have_names_of_their_own,
        {
            "include/varve/metadata.h": "namespace varve {\nstruct Metadata {\n",
            "include/varve/protocol/metadata.h": "namespace varve::protocol {\nstruct Metadata {\n",
        },
        "include/varve/protocol/metadata.h: Metadata is also a type of include/varve/metadata.h",
    ),
    "one public header too many": (
        rules.public_headers_are_few,
        {f"include/varve/h{i}.h": "#pragma once\n" for i in range(21)},
        "include/varve: 21 public headers, at most 20",
    ),
    "a binding looks behind the public API": (
        rules.users_include_public_headers,
        {"python/src/module.cc": '#include "publish/commit.h"\n'},
        "python/src/module.cc:1: may include only include/varve, not publish/commit.h",
    ),
    "a public header looks up": (
        rules.public_headers_include_downwards,
        {"include/varve/status.h": '#include "varve/options.h"\n'},
        "of base, may not include varve/options.h of catalogue",
    ),
    "a long file": (
        rules.file_length,
        {"src/base/x.cc": "int f();\n" * 501},
        "src/base/x.cc: 501 lines, at most 500",
    ),
    "a folder with a second idea in it": (
        rules.folder_size,
        {f"src/base/x{i}.cc": "int f();\n" for i in range(21)},
        "src/base: 21 source files, at most 20",
    ),
    "modules that include each other": (
        rules.modules_include_downwards,
        {"src/catalogue/x.cc": '#include "publish/commit.h"\n'},
        "src/catalogue/x.cc:1: catalogue may not include publish/commit.h",
    ),
    "a home folder": (
        rules.machine_paths,
        {"docs/x.md": "see /ho" + "me/ann/varve\n"},
        "docs/x.md:1: a path of one machine",
    ),
    "a registry": (
        rules.machine_paths,
        {"setup": "pip install -i https://pypi" + ".org/simple varve\n"},
        "setup:1: a registry's host name",
    ),
    "a Python test that is not collected": (
        rules.python_tests_are_collected,
        {"python/tests/roundtrip.py": "def test_roundtrip():\n    pass\n"},
        "python/tests/roundtrip.py: has tests, but pytest collects only test_*.py",
    ),
}


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: case.replace(" ", "-"))
def test_reports(case, tmp_path):
    rule, files, problem = BREAKS[case]
    found = rule(repository(tmp_path, files))
    assert len(found) == 1
    assert problem in found[0]


def test_allowed_includes_pass(tmp_path):
    repository(
        tmp_path,
        {
            "include/varve/storage.h": "#include <cstdint>\n#include <varve/status.h>\n",
            "src/base/x.h": "#pragma once\n#include <isa-l/crc.h>\n",
            "src/storage/posix.cc": '#include "varve/storage.h"\n#include "base/x.h"\n',
            "src/storage/probe.cc": "#include <fcntl.h>\n",
            "src/plan/x_test.cc": '#include "format/y.h"\n#include "support/fake.h"\n',
            "src/plan/y_test.cc": "#include <random>\n#include <varve/convert.h>\n",
            "src/save/dcp.cc": '#include "pipeline/p.h"\n#include "interop/dcp/encode.h"\n',
            "tools/varve/ls.cc": '#include "varve/storage.h"\n#include "verb.h"\n',
            "tools/varve/verb.h": "#pragma once\n",
        },
    )
    for rule in rules.FILE_RULES:
        assert rule(tmp_path) == []


LISTING = """Running main() from gtest_main.cc
Box.
  IntersectsItself
Sizes/Split.
  CoversTheWhole/0  # GetParam() = 1
  CoversTheWhole/1  # GetParam() = 2
Typed/0.  # TypeParam = int
  RoundTrips
"""


def test_compiled_tests_of_every_kind_are_recognised(tmp_path):
    repository(
        tmp_path,
        {
            "src/tensor/box_test.cc": "TEST(Box, IntersectsItself) {}\n",
            "src/tensor/split_test.cc": "TEST_P(Split, CoversTheWhole) {}\n",
            "tests/x/typed_test.cc": "TYPED_TEST(Typed, RoundTrips) {}\n",
            "tests/consume/not_ours_test.cc": "TEST(Other, Project) {}\n",
        },
    )
    assert rules.tests_are_built(tmp_path, LISTING) == []


def test_a_test_that_was_not_compiled_is_reported(tmp_path):
    repository(tmp_path, {"src/tensor/box_test.cc": "TEST(Box, SplitsEvenly) {}\n"})
    assert rules.tests_are_built(tmp_path, LISTING) == [
        "src/tensor/box_test.cc: Box.SplitsEvenly is not in the test binary"
    ]


def test_a_disabled_test_is_reported(tmp_path):
    repository(tmp_path, {"src/base/x_test.cc": "TEST(Box, DISABLED_Grows) {}\n"})
    found = rules.tests_are_built(tmp_path, LISTING + "Box.\n  DISABLED_Grows\n")
    assert found == ["src/base/x_test.cc: Box.DISABLED_Grows is switched off"]


def test_an_empty_test_file_is_reported(tmp_path):
    repository(tmp_path, {"src/base/x_test.cc": "// Later.\n"})
    assert rules.tests_are_built(tmp_path, LISTING) == ["src/base/x_test.cc: no test in it"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_header_that_needs_another_is_reported(tmp_path):
    repository(tmp_path, {"include/varve/x.h": "#pragma once\nstd::string f();\n"})
    (problem,) = rules.headers_compile_alone(tmp_path, "g++")
    assert problem.startswith("include/varve/x.h: does not compile alone")


def test_the_script_fails_when_a_rule_is_broken(tmp_path):
    repository(tmp_path, {"src/base/x.cc": '#include "tensor/box.h"\n'})
    script = Path(__file__).with_name("repository_rules.py")
    done = subprocess.run(
        [sys.executable, script, "--root", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "base may not include tensor/box.h" in done.stdout
