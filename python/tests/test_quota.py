"""A disk quota that is used up exactly where a checkpoint gets its name: at the rename or the link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Runs a job of each line in ranks, and prints a line with their messages, or with an error.
MAIN = """
import json, sys
import quota_jobs, ranks
ranks._context.set_forkserver_preload(["torch._dynamo", "varve.torch", "quota_jobs"])
for line in sys.stdin:
    size, *arguments = json.loads(line)
    try:
        answer = ranks.run_ranks(size, quota_jobs.under_quota, *arguments)
    except AssertionError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""

Messages = Callable[..., list[str]]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process under no_quota.c that runs jobs. Its imports are paid for once."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for no_quota.c")
    made = tmp_path_factory.mktemp("lib") / "no_quota.so"
    source = HERE / "no_quota.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(made), "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", MAIN]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def messages(jobs: subprocess.Popen[str], tmp_path: Path) -> Messages:
    """Runs a job with a quota for paths that match `at`; returns each rank's message."""
    run = tmp_path / "run"
    run.mkdir()

    def call(at: str, size: int, job: str, format: str) -> list[str]:
        assert jobs.stdin is not None and jobs.stdout is not None
        words = [size, at, str(tmp_path / "now"), job, str(run), format]
        print(json.dumps(words), file=jobs.stdin, flush=True)
        found = json.loads(jobs.stdout.readline())
        assert isinstance(found, list), found
        return found

    return call


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
    job: str, at: str, format: str, messages: Messages
) -> None:
    said = messages(at, 2, job, format)
    assert len(said) == 2
    for message in said:
        assert "Disk quota exceeded" in message
        assert "quota of this user, group or project" in message
        assert "rank 0" in message or said[0] == said[1]


def test_a_file_of_an_uncoordinated_save_that_gets_no_name_is_no_checkpoint(
    messages: Messages,
) -> None:
    said = messages("*/data-*.safetensors", 2, "save_apart", "varve")
    assert all(
        "quota of this user" in message and "without coordination" in message for message in said
    )


def test_one_process_says_the_same(messages: Messages) -> None:
    [message] = messages("*/run/step-2", 1, "save_next", "varve")
    assert "quota of this user" in message
