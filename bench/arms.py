"""The tools compared: how each saves durably and how each loads into tensors that exist.

Two rules make the arms do equal work:

* `save` returns once the checkpoint would survive a power cut: its files, its directory and its
  entry in the parent are synced. What a tool leaves out of that is added here, in its time.
* `load` returns once the bytes are in the caller's tensors. A tool that returns tensors of its own
  has the copy added here, in its time, as `load_state_dict` would.

Tools are imported when first asked for, so that a missing one costs its own arm and no other.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.files import fsync_directory, fsync_tree
from bench.state import State


@dataclass(frozen=True)
class Arm:
    """One tool in one setting.

    `save(state, path)` writes a checkpoint at `path`, a directory that does not exist yet.
    `load(state, path)` fills `state` in place from what `save` wrote. `modules` are what it needs.
    """

    name: str
    modules: tuple[str, ...]
    save: Callable[[State, Path], None]
    load: Callable[[State, Path], None]

    def unavailable(self) -> str | None:
        """Returns why this arm cannot run here, or None when it can."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                return f"cannot import {module}: {error}"
        return None


def _varve_save(state: State, path: Path) -> None:
    _module("varve.torch").save(state, path)


def _varve_load(state: State, path: Path) -> None:
    _module("varve.torch").load(state, path)


def _varve_save_dcp(state: State, path: Path) -> None:
    _module("varve.torch").save(state, path, format="dcp")


def _drop_in_save(state: State, path: Path) -> None:
    _module("varve.torch.dcp").save(state, checkpoint_id=path, no_dist=True)


def _drop_in_load(state: State, path: Path) -> None:
    _module("varve.torch.dcp").load(state, checkpoint_id=path, no_dist=True)


def staging_budget(state_bytes: int) -> int:
    """Returns the memory budget of a Varve stager that holds one copy of the state and no second."""
    return state_bytes + _STAGING_SLACK


def convert(source: Path, target: Path, to: str) -> None:
    """Varve's conversion, durable as its saves are."""
    _module("varve").convert(source, target, to)


def _dcp_save(state: State, path: Path, *, thread_count: int) -> None:
    dcp = _module("torch.distributed.checkpoint")
    writer = dcp.FileSystemWriter(path, thread_count=thread_count)
    dcp.save(state, storage_writer=writer, no_dist=True)
    # sync_files, on by default, has synced every file; directories are never synced.
    fsync_directory(path)
    fsync_directory(path.parent)


def _dcp_load(state: State, path: Path) -> None:
    dcp = _module("torch.distributed.checkpoint")
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=True)


def _torch_save(state: State, path: Path) -> None:
    path.mkdir()
    torch.save(state, path / "state.pt")
    fsync_tree(path)


def _torch_load(state: State, path: Path) -> None:
    _copy(torch.load(path / "state.pt", mmap=False, weights_only=True), state)


def _safetensors_save(state: State, path: Path) -> None:
    path.mkdir()
    _module("safetensors.torch").save_file(state, path / "state.safetensors")
    fsync_tree(path)


def _safetensors_load(state: State, path: Path) -> None:
    _copy(_module("safetensors.torch").load_file(path / "state.safetensors"), state)


def _torchsnapshot_save(state: State, path: Path) -> None:
    tool = _module("torchsnapshot")
    tool.Snapshot.take(str(path), {"state": tool.StateDict(**state)})
    fsync_tree(path)


def _torchsnapshot_load(state: State, path: Path) -> None:
    tool = _module("torchsnapshot")
    tool.Snapshot(str(path)).restore({"state": tool.StateDict(**state)})


def _copy(source: State, target: State) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(name)


# For the last block, which is not full, and for what is in a file beside the tensors.
_STAGING_SLACK = 64 << 20

# One process without a process group is what is meant; DCP warns of it on every call.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

_DCP = ("torch.distributed.checkpoint",)

VARVE = Arm("varve", ("varve.torch",), _varve_save, _varve_load)
VARVE_AS_DCP = Arm('varve, format="dcp"', ("varve.torch",), _varve_save_dcp, _varve_load)
DROP_IN = Arm("varve.torch.dcp", ("varve.torch.dcp",), _drop_in_save, _drop_in_load)
DCP = Arm("DCP", _DCP, functools.partial(_dcp_save, thread_count=1), _dcp_load)
DCP_2 = Arm("DCP, 2 threads", _DCP, functools.partial(_dcp_save, thread_count=2), _dcp_load)
TORCH = Arm("torch.save", (), _torch_save, _torch_load)
SAFETENSORS = Arm("safetensors", ("safetensors.torch",), _safetensors_save, _safetensors_load)
TORCHSNAPSHOT = Arm("torchsnapshot", ("torchsnapshot",), _torchsnapshot_save, _torchsnapshot_load)

ALL = (VARVE, DCP, DCP_2, TORCH, SAFETENSORS, TORCHSNAPSHOT)
