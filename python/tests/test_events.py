"""Phases in reports, events in logs, the agent's log, and traces."""

from __future__ import annotations

import gc
import json
import logging
import re
import time
from pathlib import Path
from typing import Any, ClassVar

import programs
import pytest
import torch
import torch.distributed.checkpoint
from async_jobs import state_of, wait_until
from command_line import command
from event_jobs import save_and_load_on_ranks
from ranks import run_ranks

import varve
import varve.agent
import varve.torch
from varve.torch import Stager, async_save, defer_save

SAVING = ["plan", "exchange", "write", "sync", "commit"]
STAGING = ["plan", "exchange", "stage", "wait", "write", "sync", "commit"]
LOADING = ["open", "values", "read", "verify", "copy", "plan", "exchange"]


def names(phases: list[varve.Phase]) -> list[str]:
    return [phase.name for phase in phases]


def test_reports_say_what_took_how_long(tmp_path: Path) -> None:
    state = state_of(1, 32)
    saved = varve.torch.save(state, tmp_path / "c")
    assert names(saved.phases) == SAVING
    assert saved.phases[2].bytes == saved.bytes_written
    assert sum(phase.seconds for phase in saved.phases) <= saved.seconds
    loaded = varve.torch.load(state, tmp_path / "c")
    assert sorted(names(loaded.phases)) == sorted(LOADING)
    assert all(phase.slowest_rank is None for phase in (*saved.phases, *loaded.phases))


@pytest.mark.parametrize("format", ["varve", "dcp", "torch's dcp", "hf", "torch.save"])
@pytest.mark.parametrize("options", [{}, {"cast": True}, {"fit": "overlap"}], ids=str)
def test_the_bytes_of_the_phase_read_are_those_that_a_load_reports(
    format: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Plain values, containers and the comparison of tied tensors counted there as well: three times as much."""
    path = tmp_path / "c"
    weight = torch.rand(64, 64)
    tensors = {"w": weight, "tied": weight.clone(), "v": torch.rand(5)}
    state = tensors if format == "hf" else {**tensors, "step": 3, "text": "x"}
    if format == "torch's dcp":
        torch.distributed.checkpoint.save(dict(state), checkpoint_id=path, no_dist=True)
    elif format == "torch.save":
        torch.save(state, path)
    else:
        varve.torch.save(state, path, format=format)  # type: ignore[arg-type]
    tied = torch.zeros(64, 64)
    short = torch.zeros(3) if "fit" in options else torch.zeros(5)
    given = short.bfloat16() if "cast" in options else short
    report = varve.torch.load({**state, "w": tied, "tied": tied, "v": given}, path, **options)
    by_name = {phase.name: phase.bytes for phase in report.phases}
    assert by_name["read"] == report.bytes_read > 0
    # The headers of native files have hashes of what is stored.
    assert format == "varve" or by_name["compare"] >= 2 * weight.nbytes
    assert format == "hf" or format == "torch.save" or by_name["values"] > 0


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_phases_of_a_save_in_the_background_have_its_copy(
    executor: str, agent: str, tmp_path: Path
) -> None:
    with Stager(executor=executor) as stager:
        report = async_save(state_of(1, 8), tmp_path / "c", stager=stager).result()
    assert names(report.phases) == STAGING
    assert report.phases[2].bytes > 8 << 20
    assert report.phases[2].seconds > 0


def test_rank_0_learns_which_rank_was_slowest(tmp_path: Path) -> None:
    of_ranks = run_ranks(2, save_and_load_on_ranks, str(tmp_path / "c"))
    assert {phase[0]: phase[1] for phase in of_ranks[0]}["write"] == 1
    assert all(slowest is None for _, slowest in of_ranks[1])


def test_events_are_records_of_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="varve.engine"), Stager() as stager:
        async_save(state_of(1), tmp_path / "c", stager=stager).result()
        varve._core.set_event_function(varve._events._take)  # Returns when all have been taken.
    mine = [record for record in caplog.records if record.name == "varve.engine"]
    end = mine[-1]
    assert f"save {tmp_path / 'c'}: is durable" in end.message
    assert end.levelno == logging.INFO
    assert end.rank == 0  # type: ignore[attr-defined]
    assert float(end.fields["write"]) >= 0  # type: ignore[attr-defined]
    steps = [record.message.split(": ")[-1] for record in mine if record.levelno == logging.DEBUG]
    assert steps[0] == "planning -> copying"
    assert steps[-1] == "writing -> ended"


def test_a_deferred_save_is_not_called_durable_and_a_clean_end_no_loss(
    agent: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="varve.engine"):
        stager = Stager(executor="process", memory_budget=1 << 28)
        defer_save(state_of(1), tmp_path / "c", stager=stager).result()
        stager.close()
        del stager
        gc.collect()
        varve.agent.drain(600.0)
        varve._core.set_event_function(varve._events._take)
    said = [r.message for r in caplog.records if r.name == "varve.engine"]
    assert any("is with the agent, which writes it if this process ends" in one for one in said)
    assert not any("durable" in one or "lost" in one for one in said), said


def test_a_save_that_is_refused_is_an_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    varve.torch.save(state_of(1), tmp_path / "c")
    with caplog.at_level(logging.INFO, logger="varve.engine"):
        with pytest.raises(varve.CheckpointExistsError):
            varve.torch.save(state_of(1), tmp_path / "c")
        varve._core.set_event_function(varve._events._take)
    assert "has failed: AlreadyExists" in caplog.records[-1].message


def test_a_record_has_the_time_of_the_event_though_handlers_are_slow(tmp_path: Path) -> None:
    class Slow(logging.Handler):
        times: ClassVar[list[float]] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.times.append(record.created)
            time.sleep(0.5)

    log = logging.getLogger("varve.engine")
    slow = Slow()
    log.addHandler(slow)
    log.setLevel(logging.INFO)
    begin = time.time()
    try:
        for i in range(3):
            varve.torch.save(state_of(1), tmp_path / str(i))
        end = time.time()
        varve._core.set_event_function(varve._events._take)
    finally:
        log.removeHandler(slow)
        log.setLevel(logging.NOTSET)
    assert len(slow.times) == 3
    assert all(begin - 0.1 <= at <= end + 0.1 for at in slow.times)


def test_the_agent_writes_a_log(agent: str, tmp_path: Path) -> None:
    with Stager(executor="process") as stager:
        async_save(state_of(1), tmp_path / "c", stager=stager).result()
    varve.agent.stop(600.0)

    def log() -> list[str]:
        return command("agent", "log", "--directory", agent).splitlines()

    wait_until(lambda: log()[-1].endswith("the agent has ended"))  # Its process ends after stop.
    lines = log()
    assert "INFO the agent begins" in lines[0]
    mine = [line for line in lines if str(tmp_path / "c") in line]
    said = [line.split(": ", 1)[1].split(" trainer=")[0] for line in mine]
    assert [re.sub(r" \d+ ms$", "", one) for one in said] == [
        "writing",
        "is durable, after",
        "writing -> over",
    ]
    assert all(" rank 0 " in line and "save_id=" in line for line in mine)
    assert (Path(agent) / "agent.log").stat().st_mode & 0o777 == 0o600


def test_a_log_of_an_agent_that_never_ran_is_no_error(tmp_path: Path) -> None:
    log = command("agent", "log", "--directory", tmp_path)
    assert log == f"no agent has run: there is no {tmp_path / 'agent.log'}\n"


TRACED = """
import sys, torch, varve.torch
from varve.torch import Stager, async_save
state = {"w": torch.ones(4 << 20)}
with Stager(executor=sys.argv[2]) as stager:
    async_save(state, sys.argv[1], stager=stager).result()
varve.torch.load(state, sys.argv[1], use_agent=False)
"""


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_trace_has_processes_threads_and_blocks(
    executor: str, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARVE_TRACE", "trace.json")  # Relative to where the script begins.
    programs.output(TRACED, tmp_path / "c", executor, cwd=tmp_path)
    varve.agent.stop(600.0)
    text = (tmp_path / "trace.json").read_text()
    events = json.loads(text.rstrip().rstrip(",") + "]")
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    wanted = ["rank 0"] if executor == "thread" else ["agent", "rank 0"]
    assert sorted(processes.values()) == wanted
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == set(processes)
    by_name = {event["name"]: event for event in slices}
    assert {"plan", "stage", "copy block", "write", "write block", "sync", "open"} <= set(by_name)
    written = [event for event in slices if event["name"] == "write block"]
    assert sum(event["args"]["bytes"] for event in written) >= 16 << 20
    whole = by_name["write"]
    assert all(
        whole["ts"] - 1 <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1
        for e in written
    )


def test_a_trace_that_cannot_be_written_harms_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARVE_TRACE", str(tmp_path / "nowhere" / "trace.json"))
    script = "import logging; logging.basicConfig();" + TRACED
    done = programs.run(script, tmp_path / "c", "thread")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("VARVE_TRACE: cannot write") == 1
    assert torch.equal(varve.torch.read(tmp_path / "c")["w"], torch.ones(4 << 20))
