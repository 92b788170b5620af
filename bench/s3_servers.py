"""The S3 servers of the scenario `s3`: Ceph's radosgw on this host, and a null server of ours."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_RADOSGW = _ROOT / "tests" / "s3" / "radosgw"


@dataclass(frozen=True)
class Server:
    """One server. Varve reaches it by `scheme`, for which the environment names it."""

    name: str
    scheme: str
    endpoint: str
    discards: bool = False
    ceph: Path | None = None

    def free_deleted(self) -> None:
        """Lets Ceph free the space of deleted objects now; it does so once an hour else."""
        if self.ceph is not None:
            subprocess.run(
                ["radosgw-admin", "-n", "client.rgw", "gc", "process", "--include-all"],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "CEPH_CONF": str(self.ceph / "ceph.conf")},
            )


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[list[Server]]:
    """Starts both, Ceph's data in `directory`, and sets the environment of this process's clients."""
    with contextlib.ExitStack() as stack:
        ceph = directory / "ceph"
        variables = stack.enter_context(_radosgw(ceph))
        null = stack.enter_context(_null(directory))
        os.environ.update(
            variables,
            AWS_ENDPOINT_URL_S3=variables["AWS_ENDPOINT_URL"],
            R2_ENDPOINT_URL=null,
            AWS_CONFIG_FILE=os.devnull,
            AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        )
        yield [
            Server("radosgw", "s3", variables["AWS_ENDPOINT_URL"], ceph=ceph),
            Server("null server", "r2", null, discards=True),
        ]


@contextlib.contextmanager
def _radosgw(directory: Path) -> Iterator[dict[str, str]]:
    started = subprocess.run(
        [_RADOSGW, "start", directory], check=True, stdout=subprocess.PIPE, text=True
    )
    try:
        yield dict(line.split("=", 1) for line in started.stdout.splitlines())
    finally:
        subprocess.run([_RADOSGW, "stop", directory], check=True)


@contextlib.contextmanager
def _null(directory: Path) -> Iterator[str]:
    program = directory / "null_s3"
    source = Path(__file__).with_name("null_s3.cc")
    subprocess.run(
        ["g++", "-O2", "-std=c++20", "-pthread", str(source), "-o", str(program)], check=True
    )
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


def make_bucket(server: Server, name: str) -> None:
    """Makes a bucket, as boto3 does it."""
    if server.discards:
        request = urllib.request.Request(f"{server.endpoint}/{name}", method="PUT", data=b"")
        urllib.request.urlopen(request).close()
        return
    import boto3

    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=name)
