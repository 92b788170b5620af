"""The ranks that make a save, and names for uncoordinated saves: the same on all ranks, new for every attempt."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from varve._core import Coordinator
from varve._engine import path_text
from varve.errors import InvalidArgumentError
from varve.torch._coordinator import collective, job_store, name_of

_KEY = "varve/run_nonce"

#: Saves so far by (world, path); the world as in _coordinator.py.
_counts: dict[Any, int] = {}


@contextlib.contextmanager
def ranks(
    path: str | os.PathLike[str], process_group: Any, timeout: float, coordinate: bool
) -> Iterator[Coordinator | None]:
    """A call that saves to `path`: of all ranks, or of this one, which then sends no messages."""
    if coordinate:
        with collective(process_group, timeout, name_of("save", path)) as coordinator:
            yield coordinator
    elif not dist.is_available() or not dist.is_initialized():
        yield Coordinator(0, 1)
    else:
        yield Coordinator(dist.get_rank(process_group), dist.get_world_size(process_group))


def save_id(
    path: str | os.PathLike[str], process_group: Any, given: bytes | None, coordinate: bool
) -> bytes | None:
    """Returns the 16 bytes that name this attempt to save `path`; None for a coordinated save.

    A restarted job must never complete the half-written save of its predecessor, so the id depends
    on a random number that the first rank to ask puts into the job's rendezvous store, and on how
    often this process has saved to the path. Looking a key up in the store waits for no other rank.
    """
    if coordinate:
        return None
    where = path_text(path)
    if given is not None:
        if not isinstance(given, bytes) or len(given) != 16:
            raise InvalidArgumentError("save_id must be 16 bytes")
        return given
    world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    count = _counts[world, where] = _counts.get((world, where), 0) + 1
    if world is None or dist.get_world_size(process_group) == 1:
        return secrets.token_bytes(16)
    store = job_store()
    nonce = store.compare_set(_KEY, "", secrets.token_hex(16))
    parts = (
        nonce.decode() if isinstance(nonce, bytes) else nonce,
        os.path.basename(where),
        str(count),
    )
    return hashlib.sha256(os.fsencode("\0".join(parts))).digest()[:16]
