"""An agent that cannot start or cannot serve: the error of the save says why, and what to do."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest

import varve.agent

#: Runs saves by an agent, each in a process of its own user, and prints what came of each: "" or the error.
#: A case has room for so many more processes and threads, or None for no limit.
MAIN = """
import json, os, resource, sys, traceback
import torch
import varve, varve.agent, varve.torch
from varve.torch import _stager

home, user, directories, rooms = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:])
torch.set_num_threads(1)

def save(number, directory, room):
    os.environ["VARVE_AGENT_DIR"] = directory
    os.setgroups([]); os.setgid(user + number); os.setuid(user + number)
    if room is not None:
        most = len(os.listdir("/proc/self/task")) + room
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    path = f"{home}/saves/{number}"
    try:
        varve.torch.async_save({"w": torch.ones(4)}, path, executor="process", retries=0).result(60)
        assert varve.verify(path) == []
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    with open(f"{home}/said/{number}", "w") as out:
        out.write(said)

for number, (directory, room) in enumerate(zip(directories, rooms)):
    child = os.fork()
    if child == 0:
        try:
            save(number, directory, room)
            varve.agent.stop(20)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.waitpid(child, 0)
print(json.dumps([open(f"{home}/said/{i}").read() for i in range(len(rooms))]))
"""

USER = 64100


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that other users may enter."""
    if os.geteuid() != 0:
        pytest.skip("becoming other users needs root")
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        for name in ("saves", "said", "agents"):
            (Path(made) / name).mkdir()
            os.chmod(Path(made) / name, 0o777)
        yield Path(made)


def said(
    home: Path, directories: list[str], rooms: list[int | None], **variables: str
) -> list[str]:
    program, idle = varve.agent.program(), "5"
    environment = {"VARVE_AGENT": program, "VARVE_AGENT_IDLE": idle, **variables}
    done = programs.run(
        *(MAIN, home, USER, json.dumps(directories), json.dumps(rooms)),
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def program(home: Path, text: str) -> str:
    path = home / "program"
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return str(path)


def own_directories(home: Path, count: int) -> list[str]:
    return [str(home / "agents" / str(number)) for number in range(count)]


def test_without_room_for_processes_or_threads_the_error_names_the_limit(home: Path) -> None:
    rooms: list[int | None] = [0, 1, 2, 4, 5, 6, 20]
    outcomes = said(home, own_directories(home, len(rooms)), rooms)
    for room, outcome in zip(rooms, outcomes, strict=True):
        assert outcome == "" or "ulimit -u" in outcome, (room, outcome)
        assert "VARVE_AGENT" not in outcome and "closed it" not in outcome, (room, outcome)
    assert outcomes[0] and outcomes[1] and not outcomes[-1], outcomes
    assert "Resource temporarily unavailable" in outcomes[0]


def test_without_descriptors_for_the_agent_the_error_names_the_limit(home: Path) -> None:
    counts = [4, 5, 6, 8, 10, 30]
    limited = program(home, 'ulimit -n "${2##*/}"\nexec "$AGENT" "$@"\n')  # --directory .../COUNT
    outcomes = said(
        home,
        [str(home / "agents" / str(count)) for count in counts],
        [None] * len(counts),
        VARVE_AGENT=limited,
        AGENT=varve.agent.program(),
    )
    assert outcomes[-1] == ""
    for count, outcome in zip(counts[:-1], outcomes[:-1], strict=True):
        assert "Too many open files" in outcome and "ulimit -n" in outcome, (count, outcome)
        assert "closed it" not in outcome and "no answer" not in outcome, (count, outcome)


def test_a_directory_of_another_user_is_named_with_its_owner(home: Path) -> None:
    theirs = home / "theirs"
    theirs.mkdir(mode=0o700)
    (theirs / "agent").mkdir()
    places = [str(theirs), str(theirs / "agent"), str(home / "mine")]
    owned, inside, not_made = said(home, places, [None, None, None])
    assert f"{theirs} must be a directory of user {USER}" in owned
    assert "it is one of user 0 (mode 0700)" in owned and "VARVE_AGENT_DIR" in owned
    for outcome, place in ((inside, places[1]), (not_made, places[2])):
        assert place in outcome and "Permission denied" in outcome and "VARVE_AGENT_DIR" in outcome


def test_what_the_program_says_is_in_the_error(home: Path) -> None:
    fails = program(home, "echo 'varve-agent: no luck today' >&2\nexit 3\n")
    [outcome] = said(home, own_directories(home, 1), [None], VARVE_AGENT=fails)
    assert "exit status 3: no luck today" in outcome
    [outcome] = said(home, own_directories(home, 1), [None], VARVE_AGENT=str(home / "none"))
    assert "No such file" in outcome and "set VARVE_AGENT" in outcome
