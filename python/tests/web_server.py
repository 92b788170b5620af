"""A web server of this process for tests: a directory's files with ranges, and ways to fail."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


class Handler(BaseHTTPRequestHandler):
    """Serves GET with one range and HEAD; `server.fault` may answer in its place."""

    protocol_version = "HTTP/1.1"
    server: Web

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.server.writes += 1
        self.plain(405)

    do_POST = do_DELETE = do_PUT

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def answer(self) -> None:
        with self.server.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.requests.append((self.command, self.path, headers))
        if self.server.login is not None:
            want = "Basic " + base64.b64encode(self.server.login.encode()).decode()
            if self.headers.get("Authorization") != want:
                self.plain(401)
                return
        if self.server.fault is None or not self.server.fault(self):
            self.serve_file()

    def plain(self, status: int, **headers: str) -> None:
        """An answer without a body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def read(self) -> bytes | None:
        file = self.server.root / unquote(self.path.lstrip("/"))
        return file.read_bytes() if file.is_file() else None

    def serve_file(
        self,
        etag: str | None = None,
        ranges: bool = True,
        cut: int | None = None,
        flip: bool = False,
    ) -> None:
        content = self.read()
        if content is None:
            self.plain(404)
            return
        if etag is None:
            etag = '"' + hashlib.md5(content).hexdigest() + '"'
        found = RANGE.match(self.headers.get("Range", "")) if ranges else None
        if found and int(found[1]) >= len(content):
            self.plain(416, Content_Range=f"bytes */{len(content)}")
            return
        body = content
        if found:
            begin, end = int(found[1]), min(int(found[2]) + 1, len(content))
            body = content[begin:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        else:
            self.send_response(200)
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if flip and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if self.command == "GET":
            with self.server.lock:
                self.server.sent += len(body)
            time.sleep(self.server.delay)
            self.wfile.write(body[:cut])
            if cut is not None and cut < len(body):
                self.close_connection = True


class Web(ThreadingHTTPServer):
    """The server; `requests` are (method, path, headers by lower-case name), in order."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path, certificate: tuple[Path, Path] | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.writes = 0
        self.sent = 0  # Bytes of bodies.
        self.delay = 0.0  # Before each body, in seconds.
        self.login: str | None = None  # "user:password" that every request must have.
        self.fault: Callable[[Handler], bool] | None = None  # True: it has answered.

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # Clients that go away in the middle of a body.


@contextmanager
def served(
    root: str | os.PathLike[str], certificate: tuple[Path, Path] | None = None
) -> Iterator[Web]:
    """A server of the files below `root`, with TLS where it has a certificate and its key."""
    server = Web(Path(root), certificate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
