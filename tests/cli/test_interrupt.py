"""Ctrl-C and other signals that end a verb: soon, with 128 + signal, and with nothing half written."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import varve

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "tests"))

import slow_open

ARGUMENTS = {
    "verify": [],
    "convert": ["OUT", "--to", "varve"],
    "export": ["OUT"],
    "diff": ["SAME"],
    "repair": [],
}


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_ctrl_c_ends_the_verb_and_a_second_run_works(binary, run, tmp_path, verb):
    checkpoint, out = tmp_path / "ranks", tmp_path / "out"
    slow_open.save_in_files(checkpoint)
    names = {"OUT": out, "SAME": checkpoint}
    command = [binary, verb, checkpoint, *(names.get(word, word) for word in ARGUMENTS[verb])]

    done = slow_open.interrupted(command, "*/ranks/data-*")
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr.startswith("varve: ") and "interrupted" in done.stderr
    left = [name for name in os.listdir(tmp_path) if not name.endswith("varve-lock")]
    assert left == ["ranks"]

    run(*command[1:])
    assert out.exists() == ("OUT" in ARGUMENTS[verb])
    assert varve.verify(checkpoint) == []


def test_a_verb_that_is_terminated_leaves_nothing_either(binary, tmp_path):
    slow_open.save_in_files(tmp_path / "ranks")
    command = [binary, "convert", tmp_path / "ranks", tmp_path / "out", "--to", "dcp"]
    done = slow_open.interrupted(command, "*/ranks/data-*", signal.SIGTERM)
    assert done.returncode == 128 + signal.SIGTERM
    left = [name for name in os.listdir(tmp_path) if not name.endswith("varve-lock")]
    assert left == ["ranks"]
