"""Keys for s3:// that a function of the program's gives, at Ceph's real server."""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import programs
import pytest
import torch

import varve
import varve.torch
from varve.storage import S3Credentials
from varve.storage._keys import _keys_of

SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def server(
    s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, S3Credentials]]:
    """A bucket, and its keys, which this process's environment does not have."""
    boto3 = pytest.importorskip("boto3")
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    bucket = boto3.resource("s3").Bucket(f"varve-{uuid.uuid4().hex[:12]}")
    bucket.create()
    for name in SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield f"s3://{bucket.name}/run", S3Credentials(*(s3_server[name] for name in SECRETS))
    varve.set_s3_credentials(None)


class Source:
    """Gives keys that end in some seconds, and counts."""

    def __init__(self, keys: S3Credentials, seconds: float) -> None:
        self.keys, self.seconds = keys, seconds
        self.calls = self.inside = self.most = 0
        self.lock = threading.Lock()

    def __call__(self) -> S3Credentials:
        with self.lock:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.01)
        with self.lock:
            self.inside -= 1
        expires = datetime.datetime.now(datetime.timezone.utc)
        expires += datetime.timedelta(seconds=self.seconds)
        return S3Credentials(self.keys.access_key, self.keys.secret_key, None, expires)


FORK = """
import os, sys, threading, time
import varve, varve.torch
from varve.storage import S3Credentials
path, *keys = sys.argv[1:]
parent, asked = os.getpid(), threading.Event()

def source():
    asked.set()
    if os.getpid() == parent:
        time.sleep(600)  # The parent forks while a thread of its waits for keys.
    return S3Credentials(*keys)

varve.set_s3_credentials(source)
threading.Thread(target=varve.verify, args=(path,), daemon=True).start()
asked.wait()
child = os.fork()
if child == 0:
    os._exit(0 if varve.torch.read(path)["w"].sum() == 3 else 1)
_, status = os.waitpid(child, 0)
os._exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_that_is_forked_while_keys_are_asked_for_reads(
    server: tuple[str, S3Credentials],
) -> None:
    path, keys = server
    varve.set_s3_credentials(lambda: keys)
    varve.torch.save({"w": torch.ones(3)}, path)
    programs.output(FORK, path, keys.access_key, keys.secret_key, timeout=120)


def test_the_keys_of_a_boto3_session(
    server: tuple[str, S3Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    run, keys = server
    # That it has no keys is shown by a process of its own: keys of the environment are kept.
    code = f"import varve; varve.save({{'step': 1}}, '{run}/step-1')"
    assert "no keys for S3" in programs.run(code).stderr
    session = boto3.Session(keys.access_key, keys.secret_key)
    varve.set_s3_credentials(session.get_credentials)
    varve.save({"step": 1}, f"{run}/step-1")
    assert varve.read(f"{run}/step-1")["step"] == 1


def test_keys_that_end_in_the_middle_of_a_save_are_renewed(
    server: tuple[str, S3Credentials],
) -> None:
    run, keys = server
    source = Source(keys, 301.0)  # The engine asks again after a second.
    varve.set_s3_credentials(source)
    w = torch.arange(8 << 20, dtype=torch.int64)
    handle = varve.torch.async_save({"w": w}, f"{run}/step-1", max_write_bandwidth=20 << 20)
    handle.result(120)
    assert source.calls >= 3
    assert source.most == 1
    assert torch.equal(varve.torch.read(f"{run}/step-1")["w"], w)


def test_keys_that_have_ended_and_cannot_be_renewed_end_the_save(
    server: tuple[str, S3Credentials],
) -> None:
    run, keys = server
    source = Source(keys, 2.0)

    def once() -> S3Credentials:
        if source.calls:
            raise ConnectionError("the vault is away")
        return source()

    varve.set_s3_credentials(once)
    w = torch.arange(8 << 20, dtype=torch.int64)
    with pytest.raises(varve.UnavailableError, match="ConnectionError: the vault is away") as found:
        varve.torch.async_save({"w": w}, f"{run}/step-1", max_write_bandwidth=10 << 20).result(120)
    assert keys.secret_key not in str(found.value)


def raises() -> Any:
    raise RuntimeError("no ticket")


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (raises, r"gives the keys for s3://: RuntimeError: no ticket \(.*test_s3_credentials.py:"),
        (lambda: None, "returned None: want varve.storage.S3Credentials"),
        (lambda: ("id", "very-secret"), "a value of the type tuple"),
        (lambda: S3Credentials("", "very-secret"), "without id or secret"),
        (lambda: S3Credentials("id", "very-secret", None, 1000.0), "ended"),
        (
            lambda: S3Credentials("id", "very-secret", None, datetime.datetime(2030, 1, 1)),
            "without a time zone",
        ),
    ],
)
def test_what_a_function_does_wrong_is_in_the_error_and_no_secret(
    server: tuple[str, S3Credentials], callback: Callable[[], Any], text: str
) -> None:
    varve.set_s3_credentials(callback)
    with pytest.raises((varve.UnavailableError, varve.PreconditionError), match=text) as found:
        varve.save({"step": 1}, f"{server[0]}/step-1")
    assert "very-secret" not in str(found.value)


def test_a_wrong_key_is_refused_by_the_server_without_the_secret_in_the_error(
    server: tuple[str, S3Credentials],
) -> None:
    varve.set_s3_credentials(lambda: S3Credentials("nobody", "very-secret"))
    with pytest.raises(varve.PreconditionError, match="403") as found:
        varve.save({"step": 1}, f"{server[0]}/step-1")
    assert "very-secret" not in str(found.value)
    assert isinstance(found.value, PermissionError)


def test_arguments_are_checked() -> None:
    with pytest.raises(varve.InvalidArgumentError, match="a function, or None"):
        varve.set_s3_credentials("key")  # type: ignore[arg-type]
    with pytest.raises(varve.InvalidArgumentError, match="s3, r2 or weka"):
        varve.set_s3_credentials(None, scheme="gs")  # type: ignore[arg-type]
    assert "very-secret" not in repr(S3Credentials("id", "very-secret", "very-secret"))


def test_credentials_of_botocore_that_renew_themselves_keep_their_end() -> None:
    credentials = pytest.importorskip("botocore.credentials")
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    fetched = []

    def refresh() -> dict[str, str]:
        fetched.append(1)
        return {
            "access_key": "new",
            "secret_key": "s",
            "token": "t",
            "expiry_time": (end + datetime.timedelta(hours=1)).isoformat(),
        }

    keys = credentials.RefreshableCredentials("old", "s", "t", end, refresh, "test")
    assert _keys_of(keys) == ("old", "s", "t", int(end.timestamp()))
    keys = credentials.RefreshableCredentials(
        "old", "s", "t", end - datetime.timedelta(minutes=58), refresh, "test"
    )
    assert _keys_of(keys)[0] == "new" and fetched
