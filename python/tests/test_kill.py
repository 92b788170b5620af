"""kill -9 at random instants of a save or overwrite: what is there afterwards is whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from kill_jobs import ELEMENTS, save_for_ever
from ranks import fork_context

import varve
import varve.torch

KILLS = 200


def _whole_value(path: str) -> int:
    """The one number that all elements of a checkpoint must share."""
    state = varve.torch.read(path)
    assert torch.equal(state["w"], torch.full((ELEMENTS,), state["n"], dtype=torch.int64))
    assert torch.equal(state["v"], torch.full((7,), state["n"], dtype=torch.int64))
    return state["n"]


@pytest.mark.slow
def test_200_kills_leave_the_previous_or_the_next_checkpoint_whole(tmp_path: Path) -> None:
    random.seed(5)
    path = str(tmp_path / "latest")
    first = 0
    seen: set[int] = set()
    for _ in range(KILLS):
        started = fork_context().Event()
        process = fork_context().Process(target=save_for_ever, args=(path, first, started))
        process.start()
        assert started.wait(60)
        time.sleep(random.random() * 0.2)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        names = {e.name for e in varve.list_checkpoints(str(tmp_path)) if e.state == "whole"}
        if names:
            assert names == {"latest"}
            value = _whole_value(path)
            assert value >= first - 1, "an older checkpoint came back"
            seen.add(value)
            first = value + 1
        else:
            assert first == 0, "the checkpoint was lost"
    assert varve.verify(path) == []
    assert len(seen) > KILLS // 10, "hardly any save succeeded: the kills prove little"
    varve.torch.save({"n": -1}, path, overwrite=True)
    assert os.listdir(tmp_path) == ["latest"], "the next save clears up"
