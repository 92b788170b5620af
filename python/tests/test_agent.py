"""The agent: saves that another process writes, and loads from its memory."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_jobs import (
    STAGING,
    SUBMITTED,
    keep_for_ever,
    load_on_ranks,
    one_rank_dies_while_staging,
    ranks_keep_for_ever,
    ranks_submit_and_die,
    save_and_check,
    save_for_ever,
    save_once_and_wait,
)
from async_jobs import LONG, assert_holds, listed, scribble, state_of, wait_until
from ranks import collect, fork_context, process_of, run_ranks
from same import same

import varve
import varve.agent
import varve.torch
from varve.torch import DeferredReport, DeferredSaveHandle, Stager, async_save, defer_save


def start(function: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A process that will be killed, and the phase it is in."""
    phase = fork_context().Value("i", 0, lock=False)
    trainer = process_of(function, arguments[0], phase, *arguments[1:])
    trainer.start()
    return trainer, phase


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def ruin(path: Path) -> None:
    """Overwrites a piece of every data file: only memory has it now."""
    for file in path.glob("*.safetensors"):
        with open(file, "r+b") as stream:
            stream.seek(file.stat().st_size // 2)
            stream.write(b"ruined")


# ---- one process ----


def test_the_agent_saves_what_was_there_at_the_call(agent: str, tmp_path: Path) -> None:
    assert varve.agent.status() is None
    for step, format in enumerate(["varve", "dcp"]):
        state = state_of(step)
        path = tmp_path / str(step)
        handle = async_save(state, path, executor="process", format=format)
        handle.wait_staged()
        scribble(state)
        assert not handle.result(LONG).in_waves
        assert_holds(path, step)
    report = varve.agent.status()
    assert report is not None
    assert report.trainers == 1
    assert report.pid != os.getpid()


def test_waiting_for_the_agent_takes_any_time_that_is_one(agent: str) -> None:
    varve.agent.drain()
    varve.agent.stop()
    with Stager(executor="process"):
        varve.agent.drain(float("inf"))
        for nonsense in (float("nan"), -1.0):
            with pytest.raises(varve.InvalidArgumentError, match="timeout"):
                varve.agent.drain(nonsense)


def test_a_trainer_without_descriptors_left_hears_how_its_save_ended(
    agent: str, tmp_path: Path
) -> None:
    with Stager(executor="process") as stager:
        handle = async_save(
            state_of(1, 8), tmp_path / "c", stager=stager, max_write_bandwidth=4 << 20
        )
        handle.wait_staged()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        next_free = os.dup(0)
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, before[1]))
        try:
            assert handle.result(LONG).attempts == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_load_on_this_node_is_served_from_memory(agent: str, tmp_path: Path) -> None:
    with Stager(executor="process") as stager:
        async_save(state_of(5, 20), tmp_path / "c", stager=stager).result(LONG)
    ruin(tmp_path / "c")
    state = state_of(0, 20)
    report = varve.torch.load(state, tmp_path / "c")
    assert report.bytes_from_agent >= 20 << 20
    assert (state["w"] == 5).all()
    varve.agent.stop()
    with pytest.raises(varve.CorruptCheckpointError):
        varve.torch.load(state, tmp_path / "c")


def test_what_is_to_be_written_at_the_end_is_not_written_before(agent: str, tmp_path: Path) -> None:
    with Stager(executor="process", memory_budget=64 << 20) as stager:
        for step in range(4):
            handle = defer_save(state_of(step), tmp_path / str(step), stager=stager)
            handle.wait_staged(LONG)
            report = handle.result(LONG)
            assert isinstance(report, DeferredReport) and report.bytes > 0 and report.seconds > 0
        assert os.listdir(tmp_path) == []
    varve.agent.drain(LONG)
    assert listed(tmp_path) == ["3"]
    assert_holds(tmp_path / "3", 3)
    with (
        Stager(memory_budget=64 << 20) as threads,
        pytest.raises(varve.InvalidArgumentError, match=r'needs one with executor="process"'),
    ):
        defer_save(state_of(1), tmp_path / "a", stager=threads)
    with pytest.raises(TypeError, match="write"):
        async_save(state_of(1), tmp_path / "a", write="deferred")  # type: ignore[call-arg]


def test_on_held_gets_the_handle_of_a_deferred_save(agent: str, tmp_path: Path) -> None:
    ended: list[DeferredSaveHandle] = []
    handle = defer_save(state_of(1), tmp_path / "a", on_held=ended.append)
    assert handle.result(LONG).bytes > 0
    handle.cancel()  # Too late: the agent keeps it.
    assert ended == [handle] and not handle.cancelled()


@pytest.mark.parametrize("seed", range(5))
def test_of_a_killed_trainer_the_newest_copy_in_memory_becomes_a_checkpoint(
    agent: str, tmp_path: Path, seed: int
) -> None:
    mebibytes = 20
    process, kept = start(keep_for_ever, str(tmp_path), mebibytes)
    wait_until(lambda: kept.value >= 3)
    time.sleep(random.Random(seed).uniform(0, 0.1))
    kill(process)
    newest = kept.value
    varve.agent.drain(LONG)
    (name,) = listed(tmp_path)
    step = int(name.removeprefix("step-"))
    assert step in (newest, newest + 1)  # It may have been killed before it could say so.
    ruin(tmp_path / name)
    state = state_of(0, mebibytes)
    varve.torch.load(state, tmp_path / name)  # From memory.
    assert (state["w"] == step).all() and state["step"] == step


def test_a_stager_says_what_it_cannot_do(agent: str, tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="executor='fast'"):
        Stager(executor="fast")
    with Stager(executor="process") as stager:
        with pytest.raises(varve.InvalidArgumentError, match="executor='process'"):
            async_save(state_of(1), tmp_path / "a", stager=stager, executor="thread")
        handle = async_save(state_of(1), tmp_path / "b", stager=stager, progress=lambda *_: None)
        with pytest.raises(varve.InvalidArgumentError, match="progress"):
            handle.result(LONG)


def test_an_agent_that_cannot_be_started_is_an_error_that_helps(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARVE_AGENT", "/no/such/agent")
    with pytest.raises(varve.PreconditionError, match=r"/no/such/agent.*VARVE_AGENT"):
        Stager(executor="process")
    os.chmod(agent, 0o755)
    with pytest.raises(varve.PreconditionError, match="0700"):
        Stager(executor="process")
    os.chmod(agent, 0o700)


def test_a_child_that_outlives_its_trainer_does_not_keep_it_alive_for_the_agent(
    agent: str, tmp_path: Path
) -> None:
    pipe, end = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        stager = Stager(executor="process")  # Whose socket the child below holds open.
        child = os.fork()
        if child == 0:
            time.sleep(LONG)
            os._exit(0)
        os.write(end, child.to_bytes(8, "little"))
        assert stager.executor == "process"
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(end)  # So that a trainer that crashes ends the read.
    child = int.from_bytes(os.read(pipe, 8), "little")
    os.close(pipe)
    os.waitpid(trainer, 0)
    assert child, "the trainer ended before it had a child"
    wait_until(lambda: getattr(varve.agent.status(), "trainers", None) == 0)
    os.kill(child, signal.SIGKILL)


# ---- killed ----


def test_what_a_killed_trainer_had_submitted_becomes_a_checkpoint(
    agent: str, tmp_path: Path
) -> None:
    process, phase = start(save_once_and_wait, str(tmp_path / "c"), 3, 20)
    wait_until(lambda: phase.value == SUBMITTED)
    kill(process)
    assert listed(tmp_path) == [], "it was to be killed while it was being written"
    varve.agent.drain(LONG)
    ruin(tmp_path / "c")
    state = state_of(0, 20)
    assert varve.torch.load(state, tmp_path / "c").bytes_from_agent > 20 << 20
    assert state["step"] == 3
    assert (state["w"] == 3).all()


KILLS = 20


@pytest.mark.slow
def test_20_kills_of_the_trainer_5_of_them_with_its_agent_leave_whole_checkpoints(
    agent: str, tmp_path: Path
) -> None:
    random.seed(5)
    mebibytes = 12
    first = 0
    advanced = 0
    for number in range(KILLS):
        process, phase = start(save_for_ever, str(tmp_path), first, mebibytes)
        wait_until(lambda phase=phase: phase.value != 0)
        wanted = STAGING if number % 2 == 0 else SUBMITTED
        time.sleep(random.random() * 0.2)
        end = time.monotonic() + LONG
        while phase.value != wanted and process.is_alive() and time.monotonic() < end:
            pass
        time.sleep(random.random() * 0.02)
        if number % 4 == 3:
            report = varve.agent.status()
            if report is not None:
                os.kill(report.pid, signal.SIGKILL)
        kill(process)
        varve.agent.drain(LONG)
        found = sorted(int(name.removeprefix("step-")) for name in listed(tmp_path))
        assert found == list(range(len(found))), "a checkpoint is missing between others"
        newest = max(found, default=first - 1)
        assert newest >= first - 1, "a checkpoint has gone"
        if newest >= 0:
            assert_holds(tmp_path / f"step-{newest}", newest, mebibytes)
        advanced += newest >= first
        first = newest + 1
    assert advanced >= KILLS // 2, "hardly any save succeeded: the kills prove little"
    varve.collect_garbage(tmp_path)
    assert all(name.startswith("step-") for name in os.listdir(tmp_path)), os.listdir(tmp_path)


def test_a_trainer_whose_agent_was_killed_is_told_and_saves_again_with_another(
    agent: str, tmp_path: Path
) -> None:
    with Stager(executor="process") as stager:
        async_save(state_of(1), tmp_path / "1", stager=stager).result(LONG)
        handle = async_save(
            state_of(2, 20), tmp_path / "2", stager=stager, max_write_bandwidth=1 << 20
        )
        handle.wait_staged()
        report = varve.agent.status()
        assert report is not None
        os.kill(report.pid, signal.SIGKILL)
        with pytest.raises(varve.UnavailableError, match="agent"):
            handle.result(LONG)
        async_save(state_of(3), tmp_path / "3", stager=stager).result(LONG)
    assert listed(tmp_path) == ["1", "3"]
    assert_holds(tmp_path / "3", 3)
    failed = [e for e in varve.list_checkpoints(tmp_path) if e.state == "failed"]
    assert [e.name for e in failed] == ["2"]


def test_a_save_right_after_a_stop_starts_another_agent(agent: str, tmp_path: Path) -> None:
    """The one that ends takes a while to release its memory of 64 MiB."""
    state = state_of(1, 64)
    with Stager(executor="process") as stager:
        for _ in range(30):
            async_save(state, tmp_path / "a", stager=stager, overwrite=True).result(LONG)
            varve.agent.stop(LONG)
    assert_holds(tmp_path / "a", 1, 64)


# ---- ranks ----


def test_ranks_save_together_through_their_agent(agent: str, tmp_path: Path) -> None:
    assert all(run_ranks(2, save_and_check, str(tmp_path), 5))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "4"]


def test_when_all_ranks_are_killed_the_save_they_submitted_is_finished_without_them(
    agent: str, tmp_path: Path
) -> None:
    collect(2, ranks_submit_and_die, str(tmp_path), dead=(0, 1))
    assert "2" not in listed(tmp_path), "it was to be killed while it was being written"
    varve.agent.drain(LONG)
    assert listed(tmp_path) == ["1", "2"]
    ruin(tmp_path / "2")
    # On another layout too.
    for size in (1, 3):
        assert sum(run_ranks(size, load_on_ranks, str(tmp_path / "2"))) >= size * 20 << 20


@pytest.mark.slow
def test_of_killed_ranks_the_newest_copy_that_all_have_becomes_a_checkpoint(
    agent: str, tmp_path: Path
) -> None:
    for victim in range(2):
        directory = tmp_path / str(victim)
        directory.mkdir()
        collect(2, ranks_keep_for_ever, str(directory), victim, dead=(victim,))
        varve.agent.drain(LONG)
        assert listed(directory) == ["step-6"]  # Of the seventh one rank had no copy yet.
        assert varve.verify(directory / "step-6") == []
        state = varve.torch.read(directory / "step-6")
        assert all((state[f"rank{rank}"] == 6).all() for rank in range(2))


@pytest.mark.slow
def test_a_rank_that_dies_before_it_has_submitted_is_named_by_the_others(
    agent: str, tmp_path: Path
) -> None:
    outcomes = collect(2, one_rank_dies_while_staging, str(tmp_path), 1, dead=(1,))
    assert "rank 1" in outcomes[0][1]
    assert listed(tmp_path) == ["1"]


# ---- loads that leave it out, or find it stopped ----


def load_by_agent(path: Path) -> None:
    """Loads until the agent has served it: a busy machine's agent may take more than a load's second."""
    end = time.monotonic() + LONG
    while varve.torch.load(state_of(0), path).bytes_from_agent == 0:
        assert time.monotonic() < end


@pytest.fixture
def held(agent: str, tmp_path: Path) -> Path:
    """A checkpoint that the agent has in memory."""
    path = tmp_path / "held"
    async_save(state_of(1), path, executor="process").result(LONG)
    load_by_agent(path)
    return path


def test_a_load_can_leave_the_agent_out(held: Path) -> None:
    target = state_of(0)
    assert varve.torch.load(target, held, use_agent=False).bytes_from_agent == 0
    assert same(target, state_of(1))
    ruin(held)
    assert same(varve.torch.read(held), state_of(1))
    with pytest.raises(varve.CorruptCheckpointError):
        varve.torch.read(held, use_agent=False)


@pytest.mark.parametrize("queue", ["open", "full"])
def test_a_load_does_not_wait_for_a_stopped_agent(held: Path, agent: str, queue: str) -> None:
    running = varve.agent.status()
    assert running is not None
    waiting: list[socket.socket] = []
    os.kill(running.pid, signal.SIGSTOP)
    try:
        while queue == "full":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            waiting.append(connection)
            try:
                connection.connect(os.path.join(agent, "agent.socket"))
            except BlockingIOError:
                break
        begun = time.monotonic()
        target = state_of(0)
        assert varve.torch.load(target, held).bytes_from_agent == 0
        # One second, were this machine idle; ten before there was a limit.
        assert time.monotonic() - begun < 5
        assert same(target, state_of(1))
    finally:
        os.kill(running.pid, signal.SIGCONT)
        for connection in waiting:
            connection.close()
    load_by_agent(held)
