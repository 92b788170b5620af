"""A disk quota that is used up exactly where a checkpoint gets its name: at the rename or the link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

MAIN = """
import json, sys
import quota_jobs, ranks
ranks._context.set_forkserver_preload(["torch.distributed.tensor", "varve.torch", "quota_jobs"])
size, job, *arguments = sys.argv[1:]
print(json.dumps(ranks.run_ranks(int(size), getattr(quota_jobs, job), *arguments)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for no_quota.c")
    made = tmp_path_factory.mktemp("lib") / "no_quota.so"
    source = HERE / "no_quota.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def messages(library: Path, home: Path, at: str, size: int, job: str, format: str) -> list[str]:
    """Runs a job with a quota for paths that match `at`; returns each rank's message."""
    run = home / "run"
    run.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "NO_QUOTA_AT": at,
        "NO_QUOTA_NOW": str(home / "now"),
        "PYTHONPATH": str(HERE),
    }
    command = [sys.executable, "-c", MAIN, str(size), job, str(run), format]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("job", "at", "format"),
    [
        ("save_next", "*/run/step-2", "varve"),
        ("save_next", "*/run/step-2", "dcp"),
        ("save_in_background", "*/run/step-2", "varve"),
        ("overwrite", "*/run/step-1", "varve"),
        ("overwrite", "*/notes.txt", "varve"),  # The link that keeps a user's file.
    ],
)
def test_the_step_before_stays_all_ranks_say_why_and_the_next_save_works(
    job: str, at: str, format: str, library: Path, tmp_path: Path
) -> None:
    said = messages(library, tmp_path, at, 2, job, format)
    assert len(said) == 2
    for message in said:
        assert "Disk quota exceeded" in message
        assert "quota of this user, group or project" in message
        assert "rank 0" in message or said[0] == said[1]


def test_a_file_of_an_uncoordinated_save_that_gets_no_name_is_no_checkpoint(
    library: Path, tmp_path: Path
) -> None:
    said = messages(library, tmp_path, "*/data-*.safetensors", 2, "save_apart", "varve")
    assert all(
        "quota of this user" in message and "without coordination" in message for message in said
    )


def test_one_process_says_the_same(library: Path, tmp_path: Path) -> None:
    [message] = messages(library, tmp_path, "*/run/step-2", 1, "save_next", "varve")
    assert "quota of this user" in message
