"""Torch's torch.distributed.checkpoint over Varve: the same calls, safe and fast storage.

    import varve.torch.dcp as dcp  # instead of: import torch.distributed.checkpoint as dcp

`save`, `async_save`, `load`, `save_state_dict`, `load_state_dict`, `FileSystemWriter` and
`FileSystemReader` are Varve's, and so is `close`, which torch does not have. Every other name of
torch.distributed.checkpoint is found here too and is torch's own. `install` lets torch's own names call
Varve, for libraries that import torch.distributed.checkpoint themselves. Checkpoints are DCP checkpoints: PyTorch
reads what is written here, and what PyTorch has written is read here. docs/coming-from-dcp.md says what
differs.

Example, on every rank of a job:
    >>> import varve.torch.dcp as dcp  # doctest: +SKIP
    >>> dcp.save({"model": model, "optim": optimizer}, checkpoint_id="run/step-10")  # doctest: +SKIP
    >>> dcp.load({"model": model, "optim": optimizer}, checkpoint_id="run/step-10")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

import torch.distributed.checkpoint as _torch_dcp
from torch.distributed.checkpoint.api import CheckpointException

from varve.torch.dcp._async import async_save
from varve.torch.dcp._errors import CheckpointError
from varve.torch.dcp._executors import close
from varve.torch.dcp._functions import load, load_state_dict, save, save_state_dict
from varve.torch.dcp._install import install, installed, uninstall
from varve.torch.dcp._reader import FileSystemReader
from varve.torch.dcp._writer import FileSystemWriter

__all__ = [
    "CheckpointError",
    "CheckpointException",
    "FileSystemReader",
    "FileSystemWriter",
    "async_save",
    "close",
    "install",
    "installed",
    "load",
    "load_state_dict",
    "save",
    "save_state_dict",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    return getattr(_torch_dcp, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_torch_dcp)})
