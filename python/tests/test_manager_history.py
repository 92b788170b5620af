"""What a person sees of a run: its history, and its metrics."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_manager import state, train

import varve
from varve._manage import _history, _place


def test_the_history_has_a_line_for_each_event_with_phases_and_rates(tmp_path: Path) -> None:
    run = tmp_path / "run"
    told: list[dict[str, Any]] = []
    with varve.CheckpointManager(run, every=2, on_saved=told.append) as manager:
        train(manager, range(1, 4), loss=lambda step: float("inf"))
    with varve.CheckpointManager(run) as manager:
        manager.resume(state())
    lines = [json.loads(line) for line in (run / _place.HISTORY_NAME).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "save", "end", "start", "load", "end"]
    save = lines[1]
    assert save["step"] == 2
    assert save["bytes"] > 24000
    assert save["bytes_per_second"] > 0
    assert save["phases"]["write"]["seconds"] >= 0
    assert save["metrics"] == {"loss": "inf"}
    assert told[0]["step"] == 2
    assert lines[3]["attempt"] == 2
    assert lines[4]["passed_over"] == {}


def test_a_line_that_a_full_disk_cut_off_costs_no_later_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 2))
        with (run / _place.HISTORY_NAME).open("a") as history:
            history.write('{"time": 1796018676.22, "event": "sa')
        train(manager, range(2, 3))
    assert [line["event"] for line in _history.read(str(run))] == ["start", "save", "save", "end"]


def test_the_metrics_file_is_open_metrics(tmp_path: Path) -> None:
    run = tmp_path / "run"
    file = tmp_path / "varve.prom"
    with varve.CheckpointManager(run, every=1, keep=1, metrics_file=file) as manager:
        train(manager, range(1, 3))
    text = file.read_text()
    assert text.endswith("# EOF\n")
    assert f'varve_saves_total{{run="{run}",outcome="done"}} 2' in text
    assert f'varve_removed_steps_total{{run="{run}"}} 1' in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0


def test_the_history_tells_the_time_between_failures(tmp_path: Path) -> None:
    lines = [
        {"time": 0, "event": "start"},
        {"time": 100, "event": "save"},  # Killed.
        {"time": 500, "event": "start"},
        {"time": 600, "event": "end"},
        {"time": 700, "event": "start"},
    ]
    (tmp_path / _place.HISTORY_NAME).write_text(
        "\n".join([*map(json.dumps, lines), '{"time": 8', "[]", ""])
    )
    assert _history.observed_mtbf(str(tmp_path)) == 200
    assert _history.observed_mtbf(str(tmp_path / "none")) is None


def test_no_job_waits_for_a_pipe_that_has_the_name_of_a_managers_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with varve.CheckpointManager(run, every=1) as manager:
        train(manager, range(1, 2))
    for name in (".varve-restarts.json", _place.HISTORY_NAME):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    place = _place.place_of(str(run))
    for read in (lambda: place.read(".varve-restarts.json"), lambda: list(place.history())):
        with pytest.raises(OSError, match="not a regular file"):
            read()
    with varve.CheckpointManager(run, every=1, max_restarts=2) as manager:
        assert manager.resume(state()) == 1
        train(manager, range(2, 3))
    assert [step.step for step in varve.steps(run)] == [1, 2]
