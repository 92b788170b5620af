"""The end of the interpreter: it waits for saves under way, or gives them up where told to."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import programs
import pytest
from async_jobs import LONG, listed

import varve.torch

_BEGIN = """
import os, sys, torch, varve.torch
path, rank = sys.argv[1:]
# Two blocks, of which the second is written half a second after the first: the script ends earlier.
state = {"w": torch.arange(2 << 20), "step": 3}
slowly = {"max_write_bandwidth": 16 << 20}
"""


def run_script(text: str, path: Path, ranks: int = 1) -> list[tuple[int, str]]:
    """Exit status and stderr of each rank."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def run(rank: int) -> tuple[int, str]:
        done = programs.run(_BEGIN + text, path, rank, env=environment, timeout=LONG)
        return done.returncode, done.stderr

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


def assert_whole(path: Path) -> None:
    found = varve.torch.read(path)
    assert found["step"] == 3 and found["w"].tolist() == list(range(2 << 20))


@pytest.mark.slow
def test_a_script_that_ends_right_after_the_call_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    text = "varve.torch.async_save(state, path, **slowly); state['w'].zero_()"
    assert run_script(text, tmp_path / "a") == [(0, "")]
    assert_whole(tmp_path / "a")


@pytest.mark.slow
def test_a_script_that_ends_by_an_exception_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    text = "varve.torch.async_save(state, path, staging='overlapped', **slowly); 1 / 0"
    ((status, stderr),) = run_script(text, tmp_path / "a")
    assert status == 1 and stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert_whole(tmp_path / "a")


@pytest.mark.slow
def test_a_script_may_ask_for_its_saves_to_be_given_up_at_its_end(tmp_path: Path) -> None:
    # At 1000 bytes a second it would take hours.
    text = """
stager = varve.torch.Stager(at_exit="abort")
varve.torch.async_save(state, path, stager=stager, max_write_bandwidth=1000)
"""
    assert run_script(text, tmp_path / "a") == [(0, "")]
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_forked_child_ends_and_leaves_the_saves_to_its_parent(tmp_path: Path) -> None:
    text = """
with varve.torch.Stager() as own:
    for stager in (own, None):
        varve.torch.async_save(state, f"{path}-{stager is own}", stager=stager).result()
    varve.torch.async_save(state, path, stager=own, **slowly)
    if os.fork() == 0:
        varve.torch.async_save(state, path + "-child").result()
        sys.exit(3)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run_script(text, tmp_path / "a") == [(3, "")]
    assert listed(tmp_path) == ["a", "a-False", "a-True", "a-child"]
    assert_whole(tmp_path / "a")
    assert_whole(tmp_path / "a-child")


@pytest.mark.slow
def test_ranks_that_end_right_after_the_call_leave_a_whole_checkpoint(tmp_path: Path) -> None:
    text = """
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{path}-store", rank=int(rank), world_size=2
)
state["mine"] = varve.torch.PerRank(torch.full((2 << 20,), int(rank)))
def tell(handle):
    with open(f"{path}-told-{rank}", "w") as file:
        file.write(repr(handle.exception()))
varve.torch.async_save(state, path, on_done=tell, **slowly)
"""
    # The status is not looked at: gloo may abort an interpreter that ends (pytorch issue 190489).
    run_script(text, tmp_path / "a", ranks=2)
    assert [(tmp_path / f"a-told-{rank}").read_text() for rank in range(2)] == ["None"] * 2
    assert listed(tmp_path) == ["a"]
    assert_whole(tmp_path / "a")
    found = varve.torch.read(tmp_path / "a", "mine/*")
    assert [found[f"mine/rank{rank}"].unique().tolist() for rank in range(2)] == [[0], [1]]


@pytest.mark.slow
def test_a_dropped_handle_of_a_failed_save_says_so(tmp_path: Path) -> None:
    varve.torch.save({"step": 1}, tmp_path / "a")
    text = """
handle = varve.torch.async_save(state, path)
try:
    handle.staging_completion.result()
    handle.wait_staged()
finally:
    del handle
"""
    ((status, stderr),) = run_script(text, tmp_path / "a")
    assert status == 0
    assert "a background save has failed: CheckpointExistsError" in stderr
    assert "dropped and its error never looked at" in stderr


@pytest.mark.slow
def test_a_handle_whose_error_was_looked_at_is_dropped_in_silence(tmp_path: Path) -> None:
    varve.torch.save({"step": 1}, tmp_path / "a")
    ((_, stderr),) = run_script("varve.torch.async_save(state, path).exception()", tmp_path / "a")
    assert "dropped" not in stderr and "a background save has failed" in stderr


@pytest.mark.slow
def test_calls_of_daemon_threads_do_not_harm_the_exit(tmp_path: Path) -> None:
    """They ask for the GIL in the middle of C++, and never get it."""
    # Not of torch, whose own calls abort there.
    text = """
import numpy, threading, time
state = {"w": numpy.zeros(1 << 20)}
def calls(path):
    while True:
        varve.save(state, path, overwrite=True, progress=lambda done, total: None)
        varve.read(path)
for number in range(4):
    threading.Thread(target=calls, args=(f"{path}{number}",), daemon=True).start()
time.sleep(0.5)
"""
    for turn in range(3):
        assert run_script(text, tmp_path / f"{turn}-") == [(0, "")]


@pytest.mark.slow
def test_readers_that_daemon_threads_open_do_not_harm_the_exit(tmp_path: Path) -> None:
    """One run in six ended with SIGABRT when their destructor took the GIL by nanobind's scope."""
    text = """
import numpy, threading, time
varve.save({"w": numpy.zeros(4)}, path, overwrite=True)
def opens():
    while True:
        varve.open(path)
for _ in range(4):
    threading.Thread(target=opens, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(8):
        assert run_script(text, tmp_path / "c") == [(0, "")]
