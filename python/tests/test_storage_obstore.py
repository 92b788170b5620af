"""gs:// through obstore's own client of Google Cloud Storage.

Google cannot be reached here. Its XML interface is S3's with other headers, so Ceph's S3 stands for it, behind
a proxy that puts one for the other.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import varve

#: Headers of one connection, not of a request.
HOP = ("connection", "content-length", "host", "transfer-encoding")


class GoogleOverS3(http.server.BaseHTTPRequestHandler):
    """Passes requests on to `server.to`, without keys, with "if absent" as S3 has it."""

    protocol_version = "HTTP/1.1"
    server: Any

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in (*HOP, "authorization")
        }
        if self.headers.get("x-goog-if-generation-match") == "0" and self.server.obeys:
            headers["if-none-match"] = "*"
        if self.command in ("PUT", "POST"):
            headers["x-amz-acl"] = "public-read-write"
        self.server.seen.append(self.command)
        connection = http.client.HTTPConnection(self.server.to)
        connection.request(self.command, self.path.replace("%2F", "/"), body, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        size = answer.getheader("content-length") or "0"
        self.send_header("content-length", size if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def google(
    s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """The proxy; `bucket` of it is one through the eyes of boto3."""
    import boto3

    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), GoogleOverS3)
    server.to = s3_server["AWS_ENDPOINT_URL"].partition("://")[2]
    server.obeys, server.seen = True, []
    server.bucket = boto3.resource("s3").Bucket(f"varve{uuid.uuid4().hex[:12]}")
    server.bucket.create(ACL="public-read-write")
    account = {"gcs_base_url": f"http://127.0.0.1:{server.server_port}", "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    varve.unregister_storage("gs")


def test_checkpoints_of_a_bucket_of_googles(google: Any) -> None:
    run = f"gs://{google.bucket.name}/run"
    w = np.arange(6_000_000.0)  # Three parts.
    varve.save({"w": w, "step": 1}, f"{run}/step-1")
    assert "POST" in google.seen  # An upload in parts.
    assert np.array_equal(varve.read(f"{run}/step-1")["w"], w)
    with pytest.raises(varve.CheckpointExistsError):
        varve.save({"step": 2}, f"{run}/step-1")
    varve.save({"step": 2}, f"{run}/step-1", overwrite=True)
    assert varve.latest(run) == f"{run}/step-1"
    assert varve.verify(f"{run}/step-1") == []
    assert varve.read(f"{run}/step-1") == {"step": 2}
    varve.remove(f"{run}/step-1")
    assert list(google.bucket.objects.all()) == []


def test_a_part_that_is_sent_again_shorter_leaves_no_tail() -> None:
    from obstore.store import MemoryStore

    from varve.storage.obstore import ObstoreStore

    store = ObstoreStore(MemoryStore())
    upload = store.start_upload("a/x", 1000)
    parts = [store.upload_part("a/x", upload, 1, memoryview(b"1" * 1000))]
    store.upload_part("a/x", upload, 2, memoryview(b"2" * 900))
    parts.append(store.upload_part("a/x", upload, 2, memoryview(b"3" * 10)))
    store.end_upload("a/x", upload, parts)
    assert store.head("a/x").size == 1010


def test_a_server_that_overwrites_is_found_out(
    google: Any, caplog: pytest.LogCaptureFixture
) -> None:
    google.obeys = False
    with caplog.at_level("WARNING", "varve.engine"):
        varve.save({"step": 1}, f"gs://{google.bucket.name}/run/step-1")
        varve.save({"step": 1}, f"gs://{google.bucket.name}/run/step-2")
    varve._core.set_event_function(None)  # Returns when all events have been taken.
    varve._events.install()
    assert caplog.text.count('does not write "if absent"') == 1
