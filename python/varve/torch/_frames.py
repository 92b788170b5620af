"""Frames on a socket between two ranks: a header of 17 bytes and a payload.

The header is the kind (1 byte), the number of the call that the frame belongs to and the size of
the payload (8 bytes each, little-endian). No function here waits: a read takes the bytes that have
arrived, a write sends the bytes that the socket takes.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
from collections import deque
from typing import NamedTuple

_HEADER = struct.Struct("<BQQ")

#: A rank that has not proved yet that it belongs to the job may send no more than this.
_MAX_UNPROVED = 4096

#: Bytes that one call of recv may return.
_READ_SIZE = 1 << 20


class Kind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1  #: The first frame of a connection: who connects, and the channel's token.
    CALL = 2  #: The sender begins a save or load: what, and how long it will wait. Of rank 0: it is there.
    MESSAGE = 3  #: A message of the engine.
    NOTE = 4  #: Text for the log of a rank that waits.
    END = 5  #: The sender has left the call: why.
    PAST = 6  #: The sender is in no call, and makes none before the one of this name.


class Frame(NamedTuple):
    """One frame as it was received."""

    kind: int
    call: int
    payload: bytes


class Connection:
    """A connected socket, its unsent frames and its half-read frame. Used under a lock."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # Not every address family has them.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that vanishes without closing is noticed after two minutes.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
        self.sock = sock
        self.proved = False
        self._unsent: deque[memoryview] = deque()
        self._header = bytearray()
        self._payload: bytearray | None = None
        self._filled = 0

    def put(self, kind: Kind, call: int, payload: bytes = b"") -> None:
        """Appends a frame to what is to be sent."""
        self._unsent.append(memoryview(_HEADER.pack(kind, call, len(payload)) + payload[:4096]))
        if len(payload) > 4096:
            self._unsent.append(memoryview(payload)[4096:])

    @property
    def has_unsent(self) -> bool:
        """True while a frame has not left completely."""
        return bool(self._unsent)

    def write(self) -> None:
        """Sends as many bytes as the socket takes. Raises OSError when the connection is closed."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def read(self) -> list[Frame]:
        """Returns the frames that have arrived completely. Raises OSError when closed."""
        frames: list[Frame] = []
        while True:
            try:
                if self._payload is None:
                    data = self.sock.recv(_HEADER.size - len(self._header))
                    arrived = len(data)
                    self._header += data
                else:
                    view = memoryview(self._payload)[self._filled : self._filled + _READ_SIZE]
                    arrived = self.sock.recv_into(view)
                    self._filled += arrived
            except (BlockingIOError, InterruptedError):
                return frames
            except OSError:
                if frames:  # These were sent before the connection ended; the next read says so.
                    return frames
                raise
            if arrived == 0:
                if frames:
                    return frames
                raise ConnectionResetError("closed by the other side")
            frame = self._complete()
            if frame is not None:
                frames.append(frame)
                if not self.proved:  # The first frame decides whether there is a second.
                    return frames

    def _complete(self) -> Frame | None:
        if len(self._header) < _HEADER.size:
            return None
        kind, call, size = _HEADER.unpack(self._header)
        if self._payload is None:
            if not self.proved and (kind != Kind.HELLO or size > _MAX_UNPROVED):
                raise ConnectionResetError("the other side is no rank of this job")
            self._payload = bytearray(size)
            self._filled = 0
        if self._filled < size:
            return None
        frame = Frame(kind, call, bytes(self._payload))
        self._header.clear()
        self._payload = None
        return frame

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()
