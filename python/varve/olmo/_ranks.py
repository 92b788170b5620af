"""The ranks of the job, and which of them share a file system."""

from __future__ import annotations

import os

import torch.distributed as dist


def is_distributed() -> bool:
    """Returns True in a job of torch.distributed."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Returns this process's rank in the job; 0 without one."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Returns the number of ranks in the job; 1 without one."""
    return dist.get_world_size() if is_distributed() else 1


def file_system_rank() -> int:
    """Returns this process's number among those that see the same file system, as OLMo counts.

    `FS_LOCAL_RANK` gives it. Without it, it is the rank if `OLMO_SHARED_FS` is set, for storage that all
    nodes share, and else the rank on the node (`LOCAL_RANK`), for disks of nodes. A rank with number 0
    makes and publishes the directory.
    """
    given = os.environ.get("FS_LOCAL_RANK")
    if given:
        return int(given)
    if os.environ.get("OLMO_SHARED_FS"):
        return rank()
    local = os.environ.get("LOCAL_RANK")
    return int(local) if local else rank()
