"""What the ranks of test_manager_ranks.py do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch
from varve.integrations._ranks import by_rank_0

ROWS = 24


def state(size: int, value: float = 0.0) -> dict[str, Any]:
    """A tensor of which each rank has a part, and plain values."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.full((ROWS, 64), float(value))
    return {
        "w": distribute_tensor(whole, mesh, [Shard(0)]),
        "n": float(value),
        "mine": varve.torch.PerRank(float(dist.get_rank())),
    }


def value_of(into: dict[str, Any]) -> tuple[float, bool]:
    """The number that a state holds, and whether all of this rank's part has it."""
    return into["n"], bool((into["w"].to_local() == into["n"]).all())


def save_steps(
    rank: int, size: int, run: str, steps: list[int], options: dict[str, Any]
) -> list[int]:
    """Saves these steps; returns those that were made."""
    with varve.torch.CheckpointManager(run, **options) as manager:
        return [step for step in steps if manager.save(step, state(size, step)) is not None]


def resume(rank: int, size: int, run: str, options: dict[str, Any]) -> Any:
    """Resumes; returns the step, the number in the state, and whether this rank's part is whole."""
    into = state(size)
    with varve.torch.CheckpointManager(run, **options) as manager:
        return manager.resume(into), *value_of(into)


def train_until(
    rank: int, size: int, run: str, options: dict[str, Any], ask: Callable[[int, int, str], None]
) -> tuple[int, str, list[int]]:
    """Trains until the run is to end, asking for that at step 5; returns where it ended, and why."""
    made = []
    with varve.torch.CheckpointManager(run, **options) as manager:
        for step in range(1, 500):
            time.sleep(0.02)
            if step == 5:
                ask(rank, step, run)
            if manager.save(step, state(size, step)) is not None:
                made.append(step)
            if manager.preempted:
                return step, manager.stop_reason, made
    return -1, "", made


def signal_rank_1(rank: int, step: int, run: str) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGUSR1)


def ask_by_file(rank: int, step: int, run: str) -> None:
    if rank == 0:
        (Path(run) / "varve-stop").touch()


def save_by_minutes(rank: int, size: int, run: str) -> list[int]:
    """Saves by rank 0's clock, on ranks that are not equally fast."""
    made = []
    with varve.torch.CheckpointManager(run, every=varve.Every(minutes=0.1 / 60)) as manager:
        for step in range(1, 60):
            time.sleep(0.003 + 0.004 * rank)
            if manager.save(step, state(size, step)) is not None:
                made.append(step)
    return made


def at_different_steps(rank: int, size: int, run: str) -> None:
    with varve.torch.CheckpointManager(run, every=2) as manager:
        for step in range(1, 10_000):
            manager.save(step + (step > 3 and rank == 1), {"n": step})


def one_rank_dies(rank: int, size: int, run: str) -> None:
    with varve.torch.CheckpointManager(run) as manager:
        for step in range(1, 10_000):
            if rank == 1 and step == 20:
                os._exit(9)
            time.sleep(0.005)
            manager.save(step, {"n": step})


def one_rank_raises(rank: int, size: int, run: str, which: int) -> str:
    """Trains until one rank raises; returns what the others are told."""
    try:
        with varve.torch.CheckpointManager(run) as manager:
            for step in range(1, 10_000):
                if rank == which and step == 20:
                    raise KeyError("loss")
                time.sleep(1.0 if step == 20 else 0.01)  # The other one has left by then.
                manager.save(step, {"n": step})
    except (KeyError, varve.UnavailableError) as error:
        return str(error)
    return "nothing"


def second_job(rank: int, size: int, run: str) -> None:
    import varve._manage._lock as module

    module.LONGEST_WAIT = 0.3
    varve.torch.CheckpointManager(run)


def protect_and_die(rank: int, size: int, run: str, last: int) -> None:
    """Saves step 2, protects each step after it, and is killed."""
    options = {"executor": "process", "every": 1000}
    manager = varve.torch.CheckpointManager(run, **options)  # type: ignore[arg-type]
    manager.save(2, state(size, 2), force=True)
    manager.wait()
    for step in range(3, last + 1):
        manager.protect(step, state(size, step)).result()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def fail_twice(rank: int, size: int, run: str) -> int:
    """Saves into a run in which the names are taken by files: raises after two failures."""
    with varve.torch.CheckpointManager(run, every=1, max_failures=2) as manager:
        if rank == 0:
            for step in range(1, 100):
                Path(run, f"step-{step:08d}").write_text("in the way")
        dist.barrier()
        for step in range(1, 100):
            try:
                manager.save(step, {"n": step})
            except varve.UnavailableError as error:
                assert "saves in a row have failed" in str(error)
                return step
            manager.wait()
            dist.barrier()
    return -1


def cost_of_no_save(rank: int, size: int, run: str, count: int) -> float:
    """Seconds that a call takes which saves nothing, at the median."""
    took = []
    with varve.torch.CheckpointManager(run, every=10**9) as manager:
        for step in range(1, count):
            time.sleep(0.001)
            began = time.perf_counter()
            manager.save(step, {})
            took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]


class Loader:
    """An object with a state of its own."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def save_own(rank: int, size: int, path: str) -> None:
    own = {
        "plain": varve.torch.PerRank({"seen": rank * 10}),
        "loader": varve.torch.PerRank(Loader(list(range(rank + 1)))),
    }
    varve.torch.save(own, path)


def load_merged(rank: int, size: int, path: str) -> Any:
    def together(values: list[Any], rank: int, world: int) -> Any:
        return {"seen": sum(one["seen"] for one in values), "rank": rank, "world": world}

    def joined(values: list[Any], rank: int, world: int) -> Any:
        return {"seen": [number for one in values for number in one["seen"]]}

    own = {
        "plain": varve.torch.PerRank({"seen": -1}, merge=together),
        "loader": varve.torch.PerRank(Loader([]), merge=joined),
    }
    varve.torch.load(own, path)
    return own["plain"].value, own["loader"].value.seen


def make_and_close(rank: int, size: int, run: str, times: int) -> int:
    """Makes managers of a run and closes them at once; returns how many were made."""
    for _ in range(times):
        varve.torch.CheckpointManager(run).close()
    return times


def miss_a_call(
    rank: int, size: int, run: str, who: int, missed: int, last: int
) -> tuple[list[int], list[str], float]:
    """Trains; one rank leaves one call of `save` out. Returns the steps made, and the errors."""
    made, errors = [], []
    began = time.monotonic()
    with varve.torch.CheckpointManager(run, every=10, timeout=120.0) as manager:
        for step in range(1, last + 1):
            time.sleep(0.01)
            if rank == who and step == missed:
                continue
            try:
                future = manager.save(step, {"n": step})
                if future is not None and future.exception() is None:
                    made.append(step)
            except varve.InvalidArgumentError as error:
                errors.append(str(error))
    return made, errors, time.monotonic() - began


def raise_on_one_rank(
    rank: int, size: int, run: str, who: int, what: str
) -> tuple[list[str], list[int], list[str]]:
    """A function of the user's raises on one rank at step 3; returns outcomes, steps and what was told."""

    def broken() -> Any:
        raise KeyError("momentum")

    told: list[str] = []
    outcomes = []
    with varve.torch.CheckpointManager(
        run, every=1, on_failure=lambda step, error: told.append(f"{step}: {error}")
    ) as manager:
        for step in range(1, 6):
            bad = rank == who and step == 3
            given: Any = broken if bad and what == "state" else {"n": step}
            if bad and what == "state_dict":
                given = {"n": Broken()}
            metrics = {"loss": broken if bad and what == "metrics" else 1.0}
            future = manager.save(step, given, metrics=metrics)
            assert future is not None
            error = future.exception()
            outcomes.append("done" if error is None else f"{type(error).__name__}: {error}")
        manager.wait()
        return outcomes, [one.step for one in manager.steps()], told


class Broken:
    """An object whose state cannot be had."""

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("momentum")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def interrupt_a_state_function(rank: int, size: int, run: str, who: int) -> list[str]:
    """Ctrl-C in the state function of one rank, which goes on; the next save is made."""
    outcomes = []

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with varve.torch.CheckpointManager(run, every=1, timeout=20.0) as manager:
        for step in range(1, 5):
            try:
                future = manager.save(
                    step, interrupted if rank == who and step == 2 else {"n": step}
                )
                assert future is not None
                error = future.exception()
                outcomes.append("done" if error is None else str(error))
            except KeyboardInterrupt:
                outcomes.append("Ctrl-C")
    return outcomes


def make_one(rank: int, size: int, run: str) -> str:
    """Makes a manager that looks at the history; returns the type, path and text of its error."""
    try:
        with varve.torch.CheckpointManager(run, every=varve.Every("auto"), timeout=60):
            return "made"
    except varve.Error as error:
        return f"{type(error).__name__} {error.path} {error}"


def fail_to_decide(rank: int, size: int, raised: Exception) -> str:
    """Asks rank 0, whose decision fails; returns the type, path, errno and text of the error."""

    def decide() -> None:
        assert rank == 0
        raise raised

    try:
        by_rank_0("choose", decide, 60.0)
    except Exception as error:
        known = f"{getattr(error, 'path', '')} {getattr(error, 'errno', None)}"
        return f"{type(error).__name__} {known} {error}"
    return "no error"
