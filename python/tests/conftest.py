"""Fixtures; and the tests' own modules become importable, for worker processes too."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from disks import mounted


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The directory of an agent of this test alone."""
    import varve.agent

    with tempfile.TemporaryDirectory() as home:
        directory = os.path.join(home, "agent")
        monkeypatch.setenv("VARVE_AGENT_DIR", directory)
        yield directory
        if os.path.isdir(directory):
            varve.agent.stop(600.0)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    with mounted("tmpfs", "size=8m", tmp_path / "small") as disk:
        yield disk
