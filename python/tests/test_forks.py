"""A process that forks after a save, as a data loader does for each epoch, has children that live."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest

SCRIPT = """
import gc, os, sys
import torch
import torch.distributed as dist
import varve.torch, varve.torch.dcp
from torch.distributed.checkpoint import FileSystemWriter

way, folder, world = sys.argv[1:]
state = {"w": torch.ones(4)}
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
if way == "varve.torch":
    varve.torch.async_save(state, folder).result(60)
elif way == "dcp":
    varve.torch.dcp.async_save(state, checkpoint_id=folder).result(60)
else:
    writer = FileSystemWriter(folder)
    varve.torch.dcp.async_save(state, storage_writer=writer).result(60)
if world == "destroy":
    dist.destroy_process_group()  # The package then holds the last reference to the groups.
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0)
_, status = os.waitpid(child, 0)
if dist.is_initialized():  # The parent can save on.
    varve.torch.async_save({"w": torch.zeros(4)}, folder + "-after").result(60)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("world", ["keep", "destroy"])
@pytest.mark.parametrize("way", ["varve.torch", "dcp", "writer"])
def test_a_child_forked_after_a_save_ends_as_it_wants_to(
    way: str, world: str, tmp_path: Path
) -> None:
    ended = programs.run(SCRIPT, way, tmp_path / "c", world, timeout=120)
    assert ended.returncode == 0, ended.stderr
