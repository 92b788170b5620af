"""Every program and command of docs/manager.md and docs/cookbook.md, as a reader would run them.

The blocks of a page run in its order, in one directory. A comment before a block says otherwise:

    <!-- test: file NAME -->    the block is the file NAME, which later blocks run
    <!-- test: own REASON -->   another test runs the block
    <!-- test: skip REASON -->  the block is not run
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest
from frameworks import framework

import varve
from varve._manage import _history

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("manager.md", "cookbook.md")
BLOCK = re.compile(
    r"(?:<!-- test: (\w+) (.*?) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)

#: Seconds that no command takes.
LONGEST_WAIT = 150


@dataclass
class Block:
    page: str
    line: int
    mark: str  #: "file", "own", "skip" or "".
    argument: str  #: The file's name, the reason.
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"docs/{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.end(3)) + 1,
            found[1] or "",
            found[2] or "",
            *found.groups()[2:],
        )
        for found in BLOCK.finditer(text)
    ]


def file_of(name: str) -> str:
    """The text of a file that a page gives."""
    return next(one.text for page in PAGES for one in blocks(page) if one.argument == name)


def environment() -> dict[str, str]:
    """What makes commands find this Python and this package."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def test_blocks_that_are_not_run_have_a_reason() -> None:
    skipped = [one for page in PAGES for one in blocks(page) if one.mark == "skip"]
    for one in skipped:
        print(f"{one.where} is not run: {one.argument}")
        assert len(one.argument.split()) > 3, f"{one.where}: why is it not run?"
    assert len(skipped) <= 3
    known = {"", "file", "own", "skip"}
    assert {one.mark for page in PAGES for one in blocks(page)} <= known
    fences = sum((DOCS / page).read_text().count("\n```") for page in PAGES)
    assert fences == 2 * sum(len(blocks(page)) for page in PAGES), "a block was not understood"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_as_they_stand(tmp_path: Path, page: str) -> None:
    for block in blocks(page):
        if block.mark in {"own", "skip"}:
            continue
        if block.mark == "file":
            (tmp_path / block.argument).write_text(block.text)
            continue
        if block.language == "python":
            done = programs.run(block.text, cwd=tmp_path, env=environment(), timeout=LONGEST_WAIT)
        else:
            assert block.language in {"sh", "bash"}, f"{block.where}: {block.language!r}"
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=LONGEST_WAIT,
            )
        assert done.returncode == 0, f"{block.where}\n{done.stdout[-2000:]}{done.stderr[-5000:]}"
    if page == "cookbook.md":
        assert {p.suffix for p in (tmp_path / "hf").iterdir()} == {".json", ".safetensors"}
        assert steps(tmp_path / "run")[-1] == 120
        assert steps(tmp_path / "finetune") == [10]
        assert steps(tmp_path / "run-spot")


# ---- jobs that are ended from outside ----


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(file_of("train.py"))
    yield tmp_path


def steps(run: Path) -> list[int]:
    return [one.step for one in varve.steps(run)]


def until(what: Callable[[], object], job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not what():
        assert job.poll() is None, f"the job has ended with {job.returncode}"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def start(place: Path, command: list[str], **more: str) -> subprocess.Popen[str]:
    with open(place / "log", "a") as log:
        return subprocess.Popen(
            command, cwd=place, env=environment() | more, stdout=log, stderr=log, text=True
        )


def ended(job: subprocess.Popen[str], place: Path, *codes: int) -> None:
    code: int | str
    try:
        code = job.wait(LONGEST_WAIT)
    except subprocess.TimeoutExpired:
        code = "it goes on"
    try:
        assert code in codes, (place / "log").read_text()[-6000:]
    finally:
        job.kill()


def children(job: subprocess.Popen[str]) -> list[int]:
    """The processes that a job has started."""
    listed = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def went_on(run: Path) -> list[int]:
    """The steps from which the jobs of a run went on."""
    lines = (line for line in _history.read(str(run)))
    return [line["step"] for line in lines if line["event"] == "load"]


#: Programs of SLURM: `srun` starts the tasks of a job on this machine, `scontrol` notes what it is asked for.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
  pids+=($!)
done
echo "${pids[@]}" > tasks
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "${code:-0}"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> asked; fi
"""


@pytest.mark.slow
def test_the_script_for_slurm_saves_before_the_time_limit_and_goes_on_when_requeued(
    place: Path,
) -> None:
    script = file_of("job.sbatch")
    options = re.findall(r"^#SBATCH (--[a-z-]+)", script, re.MULTILINE)
    assert {"--signal", "--requeue", "--time", "--open-mode"} <= set(options)
    (place / "job.sbatch").write_text(script.replace(" 5000 ", " 300 "))
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    slurm = {
        "PATH": f"{place}:{environment()['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_JOB_END_TIME": str(int(time.time()) + 12 * 3600),
    }
    run = place / "run-slurm"
    job = start(place, ["bash", "job.sbatch"], **slurm)
    until(lambda: steps(run), job)
    for pid in (place / "tasks").read_text().split():
        os.kill(int(pid), signal.SIGUSR1)
    ended(job, place, 75)
    assert (place / "asked").read_text() == "requeue 4711\n"
    saved = steps(run)[-1]
    assert saved < 300
    job = start(place, ["bash", "job.sbatch"], **slurm)
    ended(job, place, 0)
    assert went_on(run) == [saved]
    assert steps(run)[-1] == 300
    assert (place / "asked").read_text() == "requeue 4711\n"


@pytest.mark.slow
def test_the_job_for_kubernetes_ends_in_the_grace_period_and_the_next_pod_goes_on(
    place: Path,
) -> None:
    yaml = framework("yaml")
    claim, job = yaml.safe_load_all(file_of("job.yaml"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["volumeMounts"][0]["name"] == volume["name"]
    assert pod["restartPolicy"] in {"OnFailure", "Never"}
    timeout = next(word for word in container["command"] if word.startswith("--shutdown-timeout="))
    assert pod["terminationGracePeriodSeconds"] > int(timeout.partition("=")[2])
    command = ["300" if word == "5000" else word for word in container["command"]]

    run = place / "run-k8s"
    first = start(place, command)
    until(lambda: steps(run), first)
    first.terminate()  # To the first process alone, as the kubelet does it.
    assert first.wait(LONGEST_WAIT) != 0, "the Job would be complete"
    saved = steps(run)[-1]
    assert saved < 300
    second = start(place, command)
    until(lambda: steps(run)[-1] > saved, second)
    for pid in [second.pid, *children(second)]:  # The grace period is over.
        os.kill(pid, signal.SIGKILL)
    second.wait()
    third = start(place, command)
    ended(third, place, 0)
    assert steps(run)[-1] == 300
    assert went_on(run)[0] == saved
    assert saved < went_on(run)[1] < 300


@pytest.mark.slow
def test_torchrun_restarts_the_workers_when_one_is_killed_and_they_go_on(place: Path) -> None:
    text = next(one.text for one in blocks("cookbook.md") if "--max-restarts" in one.text)
    command = ["bash", "-ec", text.replace(" 100 ", " 300 ").replace("torchrun", "exec torchrun")]
    run = place / "run-elastic"
    job = start(place, command)
    until(lambda: steps(run), job)
    os.kill(children(job)[-1], signal.SIGKILL)
    ended(job, place, 0)
    assert steps(run)[-1] == 300
    assert len(went_on(run)) == 1
    assert 0 < went_on(run)[0] < 300
