"""A proxy in front of a real S3 server that fails as a plan says.

`FaultProxy.plan` chooses the fault of each request; the ranks of a test choose it by a request to
`/-/plan/KIND/INDEX`: the INDEX-th request from then on meets KIND, or all do with "always-KIND". The proxy passes the header Host
on, which signatures cover.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from dataclasses import dataclass, field

KINDS = (
    "unavailable",  # 503 SlowDown; the server gets nothing.
    "internal",  # 500; the server gets nothing.
    "internal-late",  # The server carries it out; 500.
    "too-many",  # 429 with Retry-After: 1.
    "reset-before",  # The connection ends; the server gets nothing.
    "reset-after",  # The server carries it out; the connection ends.
    "stall",  # The server gets nothing; no byte comes.
    "stall-after",  # The server carries it out; no byte comes.
    "truncated",  # Half of the answer's body, then the end of the connection.
    "not-routed",  # 404 of a router that has no server for the request, which gets nothing.
    "corrupted",  # One bit of the answer's body is another.
    "too-long",  # The answer has more bytes than it says.
    "too-short",  # The answer has fewer bytes than it says.
    "slow",  # The answer comes in small pieces, with pauses before the first.
    "expired",  # 400 ExpiredToken; the server gets nothing.
)
# What a client can outlast by trying again.
PASSING = KINDS[: KINDS.index("corrupted")]

_LONG = 600.0
_ERRORS = {
    "unavailable": (503, "SlowDown", ""),
    "internal": (500, "InternalError", ""),
    "internal-late": (500, "InternalError", ""),
    "too-many": (429, "TooManyRequests", "Retry-After: 1\r\n"),
    "expired": (400, "ExpiredToken", ""),
}
_NOT_ROUTED = b"HTTP/1.1 404 -\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\n"


@dataclass
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: int = field(default=-1)

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} -"]
        lines += [
            f"{name}: {value}"
            for name, value in self.headers
            if name.lower() not in ("content-length", "transfer-encoding", "connection")
        ]
        lines.append(f"Content-Length: {self.length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class FaultProxy:
    """Serves on a port of this host until `close`."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.removeprefix("http://")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()  # Guards what follows.
        self._kind = ""
        self._at = -1
        self._count = 0
        self.met: list[str] = []  # "KIND METHOD TARGET" of each fault.
        self.sent = 0  # Bytes of the bodies of all answers.
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listening.close()

    def plan(self, kind: str, at: int) -> int:
        """Lets the `at`-th request from now on meet `kind`, or none of them "none".

        Returns how many requests there were since the last plan.
        """
        with self._lock:
            count, self._count = self._count, 0
            self._kind, self._at = kind, at
            return count

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        upstream = http.client.HTTPConnection(self._upstream, timeout=120)
        with client, client.makefile("rb") as incoming:
            while (request := _receive(incoming)) is not None:
                try:
                    if not self._answer(client, upstream, request):
                        return
                except OSError:
                    return

    def _fault(self, request: Request) -> str:
        with self._lock:
            index = self._count
            self._count += 1
            kind = self._kind.removeprefix("always-")
            if self._kind == "none" or (kind == self._kind and index != self._at):
                return ""
            self.met.append(f"{kind} {request.method} {request.target}")
            return kind

    def _answer(
        self, client: socket.socket, upstream: http.client.HTTPConnection, request: Request
    ) -> bool:
        """Answers one request. Returns False where the connection ends."""
        if request.target.startswith("/-/plan/"):
            kind, at = request.target.split("/")[3:]
            client.sendall(_plain(str(self.plan(kind, int(at)))))
            return True
        kind = self._fault(request)
        if kind in ("reset-before", "stall"):
            return self._end(client, kind)
        if kind == "not-routed":
            body = b"" if request.method == "HEAD" else b"default backend - 404"
            client.sendall(_NOT_ROUTED + body)
            return True
        if kind in _ERRORS and kind != "internal-late":
            client.sendall(_error(kind))
            return True
        answer = _forward(upstream, request)
        with self._lock:
            self.sent += len(answer.body)
        if kind in ("reset-after", "stall-after"):
            return self._end(client, kind)
        if kind == "internal-late":
            client.sendall(_error(kind))
            return True
        return _send(client, request, answer, kind)

    def _end(self, client: socket.socket, kind: str) -> bool:
        if kind.startswith("stall"):
            client.settimeout(_LONG)
            client.recv(1)  # Until the client goes.
        else:
            # RST in place of FIN.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return False


def set_plan(endpoint: str, kind: str, at: int) -> int:
    """What `FaultProxy.plan` does, from another process."""
    with urllib.request.urlopen(f"{endpoint}/-/plan/{kind}/{at}") as answer:
        return int(answer.read())


def _receive(incoming: object) -> Request | None:
    read_line = incoming.readline  # type: ignore[attr-defined]
    try:
        first = read_line().decode("latin-1").split(" ")
        if len(first) != 3:
            return None
        headers: list[tuple[str, str]] = []
        while (line := read_line().decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        request = Request(first[0], first[1], headers, b"")
        size = int(request.header("content-length") or 0)
        request.body = incoming.read(size)  # type: ignore[attr-defined]
        return request if len(request.body) == size else None
    except (OSError, ValueError):
        return None


def _forward(upstream: http.client.HTTPConnection, request: Request) -> Answer:
    upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers:
        upstream.putheader(name, value)
    upstream.endheaders(request.body or None)
    response = upstream.getresponse()
    body = response.read()
    length = len(body)
    if request.method == "HEAD":
        length = int(response.getheader("Content-Length") or 0)
    return Answer(response.status, response.getheaders(), body, length)


def _send(client: socket.socket, request: Request, answer: Answer, kind: str) -> bool:
    body = answer.body
    half = len(body) // 2
    if kind == "corrupted" and body:
        body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
    if kind == "too-short":
        answer.length += 10
    if kind == "too-long" and body:
        answer.length = half
    client.sendall(answer.head())
    if kind == "truncated":
        client.sendall(body[:half])
        return False
    if kind == "slow":
        for at in range(0, len(body), max(1, len(body) // 8)):
            time.sleep(0.1)
            client.sendall(body[at : at + max(1, len(body) // 8)])
        return True
    client.sendall(body)
    return kind not in ("too-short", "too-long")


def _error(kind: str) -> bytes:
    status, code, headers = _ERRORS[kind]
    body = f"<Error><Code>{code}</Code><Message>by plan</Message></Error>"
    return (f"HTTP/1.1 {status} -\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}").encode()


def _plain(text: str) -> bytes:
    return f"HTTP/1.1 200 -\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
