"""Objects of a bucket, through the eyes of boto3."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def keys_in(bucket: Any, prefix: str = "") -> list[str]:
    return sorted(one.key for one in bucket.objects.filter(Prefix=prefix))


def fetch(bucket: Any, prefix: str, directory: Path) -> Path:
    """Copies objects as files, as `aws s3 sync` does, and returns the path of `prefix`."""
    for key in keys_in(bucket, prefix):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        bucket.download_file(key, str(path))
    return directory / prefix
