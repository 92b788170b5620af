"""The source distribution has all that a wheel is built from. packaging/build builds from it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Folders and files that the build of a wheel reads.
NEEDED = (
    *("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "requirements/wheels.txt"),
    *("cmake/", "include/", "src/", "tools/", "python/src/", "python/varve/"),
    *("packaging/launcher.py", "packaging/older_libstdcxx.h", "packaging/THIRD_PARTY.txt"),
)
#: Folders of the tests, the benchmarks and what else is of no use without the repository.
LEFT_OUT = (".ci/", "bench/", "docs/", "fuzz/", "python/tests/", "tests/", "build/", "dist/")


def build_sdist(folder: Path) -> Path:
    script = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder of the source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(["tar", "-xf", build_sdist(folder), "-C", folder], check=True)
    (content,) = (path for path in folder.iterdir() if path.is_dir())
    return content


def test_the_source_distribution_has_every_file_that_the_build_reads(unpacked: Path) -> None:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    names = [name for name in os.fsdecode(listed.stdout).split("\0") if name.startswith(NEEDED)]
    names = [name for name in names if not name.endswith("_test.cc") and (ROOT / name).is_file()]
    assert len(names) > 300
    assert [name for name in names if not (unpacked / name).is_file()] == []


def test_the_source_distribution_has_nothing_that_only_the_repository_needs(unpacked: Path) -> None:
    found = [p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()]
    assert [name for name in found if name.startswith(LEFT_OUT) or name.endswith("_test.cc")] == []


def test_cmake_configures_the_source_distribution(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", unpacked, "-B", tmp_path, "-DVARVE_BUILD_TESTS=OFF", "-DVARVE_MPI=OFF"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
