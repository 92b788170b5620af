"""The script that stands for a program of a wheel on PATH becomes that program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "packaging" / "launcher.py"

#: Stands for the program: prints its arguments and ends with 7.
PROGRAM = '#!/bin/sh\nprintf "<%s>" "$@"\nexit 7\n'


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder of scripts, as an installer leaves it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(LAUNCHER, folder / "varve")
    return folder


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with the package varve, whose program is executable."""
    folder = tmp_path / "packages"
    program = folder / "varve" / "bin" / "varve"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return folder


def start(script: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, "ls", "a b", ""],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_launcher_passes_arguments_and_exit_code_on(scripts: Path, packages: Path) -> None:
    done = start(scripts / "varve", packages)
    assert (done.returncode, done.stdout) == (7, "<ls><a b><>")


def test_the_launcher_finds_the_program_through_a_link_of_another_name(
    scripts: Path, packages: Path
) -> None:
    (scripts / "v").symlink_to("varve")
    assert start(scripts / "v", packages).returncode == 7


def test_the_launcher_says_where_it_looked(scripts: Path, packages: Path) -> None:
    os.rename(scripts / "varve", scripts / "varve-agent")
    done = start(scripts / "varve-agent", packages)
    assert done.returncode == 1
    assert "no package varve with bin/varve-agent" in done.stderr and str(packages) in done.stderr


def test_an_installer_puts_its_python_into_the_first_line() -> None:
    assert LAUNCHER.read_text().startswith("#!python\n")
