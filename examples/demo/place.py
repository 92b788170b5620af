"""Where the interrupted run keeps its checkpoints: a directory, or a bucket of an S3 server on this host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from job import has_data, staging_path, written_share
from train import checkpoint_path

_SERVER = Path(__file__).parents[2] / "tests" / "s3" / "radosgw"


class Directory:
    """A directory of the file system."""

    kind = "files"

    def __init__(self, run: Path) -> None:
        """The run's directory, which `clear` makes."""
        self.run = str(run)

    def clear(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)
        os.makedirs(self.run)

    def save_has_begun(self, step: int) -> bool:
        """Return whether data of a step's save are there."""
        target = Path(checkpoint_path(self.run, step))
        return has_data(staging_path(target)) or target.exists()

    def save_was_caught(self, step: int) -> bool:
        """Return whether the save has written data and published nothing."""
        staging = staging_path(Path(checkpoint_path(self.run, step)))
        return staging is not None and not (staging / "varve.json").exists()

    def written(self, step: int, size: int) -> tuple[int, float]:
        """Return the bytes of the save's files, and what part of them was written."""
        return written_share(staging_path(Path(checkpoint_path(self.run, step))))

    def close(self) -> None:
        """There is nothing to end."""


class Bucket:
    """A bucket of Ceph's S3 server, which runs on this host until `close`. See Directory."""

    kind = "s3"

    def __init__(self) -> None:
        """Start the server, whose variables go into this process's environment."""
        import boto3

        self._server = Path(tempfile.mkdtemp(prefix="varve-demo-")) / "ceph"
        started = subprocess.run(
            [_SERVER, "start", self._server], stdout=-1, text=True, check=False
        )
        if started.returncode != 0:
            sys.exit("the S3 server does not start; see above. It needs root")
        os.environ.update(line.split("=", 1) for line in started.stdout.split())
        self._bucket: Any = boto3.resource("s3").Bucket("demo")
        self._bucket.create()
        self.run = "s3://demo/interrupted"

    def clear(self) -> None:
        self._bucket.objects.all().delete()
        for upload in self._bucket.multipart_uploads.all():
            upload.abort()

    def save_has_begun(self, step: int) -> bool:
        return self._uploaded(step) > 0 or self._is_published(step)

    def save_was_caught(self, step: int) -> bool:
        return self._uploaded(step) > 0 and not self._is_published(step)

    def written(self, step: int, size: int) -> tuple[int, float]:
        return size, self._uploaded(step) / size

    def close(self) -> None:
        subprocess.run([_SERVER, "stop", self._server], check=False)
        self._server.parent.rmdir()

    def _prefix(self, step: int) -> str:
        return checkpoint_path("interrupted", step) + "/"

    def _is_published(self, step: int) -> bool:
        records = self._bucket.objects.filter(Prefix=self._prefix(step) + "varve.json")
        return any(True for _ in records)

    def _uploaded(self, step: int) -> int:
        """Return the bytes of a save: of its objects, and of parts whose object is not complete."""
        prefix = self._prefix(step)
        done = sum(one.size for one in self._bucket.objects.filter(Prefix=prefix))
        uploads = [
            up for up in self._bucket.multipart_uploads.all() if up.object_key.startswith(prefix)
        ]
        return done + sum(part.size for upload in uploads for part in upload.parts.all())
