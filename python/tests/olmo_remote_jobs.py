"""What ranks do in test_olmo_remote.py. Arguments: rank, size, then its own."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from typing import Any

import olmo_jobs as jobs
import torch

import varve.olmo as olmo


def save(
    rank: int,
    size: int,
    layout: str,
    path: str,
    upload_to: str,
    seed: int = 1,
    **options: Any,
) -> bytes:
    model, optim = jobs.trained("fsdp1", size, seed)
    checkpointer = jobs.CHECKPOINTERS[layout](jobs.Config(overwrite=True), **options)
    state = jobs.state_of_trainer(rank)
    checkpointer.save_checkpoint(path, model, optim, state, upload_to=upload_to)
    checkpointer.wait_for_uploads()
    return jobs.truth(model, optim)


def save_remotely(
    rank: int,
    size: int,
    layout: str,
    remote: str,
    spool: str,
    seed: int = 1,
    overwrite: bool = False,
    kind: str = "fsdp1",
    **options: Any,
) -> tuple[bytes, str]:
    """Saves straight into a bucket. Returns what was saved, and the error."""
    tempfile.tempdir = spool
    model, optim = jobs.trained(kind, size, seed)
    checkpointer = jobs.CHECKPOINTERS[layout](jobs.Config(overwrite=overwrite), **options)
    try:
        checkpointer.save_checkpoint(remote, model, optim, jobs.state_of_trainer(rank))
        checkpointer.wait_for_uploads()
    except Exception as error:
        return jobs.truth(model, optim), f"{type(error).__name__}: {error}"
    return jobs.truth(model, optim), ""


def save_remotely_on_nodes(
    rank: int,
    size: int,
    layout: str,
    kind: str,
    remote: str,
    root: str,
) -> tuple[bytes, str]:
    """Two ranks share a node, whose TMPDIR is a directory that stands for its disk."""
    os.environ["FS_LOCAL_RANK"] = str(rank % 2)
    disk = f"{root}/node{rank // 2}"
    os.makedirs(disk, exist_ok=True)
    return save_remotely(rank, size, layout, remote, disk, kind=kind)


def save_in_place(rank: int, size: int, layout: str, remote: str, spool: str) -> tuple[bytes, str]:
    return save_remotely(rank, size, layout, remote, spool, 2, True, remote_overwrite="in_place")


def save_remotely_and_die(rank: int, size: int, remote: str, spool: str) -> None:
    """Kills this process in its uploads, which are slow."""
    os.environ["VARVE_S3_MAX_BANDWIDTH"] = "20000"

    def kill() -> None:
        names: set[str] = set()
        while "config.yaml" not in names or not any(name.endswith(".pt") for name in names):
            time.sleep(0.005)
            # Unlike rglob, it passes over directories that the save renames meanwhile.
            names = {name for _, _, files in os.walk(spool) for name in files}
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    save_remotely(rank, size, "torch_legacy", remote, spool)


def save_functions(rank: int, size: int, remote: str, spool: str) -> bytes:
    """OLMo's functions without a checkpointer, with remote directories."""
    tempfile.tempdir = spool
    model, optim = jobs.trained("fsdp1", size, 1)
    olmo.save_fsdp_model_and_optim_state(remote, model, optim)
    olmo.save_state_dict(remote, f"rank{rank}.pt", {"rank": torch.tensor(rank)})
    return jobs.truth(model, optim)


def save_twice(rank: int, size: int, layout: str, path: str, upload_to: str) -> tuple[bytes, str]:
    """Saves over a remote checkpoint, which is refused, and then in place."""
    save(rank, size, layout, path, upload_to)
    try:
        save(rank, size, layout, path, upload_to, 2)
        refused = ""
    except olmo.OLMoCheckpointError as error:
        refused = f"OLMo: {error}"
    except FileExistsError as error:
        refused = str(error)
    return save(rank, size, layout, path, upload_to, 2, remote_overwrite="in_place"), refused


def save_in_the_background(rank: int, size: int, root: str, upload_to: str) -> None:
    model, optim = jobs.trained("fsdp1", size)
    checkpointer = olmo.LocalShardedCheckpointer(jobs.Config(), upload_in_background=True)
    for step in (1, 2):
        checkpointer.save_checkpoint(
            f"{root}/step{step}",
            model,
            optim,
            jobs.state_of_trainer(rank),
            upload_to=f"{upload_to}/step{step}",
        )
    checkpointer.wait_for_uploads()


def save_again_while_it_is_uploaded(rank: int, size: int, path: str, upload_to: str) -> list[bytes]:
    """Saves two states as one directory, whose uploads are slow. Returns what was saved."""
    os.environ["VARVE_S3_MAX_BANDWIDTH"] = "20000"
    checkpointer = olmo.LocalShardedCheckpointer(
        jobs.Config(overwrite=True), upload_in_background=True
    )
    saved = []
    for seed in (1, 2):
        model, optim = jobs.trained("fsdp1", size, seed)
        state = jobs.state_of_trainer(rank)
        checkpointer.save_checkpoint(path, model, optim, state, upload_to=f"{upload_to}/seed{seed}")
        saved.append(jobs.truth(model, optim))
    checkpointer.wait_for_uploads()
    return saved


def save_on_nodes(rank: int, size: int, root: str, upload_to: str) -> None:
    """Ranks of a node share a directory, which stands for its disk."""
    os.environ["FS_LOCAL_RANK"] = str(rank % 2)
    disk = f"{root}/node{rank // 2}"
    os.makedirs(disk, exist_ok=True)
    model, optim = jobs.trained("fsdp1", size)
    olmo.LocalShardedCheckpointer(jobs.Config()).save_checkpoint(
        f"{disk}/step1", model, optim, jobs.state_of_trainer(rank), upload_to=upload_to
    )


def fail(rank: int, size: int, path: str, upload_to: str) -> tuple[str, str, bool]:
    """An upload that rank 1 cannot make: the error's class, its text, and what a pickle makes of it."""
    os.environ["VARVE_S3_RETRY_TIMEOUT"] = "1"
    if rank == 1:
        os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    os.mkdir(f"{path}-{rank}")
    os.chdir(f"{path}-{rank}")
    model, optim = jobs.trained("fsdp1", size)
    try:
        olmo.LocalShardedCheckpointer(jobs.Config()).save_checkpoint(
            path, model, optim, jobs.state_of_trainer(rank), upload_to=upload_to
        )
    except olmo.OLMoNetworkError as error:
        again = pickle.loads(pickle.dumps(error))
        return (
            type(error).__name__,
            str(error),
            (type(again), str(again))
            == (
                type(error),
                str(error),
            ),
        )
    return "", "", False


def restore(rank: int, size: int, path: str, cache: str | None) -> tuple[bytes, int]:
    model, optim = jobs.made("fsdp1", size, 3)
    checkpointer = olmo.build_sharded_checkpointer(jobs.Config())
    state = checkpointer.restore_checkpoint(path, model, optim, local_cache=cache)
    return jobs.truth(model, optim), state["global_step"]


def save_model_and_optim(rank: int, size: int, path: str, upload_to: str) -> tuple[bytes, bytes]:
    model, optim = jobs.trained("fsdp1", size)
    olmo.save_fsdp_model_and_optim_state(path, model, optim, upload_to=upload_to + "/")
    other, again = jobs.made("fsdp1", size, 4)
    olmo.load_fsdp_model_and_optim_state(upload_to + "/", other, again)
    return jobs.truth(other, again), jobs.truth(model, optim)


def dcp_of_torch(rank: int, size: int, path: str, upload_to: str) -> bool:
    """torch.distributed.checkpoint with OLMo's writer and reader."""
    import torch.distributed.checkpoint as dcp

    model, _ = jobs.trained("fsdp2", size)
    state = {"model": model.state_dict()}
    writer = olmo.RemoteFileSystemWriter(path, upload_to=upload_to, thread_count=2)
    dcp.save(state, storage_writer=writer)
    other, _ = jobs.made("fsdp2", size, 5)
    found = {"model": other.state_dict()}
    dcp.load(found, storage_reader=olmo.RemoteFileSystemReader(upload_to + "/"))
    return all(
        torch.equal(found["model"][name].to_local(), tensor.to_local())
        for name, tensor in state["model"].items()
    )
