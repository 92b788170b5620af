"""What ranks do in test_s3_faults.py. Names of `s3://` go through the proxy, those of `r2://` to the
server itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from fault_proxy import set_plan
from s3_jobs import state_of

import varve
import varve.torch


@dataclass
class Outcome:
    """Of one save or load with a fault."""

    at: int
    requests: int
    error: str  # "Type: message"; empty: it succeeded.
    seen: int  # The version that is there afterwards; 0: none.
    overwrite: bool = False


def set_up(proxy: str) -> None:
    os.environ.update(
        R2_ENDPOINT_URL=os.environ["AWS_ENDPOINT_URL"],
        AWS_ENDPOINT_URL=proxy,
        VARVE_S3_RETRY_TIMEOUT="30",
        VARVE_S3_STALL_TIMEOUT="1",
    )


def direct(path: str) -> str:
    return path.replace("s3://", "r2://", 1)


def plan(rank: int, proxy: str, kind: str, at: int) -> int:
    """Sets the plan, once all ranks are here. Returns the requests since the last one, on rank 0."""
    dist.barrier()
    requests = set_plan(proxy, kind, at) if rank == 0 else 0
    dist.barrier()
    return requests


def version_at(path: str, size: int) -> int:
    """The version that this rank loads, checked against what it should be; 0: none is there."""
    state = state_of(0, size, 1)
    try:
        varve.torch.load(state, path)
    except varve.CheckpointNotFoundError:
        return 0
    want = state_of(state["step"], size, 1)
    assert torch.equal(state["w"].to_local(), want["w"].to_local())
    assert torch.equal(state["b"], want["b"])
    return int(state["step"])


def attempt(action: object) -> str:
    try:
        action()  # type: ignore[operator]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def look_without_a_server(rank: int, size: int, proxy: str, run: str) -> list[str]:
    """Looks for the newest step while a router answers for the server. Returns the errors."""
    set_up(proxy)
    os.environ["VARVE_S3_RETRY_TIMEOUT"] = "1"
    plan(rank, proxy, "none", 0)
    state = {"w": torch.ones(3)}
    with varve.torch.CheckpointManager(run, every=1) as manager:
        manager.save(1, state)
        manager.wait()
        plan(rank, proxy, "always-not-routed", 0)
        looks = (lambda: manager.resume(state), lambda: varve.latest(run), lambda: varve.open(run))
        errors = [attempt(look) for look in looks]
        plan(rank, proxy, "none", 0)
        assert manager.resume(state) == 1
    return errors


def save_with_faults(
    rank: int,
    size: int,
    proxy: str,
    folder: str,
    kind: str,
    indices: list[tuple[int, bool]],
) -> list[Outcome]:
    """Saves once for each index of a request, to a new name or over version 1."""
    set_up(proxy)
    outcomes = []
    for at, overwrite in indices:
        path = f"{folder}/{kind}-{at}-{overwrite:d}"
        if overwrite:
            varve.torch.save(state_of(1, size, 1), direct(path))
        plan(rank, proxy, kind, at)
        error = attempt(
            lambda path=path, over=overwrite: varve.torch.save(
                state_of(2, size, 1), path, overwrite=over
            )
        )
        requests = plan(rank, proxy, "none", 0)
        outcomes.append(Outcome(at, requests, error, version_at(direct(path), size), overwrite))
        # Nothing that is left keeps the next save from its name.
        varve.torch.save(state_of(3, size, 1), direct(path), overwrite=True)
        assert version_at(direct(path), size) == 3
    return outcomes


def load_with_faults(
    rank: int, size: int, proxy: str, path: str, kind: str, most: int
) -> list[Outcome]:
    set_up(proxy)
    varve.torch.save(state_of(1, size, 1), direct(path))
    outcomes = []
    for at in range(most):
        state = state_of(0, size, 1)
        plan(rank, proxy, kind, at)
        error = attempt(lambda state=state: varve.torch.load(state, path))
        requests = plan(rank, proxy, "none", 0)
        want = state_of(1, size, 1)
        right = torch.equal(state["w"].to_local(), want["w"].to_local())
        outcomes.append(Outcome(at, requests, error, int(right and state["step"] == 1)))
    return outcomes


def save_large(rank: int, size: int, proxy: str, path: str, mebibytes: int) -> None:
    set_up(proxy)
    varve.torch.save(state_of(1, size, mebibytes), path)


def load_large(rank: int, size: int, proxy: str, path: str, mebibytes: int) -> int:
    """Loads into other shards. Returns the bytes of this rank's tensors."""
    set_up(proxy)
    state = state_of(0, size, mebibytes)
    varve.torch.load(state, path)
    want = state_of(1, size, mebibytes)
    assert torch.equal(state["w"].to_local(), want["w"].to_local())
    return int(state["w"].to_local().nbytes + state["b"].nbytes)


def collect_garbage(rank: int, size: int, proxy: str, folder: str) -> str:
    set_up(proxy)
    return attempt(lambda: varve.collect_garbage(folder))


def die_while_uploading(rank: int, size: int, proxy: str, path: str, after: float) -> Outcome:
    """Saves 48 MiB at 12 MB/s a rank; rank 1 is killed meanwhile."""
    set_up(proxy)
    os.environ["VARVE_S3_MAX_BANDWIDTH"] = "12000000"
    varve.torch.save(state_of(1, size, 1), direct(path))
    large = state_of(2, size, 96)
    dist.barrier()
    if rank == 1:
        threading.Thread(
            target=lambda: (time.sleep(after), os.kill(os.getpid(), signal.SIGKILL)), daemon=True
        ).start()
    error = attempt(lambda: varve.torch.save(large, path, overwrite=True))
    state = varve.torch.read(direct(path))
    return Outcome(0, 0, error, int(state["step"]))
