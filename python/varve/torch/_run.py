"""Names for uncoordinated saves: the same on all ranks, new for every attempt."""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Any

import torch.distributed as dist

from varve._core import Coordinator
from varve.errors import InvalidArgumentError
from varve.torch._coordinator import job_store

_KEY = "varve/run_nonce"

#: Saves so far by (world, path); the world as in _coordinator.py.
_counts: dict[Any, int] = {}


def me(process_group: Any) -> Coordinator:
    """Returns this process's place in the group, as a rank that sends no messages."""
    if not dist.is_available() or not dist.is_initialized():
        return Coordinator(0, 1)
    return Coordinator(dist.get_rank(process_group), dist.get_world_size(process_group))


def save_id(path: str, process_group: Any, given: bytes | None) -> bytes | None:
    """Returns the 16 bytes that name this attempt to save `path`.

    A restarted job must never complete the half-written save of its predecessor, so the id depends
    on a random number that the first rank to ask puts into the job's rendezvous store, and on how
    often this process has saved to the path. Looking a key up in the store waits for no other rank.
    """
    if given is not None:
        if not isinstance(given, bytes) or len(given) != 16:
            raise InvalidArgumentError("save_id must be 16 bytes")
        return given
    where = (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None, path)
    count = _counts[where] = _counts.get(where, 0) + 1
    if (
        not dist.is_available()
        or not dist.is_initialized()
        or dist.get_world_size(process_group) == 1
    ):
        return secrets.token_bytes(16)
    store = job_store()
    nonce = store.compare_set(_KEY, "", secrets.token_hex(16))
    parts = (
        nonce.decode() if isinstance(nonce, bytes) else nonce,
        os.path.basename(path),
        str(count),
    )
    return hashlib.sha256(os.fsencode("\0".join(parts))).digest()[:16]
