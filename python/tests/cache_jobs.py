"""What ranks and killed processes do in test_cache.py."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import varve.torch


def use_cache(directory: str, **environment: str) -> None:
    """The cache of this process, which must not have opened a remote name yet."""
    os.environ.update(VARVE_CACHE_DIR=directory, **environment)


def digest_of(state: dict[str, Any]) -> str:
    return hashlib.sha256(state["w"].numpy().tobytes()).hexdigest()


def read_ranks(rank: int, size: int, directory: str, url: str) -> str:
    use_cache(directory)
    return digest_of(varve.torch.read(url))


def read_for_ever(directory: str, urls: list[str]) -> None:
    """Reads, and is killed."""
    use_cache(directory)
    while True:
        for url in urls:
            varve.torch.read(url)
