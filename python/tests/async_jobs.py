"""The ranks and killed processes of the tests of asynchronous saves, and helpers of those tests."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_jobs import Failing, make_training
from same import same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch
from varve.torch import PerRank, SaveHandle, Stager, async_save

MIB = 1 << 20

#: Written in blocks of 8 MiB, of which the second would have to wait for more than two hours.
SLOW = 1000

#: Seconds after which a wait is taken for one that never ends.
LONG = 300.0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def state_of(value: int, mebibytes: int = 1) -> dict[str, Any]:
    """A state in which every part says which one it is."""
    return {
        "w": torch.full((mebibytes, MIB // 8), value, dtype=torch.int64),
        "scalar": torch.tensor(value),
        "step": value,
        "history": [value],
        "nested": {"name": f"state {value}"},
    }


def scribble(state: dict[str, Any]) -> None:
    """Changes everything in place, as the training that goes on would."""
    state["w"].fill_(-1)
    state["scalar"].add_(1000)
    state["step"] = -1
    state["history"].append(-1)
    state["nested"]["name"] = "scribbled"
    state["nested"]["new"] = -1


def assert_holds(path: str | Path, value: int, mebibytes: int = 1) -> None:
    assert same(varve.torch.read(path), state_of(value, mebibytes))


def listed(directory: str | Path) -> list[str]:
    return sorted(e.name for e in varve.list_checkpoints(directory) if e.state == "whole")


class Gate:
    """A progress callback that holds a save up after its first write, until the gate is opened."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.begun.set()
        self.opened.wait(LONG)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- test_async_ranks.py: rank, size, arguments ----


def train_beside_saves(rank: int, size: int, directory: str, steps: int) -> list[int]:
    """FSDP2 and AdamW; every step saved in the background and, as its twin, at once."""
    model, optimizer = make_training(size)
    handles = []
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 6), step + 1.0)).pow(2).sum().backward()
        optimizer.step()
        state = {
            "model": model,
            "optim": optimizer,
            "step": step,
            "mine": PerRank({"rank": rank, "noise": torch.full((3,), rank + step * 0.5)}),
        }
        handles.append(async_save(state, f"{directory}/async-{step}"))
        varve.torch.save(state, f"{directory}/twin-{step}")
    return [handle.result(LONG).bytes_written for handle in handles]


def resume_from_async(rank: int, size: int, path: str) -> bool:
    """A model that is trained further, and one that is loaded and trained further, are equal."""
    models = [make_training(size), make_training(size)]
    batch = torch.ones(2, 6)

    def train(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(batch).pow(2).sum().backward()
        optimizer.step()

    train(*models[0])
    saved = async_save({"model": models[0][0], "optim": models[0][1]}, path)
    train(*models[0])
    saved.result(LONG)
    train(*models[1])  # Has moments to load into; of another history.
    train(*models[1])
    varve.torch.load({"model": models[1][0], "optim": models[1][1]}, path)
    train(*models[1])
    pairs = zip(models[0][0].parameters(), models[1][0].parameters(), strict=True)
    return all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs)


def fail_on_one_rank_and_go_on(rank: int, size: int, directory: str, bad: int) -> tuple[str, int]:
    state: dict[str, Any] = {"w": torch.ones(3), "mine": PerRank(rank)}
    unfit = {**state, "odd": Failing()} if rank == bad else state
    first = async_save(unfit, f"{directory}/bad", timeout=30)
    second = async_save(state, f"{directory}/good", timeout=30)
    error = first.exception(LONG)
    return f"{type(error).__name__}: {error}", len(second.result(LONG).save_id)


def busy(rank: int, size: int, directory: str, when_busy: str) -> list[str]:
    """Three saves while only one or two may be under way; how each ends, on this rank."""
    gate = Gate()
    # One is written. With "replace", a second waits for its turn and is the one to be given up.
    limit = 1 if when_busy == "skip" else 2
    with Stager(when_busy=when_busy, max_in_flight=limit) as stager:
        handles = [async_save(state_of(0), f"{directory}/0", stager=stager, progress=gate)]
        handles += [async_save(state_of(i), f"{directory}/{i}", stager=stager) for i in (1, 2)]
        dist.barrier()
        gate.opened.set()
        return [type(handle.exception(LONG)).__name__ for handle in handles]


def cancel_on_one_rank(rank: int, size: int, path: str, by: int) -> tuple[str, bool]:
    sharded = distribute_tensor(
        torch.ones(15 * size, MIB // 4), init_device_mesh("cpu", (size,)), [Shard(0)]
    )
    # The others give up when they have written their own files, half a second after the cancelling.
    handle = async_save({"w": sharded}, path, max_write_bandwidth=16 * MIB)
    if rank == by:
        handle.cancel()
    error = handle.exception(LONG)
    varve.torch.save({"w": sharded}, path + "-next")
    return type(error).__name__, handle.cancelled()


def save_and_destroy_the_group(rank: int, size: int, path: str) -> int:
    gate = Gate()
    handle = async_save({**state_of(5), "mine": PerRank(rank)}, path, progress=gate)
    dist.destroy_process_group()
    gate.opened.set()
    return handle.result(LONG).attempts


def save_in_one_world_and_the_next(rank: int, size: int, directory: str) -> list[int]:
    """torch.distributed goes down and comes up again while a save is under way."""
    gate = Gate()
    state = {**state_of(0), "mine": PerRank(rank)}
    handles = [async_save(state, f"{directory}/0", progress=gate)]
    dist.destroy_process_group()
    again = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=again, rank=rank, world_size=size)
    handles.append(async_save({**state_of(1), "mine": PerRank(rank)}, f"{directory}/1"))
    gate.opened.set()
    return [handle.result(LONG).attempts for handle in handles]


def save_in_a_part_of_the_world(rank: int, size: int, directory: str) -> bool:
    """Ranks 0 and 1 save; rank 2 is connected to rank 0 about something else."""
    group = dist.new_group([0, 1])
    for step in range(3):
        if rank < 2:
            state = {**state_of(step), "mine": PerRank(rank)}
            handle = async_save(state, f"{directory}/{step}", process_group=group)
            scribble(state)
        if rank != 1:
            note = torch.tensor([step])
            if rank == 0:
                dist.send(note, 2)
            else:
                dist.recv(note, 0)
        if rank < 2:
            handle.result(LONG)
    dist.barrier()
    return listed(directory) == ["0", "1", "2"]


def save_uncoordinated(rank: int, size: int, directory: str) -> list[bool]:
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(40.0).reshape(10, 4)
    for step in range(3):
        sharded = distribute_tensor(whole + step, mesh, [Shard(0)])
        state = {"w": sharded, "mine": PerRank(rank * 10 + step)}
        handle = async_save(state, f"{directory}/{step}", coordinate=False)
        sharded.to_local().zero_()
        handle.result(LONG)
    dist.barrier()
    return [
        torch.equal(varve.torch.read(f"{directory}/{step}")["w"], whole + step) for step in range(3)
    ]


def die_while_saving(rank: int, size: int, path: str, victim: int, at_once: bool) -> str:
    """The errors that the others get, all of them while the others live."""

    def progress(done: int, total: int) -> None:
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    state = {**state_of(0), "mine": PerRank(torch.full((MIB,), rank))}
    told = ""
    if at_once:
        try:
            varve.torch.save(state, path, timeout=300, progress=progress)
        except varve.UnavailableError as error:
            told = str(error)
    else:
        told = str(async_save(state, path, timeout=300, progress=progress).exception(LONG))
    Path(f"{path}-told-{rank}").touch()
    others = [f"{path}-told-{other}" for other in range(size) if other not in (rank, victim)]
    while not all(map(os.path.exists, others)):
        time.sleep(0.01)
    return told


def lose_touch_and_recover(rank: int, size: int, directory: str) -> tuple[str, int]:
    """A rank comes so late to write that the others give the save up; the next one works."""
    gate = Gate()
    if rank != 0:
        gate.opened.set()
    state = {**state_of(rank), "mine": PerRank(torch.full((MIB,), rank))}
    progress = gate if rank == 1 else None
    if rank == 1:
        gate.opened.clear()
    late = async_save(state, f"{directory}/late", timeout=2, progress=progress)
    if rank == 0:
        late.exception(LONG)
    dist.barrier()
    gate.opened.set()
    name = type(late.exception(LONG)).__name__
    again = async_save(state, f"{directory}/again", timeout=30)
    return name, again.result(LONG).attempts


def five_hundred_steps(rank: int, size: int, directory: str, steps: int) -> tuple[int, int]:
    """Saves every step of a training and compares each checkpoint with a clone made at the call.

    Returns the checkpoints this rank found equal, and how many bytes the process has grown by since
    the third.
    """
    mesh = init_device_mesh("cpu", (size,))
    generator = torch.Generator().manual_seed(3)
    model = [
        distribute_tensor(torch.randn(64, 256, generator=generator), mesh, [Shard(0)])
        for _ in range(2)
    ]
    model.append(torch.randn(99, generator=generator))
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in model]
    optimizer = torch.optim.Adam(tensors, lr=0.01)
    pending: list[tuple[SaveHandle, str, dict[str, torch.Tensor]]] = []
    equal = 0
    before = 0

    def compare() -> int:
        handle, path, twin = pending.pop(0)
        handle.result(LONG)
        if rank != 0:
            dist.barrier()
            return 0
        found = varve.torch.read(path)
        good = found["step"] == int(twin["step"])
        for i in range(2):
            # This rank's rows; the others' are checked by the digest that all ranks have summed.
            good &= torch.equal(found[f"w{i}"][: 64 // size], twin[f"w{i}"])
            bits = found[f"w{i}"].view(torch.int32).to(torch.int64)
            good &= torch.equal((bits * WEIGHTS).sum(), twin[f"digest{i}"])
        good &= torch.equal(found["b"], twin["b"]) and torch.equal(found["m"], twin["m"])
        shutil.rmtree(path)
        dist.barrier()
        return int(good)

    for step in range(steps):
        for tensor in tensors:
            tensor.grad = torch.sin(tensor + step)
        optimizer.step()
        moment = optimizer.state[tensors[2]]["exp_avg"]
        digests = torch.stack([_digest(tensor, rank, size) for tensor in tensors[:2]])
        dist.all_reduce(digests)
        twin = {
            "w0": tensors[0].clone(),
            "w1": tensors[1].clone(),
            "b": tensors[2].clone(),
            "m": moment.clone(),
            "step": torch.tensor(step),
            "digest0": digests[0],
            "digest1": digests[1],
        }
        path = f"{directory}/step-{step}"
        state = {"w0": model[0], "w1": model[1], "b": model[2], "m": moment, "step": step}
        pending.append((async_save(state, path), path, twin))
        if len(pending) == 3:
            equal += compare()
        if step == 3:
            before = resident_bytes()
    while pending:
        equal += compare()
    return equal, resident_bytes() - before


#: Makes a digest of a 64x256 tensor depend on where each bit pattern is.
WEIGHTS = torch.arange(1, 64 * 256 + 1).reshape(64, 256)


def _digest(rows: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    low = rank * 64 // size
    weights = WEIGHTS[low : low + rows.shape[0]]
    return (rows.view(torch.int32).to(torch.int64) * weights).sum()


# ---- test_async_kill.py ----

#: What the process that is going to be killed is doing.
STAGING, WRITING = 1, 2

KILL_MIB = 20


def overwrite_for_ever(path: str, first: int, phase: Any, waves: bool) -> None:
    """Overwrites one checkpoint with states of ever higher numbers, and scribbles over each."""
    torch.set_num_threads(1)
    # In waves the copy takes as long as the writing: kills come during it.
    budget = 16 * MIB if waves else 64 * MIB
    number = first
    with Stager(memory_budget=budget) as stager:
        while True:
            state = state_of(number, KILL_MIB)
            phase.value = STAGING
            handle = async_save(state, path, stager=stager, overwrite=True, staging="overlapped")
            handle.wait_staged(LONG)
            phase.value = WRITING
            scribble(state)
            handle.result(LONG)
            number += 1


def resident_after_many(rank: int, size: int, path: str, saves: int) -> tuple[int, int]:
    """Saves a small state again and again; returns the resident bytes after a fifth and at the end."""
    state = {"w": torch.zeros(1000), "mine": PerRank({"rank": rank}), "step": 0}
    warm = 0
    with Stager(memory_budget=32 * MIB) as stager:
        for number in range(saves):
            state["step"] = number
            async_save(state, path, stager=stager, overwrite=True).result(LONG)
            if number == saves // 5:
                warm = resident_bytes()
        return warm, resident_bytes()
