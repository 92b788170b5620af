"""The log events of torch's functions are those of ours: one handler serves both."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch.distributed.checkpoint import logger

import varve.torch.dcp as dcp

if not hasattr(logger, "_dcp_method_logger"):
    pytest.skip("this torch has no log events", allow_module_level=True)

Event = tuple[str, str]


class Collecting(logging.Handler):
    """Keeps what is logged. Torch uses one dict for a call's start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, dict)
        self.records.append({**record.msg, "thread": threading.get_ident()})

    def take(self) -> list[dict[str, Any]]:
        taken, self.records = self.records, []
        return taken


@pytest.fixture
def handler() -> Iterator[Collecting]:
    made = Collecting()
    logger._dcp_logger.addHandler(made)
    yield made
    logger._dcp_logger.removeHandler(made)


class Model:
    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def state_dict(self) -> dict[str, Any]:
        if self.fails == "state_dict":
            raise ValueError("no state to be found")
        return {"w": torch.ones(4)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class Planner(torch_dcp.DefaultSavePlanner):
    """The default plan, by a class of the caller's."""


def names(records: list[dict[str, Any]]) -> list[Event]:
    return [(record["func_name"], record["event"]) for record in records]


def test_save_and_load_log_the_events_of_torchs(handler: Collecting, tmp_path: Path) -> None:
    logged = {}
    for module in (torch_dcp, dcp):
        writer = module.FileSystemWriter(tmp_path / module.__name__)
        planner = Planner()
        module.save({"model": Model()}, storage_writer=writer, planner=planner)
        module.load({"model": Model()}, checkpoint_id=tmp_path / module.__name__)
        logged[module] = handler.take()
    assert names(logged[dcp]) == names(logged[torch_dcp])
    for ours, theirs in zip(logged[dcp], logged[torch_dcp], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["checkpoint_id"] in (None, str(tmp_path / dcp.__name__))
        for key in ("storage_writer", "planner", "log_exceptions"):
            assert ours.get(key) == theirs.get(key)


def test_a_save_that_the_engine_plans_has_no_steps(handler: Collecting, tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "step")
    found = names(handler.take())
    assert found[0] == ("save", "start") and found[-1] == ("save", "end")
    assert {name for name, _ in found} == {"save", "_stateful_to_state_dict"}


@pytest.mark.parametrize("own_writer", [False, True])
@pytest.mark.parametrize("by_engine", [False, True])
def test_async_save_logs_the_events_of_torchs(
    handler: Collecting, tmp_path: Path, own_writer: bool, by_engine: bool
) -> None:
    logged = {}
    for module in (torch_dcp, dcp):
        path = tmp_path / module.__name__
        where = {"storage_writer": module.FileSystemWriter(path)} if own_writer else {}
        planner = None if by_engine else Planner()
        model = {"model": Model()}
        done: Any = module.async_save(model, checkpoint_id=path, planner=planner, **where)
        done.result()
        records = handler.take()
        in_the_call = [record["event"] for record in records if record["func_name"] == "async_save"]
        assert in_the_call == ["start", "end"]
        here = threading.get_ident()
        logged[module] = [
            # What torch's thread asks for once more are objects that are plain by then.
            {(r["func_name"], r["event"]) for r in records if (r["thread"] == here) is in_the_call}
            for in_the_call in (True, False)
        ]
    save = {("save", "start"), ("save", "end")}
    steps = {name for name, _ in logged[dcp][0]}
    assert {"async_save", "stage_state_dict", "maybe_synchronize_staging"} <= steps
    assert save <= logged[torch_dcp][1]
    if by_engine:  # Which takes no step of torch's inside the save.
        assert logged[dcp][0] | logged[dcp][1] == logged[torch_dcp][0] | save
        return
    torchs_again = {name for name in logged[torch_dcp][1] if name[0].startswith("_stateful")}
    assert logged[dcp][0] == logged[torch_dcp][0]
    assert logged[dcp][1] == logged[torch_dcp][1] - torchs_again


def test_the_event_of_a_save_by_the_engine_lasts_as_long_as_the_save(
    handler: Collecting, tmp_path: Path
) -> None:
    dcp.async_save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "step").result()
    held = dcp.FileSystemWriter(tmp_path / "step", overwrite=False)
    assert dcp.async_save({"w": torch.ones(4)}, storage_writer=held).exception() is not None
    records = [record for record in handler.take() if record["func_name"] == "save"]
    assert [record["event"] for record in records] == ["start", "end", "start", "exception"]
    started, ended, _, failed = records
    assert ended["times_spent"] == ended["time"] - started["time"]
    assert ended["uuid"] == started["uuid"] and "already holds" in failed["error"]


def test_a_failure_is_an_event_of_each_step_that_it_leaves(
    handler: Collecting, tmp_path: Path
) -> None:
    with pytest.raises(dcp.CheckpointError):
        dcp.save({"model": Model("state_dict")}, checkpoint_id=tmp_path / "step")
    failed = [record for record in handler.take() if record["event"] == "exception"]
    assert [record["func_name"] for record in failed] == [
        "_stateful_to_state_dict.model",
        "_stateful_to_state_dict",
        "save",
    ]
    assert all("no state to be found" in record["error"] for record in failed)
    future = dcp.async_save({"model": Model("state_dict")}, checkpoint_id=tmp_path / "step")
    assert isinstance(future.exception(), dcp.CheckpointError)
    failed = [record for record in handler.take() if record["event"] == "exception"]
    assert failed[-1]["func_name"] == "save" and "no state to be found" in failed[-1]["error"]


def test_warnings_name_the_users_line_as_before(tmp_path: Path) -> None:
    calls = {"save": dcp.save, "async_save": dcp.async_save, "load": dcp.load}
    for call in calls.values():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = call({"w": torch.ones(1)}, checkpoint_id=tmp_path / "step")
            if made is not None and hasattr(made, "result"):
                made.result()
        said = [warning for warning in caught if "is not initialized" in str(warning.message)]
        assert [warning.filename for warning in said] == [__file__]
