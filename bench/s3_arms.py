"""The tools that the scenario `s3` compares: each uploads a state and downloads it into tensors that
exist.

- boto3's transfer manager moves one object from and to one buffer, without any format: the tensors
  are views of that buffer. It stands for what a hand-written upload can reach.
- s3torchconnector writes and reads DCP's format, as its documentation shows it, and tuned: parts
  of 16 MiB, four threads, and a throughput target that does not hold it back.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.s3_servers import Server
from bench.state import State

_MIB = 1 << 20


class S3Arm(Protocol):
    """One tool in one setting. `name` is a fresh prefix in a bucket, "bucket/key"."""

    label: str

    def unavailable(self) -> str | None: ...
    def upload(self, server: Server, name: str, state: State) -> None: ...
    def prepare(self, server: Server, name: str, state: State) -> None:
        """Puts there what `download` reads."""

    def download(self, server: Server, name: str, state: State) -> None: ...


@dataclass(frozen=True)
class Varve:
    """Varve's own format."""

    label: str = "varve"

    def unavailable(self) -> str | None:
        return None

    def upload(self, server: Server, name: str, state: State) -> None:
        import varve.torch

        varve.torch.save(state, f"{server.scheme}://{name}")

    prepare = upload

    def download(self, server: Server, name: str, state: State) -> None:
        import varve.torch

        varve.torch.load(state, f"{server.scheme}://{name}")


@dataclass(frozen=True)
class Boto3:
    """boto3's transfer manager, with its defaults or with `tuned` parts and threads."""

    tuned: bool

    @property
    def label(self) -> str:
        return "boto3, tuned" if self.tuned else "boto3"

    def unavailable(self) -> str | None:
        return _missing("boto3")

    def _call(self, server: Server) -> tuple[Any, Any]:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        # Checksums that these servers do not compare would only cost time.
        quiet = Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=16,
        )
        client = boto3.client(
            "s3", endpoint_url=server.endpoint, config=quiet if self.tuned else None
        )
        tuned = TransferConfig(
            multipart_threshold=16 * _MIB,
            multipart_chunksize=16 * _MIB,
            max_concurrency=8,
            io_chunksize=_MIB,
        )
        return client, tuned if self.tuned else TransferConfig()

    def upload(self, server: Server, name: str, state: State) -> None:
        client, config = self._call(server)
        bucket, key = name.split("/", 1)
        client.upload_fileobj(MemoryFile(_buffer(state)), bucket, f"{key}/state", Config=config)

    prepare = upload

    def download(self, server: Server, name: str, state: State) -> None:
        client, config = self._call(server)
        bucket, key = name.split("/", 1)
        client.download_fileobj(bucket, f"{key}/state", MemoryFile(_buffer(state)), Config=config)


@dataclass(frozen=True)
class S3TorchConnector:
    """s3torchconnector's DCP writer and reader."""

    tuned: bool

    @property
    def label(self) -> str:
        return "s3torchconnector, tuned" if self.tuned else "s3torchconnector"

    def unavailable(self) -> str | None:
        return _missing("s3torchconnector.dcp")

    def _on(self, server: Server, storage: Any) -> Any:
        """Lets a writer or reader use the server: they have no argument for it."""
        from s3torchconnector import S3ClientConfig
        from s3torchconnector._s3client import S3Client
        from s3torchconnector.dcp.s3_file_system import S3FileSystem

        config = S3ClientConfig(force_path_style=True)
        if self.tuned:
            config = S3ClientConfig(
                force_path_style=True, part_size=16 * _MIB, throughput_target_gbps=100.0
            )
        client = S3Client("us-east-1", endpoint=server.endpoint, s3client_config=config)
        storage.fs = S3FileSystem("us-east-1", s3_client=client)
        return storage

    def upload(self, server: Server, name: str, state: State) -> None:
        import torch.distributed.checkpoint as dcp
        from s3torchconnector.dcp import S3StorageWriter

        threads = {"thread_count": 4} if self.tuned else {}
        writer = S3StorageWriter("us-east-1", f"s3://{name}", **threads)
        with _as_exceptions():
            dcp.save(state, storage_writer=self._on(server, writer), no_dist=True)

    def prepare(self, server: Server, name: str, state: State) -> None:
        """DCP's own files, copied there: its writer does not work with every server."""
        import boto3
        import torch.distributed.checkpoint as dcp

        bucket, key = name.split("/", 1)
        with tempfile.TemporaryDirectory() as directory:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), no_dist=True)
            target = boto3.resource("s3", endpoint_url=server.endpoint).Bucket(bucket)
            for path in Path(directory).iterdir():
                target.upload_file(str(path), f"{key}/{path.name}")

    def download(
        self, server: Server, name: str, state: dict[str, Any], no_dist: bool = True
    ) -> None:
        import torch.distributed.checkpoint as dcp
        from s3torchconnector.dcp import S3StorageReader

        reader = S3StorageReader("us-east-1", f"s3://{name}")
        with _as_exceptions():
            dcp.load(state, storage_reader=self._on(server, reader), no_dist=no_dist)


ARMS: tuple[S3Arm, ...] = (
    Varve(),
    Boto3(tuned=False),
    Boto3(tuned=True),
    S3TorchConnector(tuned=False),
    S3TorchConnector(tuned=True),
)


class MemoryFile(io.RawIOBase):
    """A file over memory that exists: boto3 reads and writes at positions, and no byte is copied
    more often than it asks for."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._at = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._memory)}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any) -> int:
        now = min(len(target), len(self._memory) - self._at)
        target[:now] = self._memory[self._at : self._at + now]
        self._at += now
        return now

    def write(self, data: Any) -> int:
        self._memory[self._at : self._at + len(data)] = data
        self._at += len(data)
        return len(data)


def make_contiguous(size: int, count: int, *, paged: bool) -> State:
    """`count` fp32 tensors, views of one buffer; `paged`: its pages of 4 KiB are all alike."""
    page = 4096 // 4
    elements = size // count // 4 // page * page
    generator = torch.Generator().manual_seed(0)
    if paged:
        whole = torch.rand(page, generator=generator).repeat(elements * count // page)
    else:
        whole = torch.rand(elements * count, generator=generator)
    return views(whole, count)


def views(whole: torch.Tensor, count: int) -> State:
    elements = whole.numel() // count
    return {f"layers.{i}.weight": whole[i * elements : (i + 1) * elements] for i in range(count)}


def _buffer(state: State) -> memoryview:
    """The memory of all tensors, which are views of one buffer in order."""
    first = next(iter(state.values()))
    whole = torch.empty(0, dtype=first.dtype).set_(first.untyped_storage())  # type: ignore[call-overload]
    return memoryview(whole.numpy()).cast("B")


@contextlib.contextmanager
def _as_exceptions() -> Iterator[None]:
    """DCP's errors are no Exceptions, and would end the run in place of their arm."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except CheckpointException as error:
        raise RuntimeError(str(error).strip().rpartition("\n")[2]) from error


def _missing(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"cannot import {module}: {error}"
    return None
