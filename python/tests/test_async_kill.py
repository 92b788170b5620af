"""kill -9 during an asynchronous overwrite: the previous or the next checkpoint is there, whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from async_jobs import (
    KILL_MIB,
    LONG,
    STAGING,
    WRITING,
    assert_holds,
    listed,
    overwrite_for_ever,
    state_of,
)
from ranks import fork_context

import varve
import varve.torch

KILLS = 40


@pytest.mark.slow
def test_40_kills_during_overwrites_leave_the_old_or_the_new_checkpoint_whole(
    tmp_path: Path,
) -> None:
    random.seed(11)
    path = tmp_path / "latest"
    varve.torch.save(state_of(0, KILL_MIB), path)
    value = 0
    killed_in = {STAGING: 0, WRITING: 0}
    advanced = 0
    for kill in range(KILLS):
        phase = fork_context().Value("i", 0, lock=False)
        process = fork_context().Process(
            target=overwrite_for_ever, args=(str(path), value + 1, phase, kill % 2 == 0)
        )
        process.start()
        wanted = STAGING if kill % 4 < 2 else WRITING
        end = time.monotonic() + LONG
        while phase.value == 0 and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(random.random() * 0.1)
        while phase.value != wanted and time.monotonic() < end:
            pass
        time.sleep(random.random() * 0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed_in[phase.value] += 1
        assert listed(tmp_path) == ["latest"]
        found = varve.torch.read(path)["step"]
        assert found >= value, "an older checkpoint came back"
        assert_holds(path, found, KILL_MIB)
        advanced += found > value
        value = found
    assert min(killed_in.values()) >= KILLS // 10
    assert advanced >= KILLS // 4, "hardly any save succeeded: the kills prove little"
    varve.torch.save({"n": -1}, path, overwrite=True)
    assert os.listdir(tmp_path) == ["latest"], "the next save clears up"
