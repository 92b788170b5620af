"""A failure on one rank, wherever it happens, is an ordinary exception on all ranks that names it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dcp_async_jobs as async_jobs
import dcp_jobs as jobs
import programs
import pytest
import slow_open
import torch
import torch.distributed.checkpoint as torch_dcp
from ranks import errors_of_ranks, run_ranks
from torch.distributed.checkpoint.api import _wrap_exception

import varve
import varve.torch
import varve.torch.dcp as dcp


def test_a_failure_in_any_hook_of_the_writer_on_any_rank_is_raised_on_every_rank(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "step")
    assert run_ranks(3, jobs.fail_saves, path, {}) == [14] * 3
    assert os.listdir(tmp_path) == ["step"]  # Of the saves that failed, nothing.
    assert torch.equal(varve.torch.read(path)["w"], torch.arange(1000.0))


LOAD = """
import logging, warnings
logging.basicConfig(level=logging.INFO)
warnings.simplefilter("ignore")
import torch
import varve.torch.dcp as dcp
dcp.load({"w": torch.ones(2)}, checkpoint_id="/nothing/here")
"""


def test_a_load_of_no_checkpoint_is_one_line_below_its_traceback() -> None:
    done = programs.run(LOAD)
    assert done.stderr.count("Traceback") == 1
    assert "metadata" not in done.stderr
    assert done.stderr.endswith(
        "NoCheckpointError: load: there is no checkpoint at /nothing/here\n"
    )


def test_a_load_of_no_checkpoint_is_a_file_that_is_not_found_on_all_ranks(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    for error in run_ranks(2, jobs.load_nothing, path):
        assert isinstance(error, (dcp.CheckpointError, torch_dcp.api.CheckpointException))
        assert isinstance(error, FileNotFoundError) and isinstance(error, varve.Error)
        assert str(error) == f"load: there is no checkpoint at {path}"
        assert (error.path, error.filename, error.rank, sorted(error.failures)) == (
            path,
            path,
            0,
            [0, 1],
        )


def test_it_is_so_without_collectives_too(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    assert run_ranks(2, jobs.fail_saves, path, {"use_collectives": False}) == [10] * 2
    assert torch.equal(varve.torch.read(path)["w"], torch.arange(1000.0))


def test_a_failure_in_any_hook_of_the_reader_on_any_rank_is_raised_on_every_rank(
    tmp_path: Path,
) -> None:
    assert run_ranks(3, jobs.fail_loads, str(tmp_path / "step")) == [13] * 3


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("in_background", [False, True])
def test_a_rank_that_dies_in_a_save_fails_it_on_the_others_at_once(
    victim: int, in_background: bool, tmp_path: Path
) -> None:
    started = time.monotonic()
    path = str(tmp_path / "step")
    failed = errors_of_ranks(3, jobs.die_in_a_save, path, victim, in_background, dead=(victim,))
    assert len(failed) == 2 and time.monotonic() - started < 60
    for text in failed.values():
        assert text.startswith("CheckpointError: ") and f"rank {victim}: " in text, text
    assert not (tmp_path / "step").exists()


def test_a_stager_that_fails_on_one_rank_fails_the_save_on_all_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    assert run_ranks(2, async_jobs.async_with_a_stager_that_fails, path) == ["[1]"] * 2


def test_a_save_goes_on_when_the_caller_ends_its_group(tmp_path: Path) -> None:
    run_ranks(2, async_jobs.async_whose_group_ends, str(tmp_path / "step"))


def test_a_callers_writer_may_have_a_name_of_its_own_on_each_rank(tmp_path: Path) -> None:
    run_ranks(2, async_jobs.save_to_a_directory_for_each_rank, str(tmp_path / "step"))


def test_a_failure_before_the_first_step_or_after_the_last_is_raised_on_every_rank(
    tmp_path: Path,
) -> None:
    run_ranks(2, jobs.fail_around, str(tmp_path / "step"))


def test_a_writer_that_loses_a_plan_fails_the_save(tmp_path: Path) -> None:
    class Losing(dcp.FileSystemWriter):
        def prepare_global_plan(self, plans: Any) -> Any:
            return super().prepare_global_plan(plans)[1:]

    with pytest.raises(dcp.CheckpointError, match="made 0 plans for 1 ranks"):
        dcp.save({"w": torch.ones(2)}, storage_writer=Losing(tmp_path / "step"))
    assert os.listdir(tmp_path) == []


def test_with_torchs_own_save_a_failure_frees_the_name_for_the_next_save(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    run_ranks(2, jobs.fail_under_torch, path)
    assert os.listdir(tmp_path) == ["step"]
    assert varve.verify(path) == []


def test_ranks_that_do_not_share_their_storage_are_found_out(tmp_path: Path) -> None:
    run_ranks(2, jobs.separate_disks, str(tmp_path))


def test_a_missing_key_and_a_size_mismatch_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save({"w": torch.ones(3, 4)}, checkpoint_id=path)
    with pytest.raises(dcp.CheckpointError, match="Missing key"):
        dcp.load({"v": torch.ones(3, 4)}, checkpoint_id=path)
    with pytest.raises(dcp.CheckpointError, match="Size mismatch"):
        dcp.load({"w": torch.ones(4, 3)}, checkpoint_id=path)


def test_a_missing_checkpoint_is_an_error_that_says_where(tmp_path: Path) -> None:
    with pytest.raises(dcp.CheckpointError, match=f"no checkpoint at {tmp_path / 'none'}"):
        dcp.load({}, checkpoint_id=tmp_path / "none")


def test_the_exception_is_ordinary_and_torchs_too_and_travels() -> None:
    try:
        raise OSError("disk full")
    except OSError as cause:
        error = dcp.CheckpointError("save x failed", {2: _wrap_exception(cause)})
    assert isinstance(error, Exception) and isinstance(error, varve.Error)
    assert isinstance(error, torch_dcp.CheckpointException)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is dcp.CheckpointError and str(copy) == "save x failed"
    assert list(copy.failures) == [2] and str(copy.failures[2][0]) == "disk full"


def test_the_message_names_ranks_and_causes_and_the_first_cause_is_chained(tmp_path: Path) -> None:
    planner = _Resolving({"a": OSError("disk full")})
    with pytest.raises(dcp.CheckpointError) as caught:
        dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "step", planner=planner)
    assert "step failed" in str(caught.value) and "rank 0: OSError: disk full" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert os.listdir(tmp_path) == []


def test_ctrl_c_stays_a_keyboard_interrupt(tmp_path: Path) -> None:
    planner = _Resolving({"a": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "step", planner=planner)
    assert os.listdir(tmp_path) == []


_PUBLISHING = """
import os, sys, time, torch, varve.torch.dcp as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
class Planner(DefaultSavePlanner): pass
path, = sys.argv[1:]
try:
    dcp.save({"w": torch.ones(2)}, checkpoint_id=path, no_dist=True, planner=Planner())
    print("returned", flush=True)
except KeyboardInterrupt:
    print("after" if os.path.exists(path + "/.metadata") else "before", flush=True)
until = time.monotonic() + 60
while not os.path.exists(path + "/.metadata") and time.monotonic() < until:
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_ctrl_c_does_not_wait_for_the_publishing_which_goes_on(
    tmp_path: Path, in_place: bool
) -> None:
    path, mark = tmp_path / "run" / "step", tmp_path / "mark"
    if in_place:
        path.mkdir(parents=True)
        (path / "notes.txt").write_text("mine")
    preload = str(slow_open.library(tmp_path))
    slow = {
        "SLOW_OPEN_TO_WRITE": "*/.metadata*",
        "SLOW_OPEN_MARK": str(mark),
        "LD_PRELOAD": preload,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", _PUBLISHING, str(path)],
        env={**os.environ, **slow},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        while not mark.exists():
            assert process.poll() is None, "it has not come to the index"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        release = threading.Timer(20, mark.with_suffix(".go").touch)  # Ends a wait that does not.
        release.start()
        assert process.stdout.readline() == "before\n"
        release.cancel()
        mark.with_suffix(".go").touch()
        process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert varve.torch.read(path)["w"].tolist() == [1, 1]
    assert varve.verify(path) == []


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (torch.ones(3), r"\[3\], its plan says torch.float32 \[2\]"),
        (torch.ones(2).half(), "resolved torch.float16"),
        (5, "a int, not a tensor"),
    ],
)
def test_what_a_planner_resolves_must_be_what_its_plan_says(
    data: Any, what: str, tmp_path: Path
) -> None:
    with pytest.raises(dcp.CheckpointError, match=what):
        dcp.save(
            {"a": torch.ones(2)}, checkpoint_id=tmp_path / "step", planner=_Resolving({"a": data})
        )
    assert os.listdir(tmp_path) == []


class _Resolving(torch_dcp.DefaultSavePlanner):
    """Resolves some entries to something else, or to an exception."""

    def __init__(self, instead: dict[str, Any]) -> None:
        super().__init__()
        self.instead = instead

    def resolve_data(self, write_item: Any) -> Any:
        data = self.instead.get(write_item.index.fqn)
        if isinstance(data, BaseException):
            raise data
        return super().resolve_data(write_item) if data is None else data
