"""Functions that the killed processes of test_kill.py run."""

from __future__ import annotations

from typing import Any

import torch

import varve.torch

#: 4 MiB: several writes and checksum blocks.
ELEMENTS = 1 << 19


def save_for_ever(path: str, first: int, started: Any) -> None:
    """Overwrites one checkpoint with states of ever higher numbers."""
    torch.set_num_threads(1)
    number = first
    started.set()
    while True:
        state = {
            "w": torch.full((ELEMENTS,), number, dtype=torch.int64),
            "v": torch.full((7,), number, dtype=torch.int64),
            "n": number,
        }
        varve.torch.save(state, path, overwrite=True)
        number += 1
