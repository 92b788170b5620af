"""Fixtures; and the tests' own modules become importable, for worker processes too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from disks import mounted

# Where Ctrl-C is ignored, as in a job that a shell has put into the background, the processes that the
# tests start would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    """The environment of clients of a real S3 server: the one that ./test has started, or one of
    this process."""
    script = Path(__file__).parents[2] / "tests" / "s3" / "radosgw"
    given = os.environ.get("VARVE_TEST_S3")
    directory = ""
    if given:
        text = Path(given).read_text()
    else:
        if os.geteuid() != 0 or shutil.which("radosgw") is None:
            message = "needs root and Ceph's radosgw, ceph-mon and ceph-osd"
            if os.environ.get("VARVE_REQUIRE_BUILD"):
                pytest.fail(message)
            pytest.skip(message)
        directory = tempfile.mkdtemp() + "/ceph"
        text = subprocess.run(
            [script, "start", directory], check=True, capture_output=True, text=True
        ).stdout
    # What AWS's tools find in a home directory must not decide.
    environment = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    environment.update(line.split("=", 1) for line in text.splitlines())
    yield environment
    if directory:
        subprocess.run([script, "stop", directory], check=True)


@pytest.fixture
def bucket(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket, through the eyes of boto3. Its environment is this process's."""
    boto3 = pytest.importorskip("boto3")
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket(f"varve-{uuid.uuid4().hex[:12]}")
    made.create()
    yield made


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
