"""The sockets of a channel: one from every rank to rank 0.

The subclass gives frames their meaning (_channel.py). A connection belongs to a rank once its first
frame has brought the channel's token; all others are closed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field

from varve._forks import leave_to_parent
from varve.errors import UnavailableError
from varve.torch._addresses import Address, connect, listen
from varve.torch._calls import Calls
from varve.torch._frames import Connection, Frame, Kind

LOST = "is lost (its connection is closed)"

#: All channels that are not closed.
_open: weakref.WeakSet[Star] = weakref.WeakSet()


@dataclass
class Peer:
    """The state of another rank, as far as this rank knows it."""

    rank: int
    connection: Connection | None = None
    lost: str = ""  #: Why there is no connection, once there was one.
    call: int = 0  #: The newest call of this rank that it is known to be in, or was.
    calls: Calls = field(default_factory=Calls)  #: On rank 0: which of its calls are which.
    deadline: float = float("inf")  #: Until when it waits for others to come (monotonic).
    #: The call that it has left, why, and the rank that is the cause, where that is known.
    left: tuple[int, str, int | None] | None = None
    unclear: bool = (
        False  #: On rank 0: one of the two has missed a call, and it is not known which.
    )
    note: str = ""  #: How far it is, in its own words; of rank 0, whom it waits for.
    note_sent: str = ""
    waits_for_absent: bool = False  #: Of rank 0: it waits for a rank that has not made the call.
    #: By the number that the call has on the rank that is not rank 0.
    messages: deque[tuple[int, bytes]] = field(default_factory=deque)
    unsent: list[bytes] = field(default_factory=list)  #: Messages to a rank that has not come yet.


class Star:
    """One rank's sockets, and what arrives on them. Subclasses define the three hooks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.address: Address | None = None  #: Rank 0's, once it listens or this rank is connected.
        others = range(1, size) if rank == 0 else (0,)
        self.peers: dict[int, Peer] = {other: Peer(other) for other in others}
        self._lock = threading.RLock()  # Guards peers, sockets and selector.
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._arriving: set[Connection] = set()
        self._refused = ""  # Why rank 0 cannot take another connection.
        _open.add(self)

    # ---- hooks ----

    def _greet(self, peer: Peer) -> None:
        """A rank has connected."""
        raise NotImplementedError

    def _take(self, peer: Peer, frame: Frame) -> None:
        """A frame has come."""
        raise NotImplementedError

    def _miss(self, peer: Peer) -> None:
        """A connection was lost."""
        raise NotImplementedError

    # ---- connecting ----

    def listen(self) -> Address:
        """On rank 0: opens the listening socket. Raises UnavailableError."""
        assert self.rank == 0 and self._listener is None
        try:
            self._listener, self.address = listen()
        except OSError as error:
            raise UnavailableError(f"rank 0: cannot listen for the other ranks: {error}") from error
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self.address

    def connect(self, address: Address, until: float) -> None:
        """On another rank: connects to rank 0. Raises OSError."""
        connection = Connection(connect(address, until))
        connection.proved = True
        connection.put(Kind.HELLO, 0, json.dumps([self.rank, address.token]).encode())
        self.address = address
        self._adopt(self.peers[0], connection)
        self._write(self.peers[0])

    @property
    def connected(self) -> bool:
        """On another rank: True while there is a connection to rank 0."""
        with self._lock:
            if self.peers[0].connection is not None:
                self._turn(0.0)  # Sees that it was closed.
            return self.peers[0].connection is not None

    def accept_all(self, until: float) -> dict[int, str]:
        """On rank 0: accepts the connections of all ranks, which have made them; returns who is missing."""
        with self._lock:
            while not self._refused and time.monotonic() < until:
                if all(peer.connection is not None for peer in self.peers.values()):
                    return {}
                self._turn(min(until - time.monotonic(), 1.0))
            missing = [peer for peer in self.peers.values() if peer.connection is None]
            return {peer.rank: self._refused or peer.lost or LOST for peer in missing}

    def _adopt(self, peer: Peer, connection: Connection) -> None:
        if peer.connection is not None:
            self._drop(peer, LOST)
        peer.connection = connection
        peer.lost = ""
        self._selector.register(connection.sock, selectors.EVENT_READ, peer)

    def _drop(self, peer: Peer, why: str) -> None:
        if peer.connection is not None:
            self._selector.unregister(peer.connection.sock)
            peer.connection.close()
            peer.connection = None
            peer.lost = why
            self._miss(peer)

    def _listen_again(self) -> None:
        """Accepts connections once more, after descriptors had run out."""
        if self._refused and self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._refused = ""

    def close(self) -> None:
        """Closes all sockets."""
        with self._lock:
            for peer in self.peers.values():
                self._drop(peer, "the channel is closed")
            for connection in self._arriving:
                connection.close()
            self._arriving.clear()
            if self._listener is not None:
                self._listener.close()
            self._selector.close()
            self._wake.close()
            self._waker.close()

    def abandon(self) -> None:
        """Closes a forked child's copies of the sockets, and leaves the parent's selector alone.

        Otherwise the parent's connections would stay open when it dies.
        """
        sockets = [p.connection.sock for p in self.peers.values() if p.connection is not None]
        sockets += [connection.sock for connection in self._arriving]
        sockets += [self._listener] if self._listener is not None else []
        for sock in [*sockets, self._wake, self._waker]:
            sock.close()
        self._selector.close()

    # ---- reading and writing ----

    def _put(self, peer: Peer, kind: Kind, call: int, payload: bytes) -> None:
        """Sends a frame, or as much of it as the socket takes; sends nothing to a lost rank."""
        if peer.connection is not None:
            peer.connection.put(kind, call, payload)
            self._write(peer)

    def _write(self, peer: Peer) -> None:
        connection = peer.connection
        assert connection is not None
        try:
            connection.write()
        except OSError:
            self._read(peer)  # It may have sent why it left.
            self._drop(peer, LOST)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        self._selector.modify(connection.sock, events, peer)

    def _turn(self, seconds: float) -> None:
        """Waits until a socket is ready, at most so long, then reads, writes or accepts."""
        for key, events in self._selector.select(max(seconds, 0.0)):
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(64)
            elif key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection):
                self._meet(key.data)
            else:
                peer: Peer = key.data
                if events & selectors.EVENT_WRITE and peer.connection is not None:
                    self._write(peer)
                if events & selectors.EVENT_READ and peer.connection is not None:
                    self._read(peer)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor left, as a rule. The listener would stay ready.
            self._selector.unregister(self._listener)
            self._refused = (
                f"rank 0 could not accept its connection: {os.strerror(error.errno or 0)}"
            )
            if error.errno in (errno.ENFILE, errno.EMFILE):
                self._refused += f"; rank 0 needs a descriptor for each of {self.size - 1} ranks (raise ulimit -n)"
            return
        connection = Connection(sock)
        self._arriving.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _meet(self, connection: Connection) -> None:
        """Reads the first frame of a new connection."""
        try:
            frames = connection.read()
        except OSError:
            self._turn_away(connection)
            return
        if not frames:
            return
        assert self.address is not None
        try:
            rank, token = json.loads(frames[0].payload)
            peer = self.peers[rank]
        except (ValueError, TypeError, KeyError):
            self._turn_away(connection)
            return
        if token != self.address.token:
            self._turn_away(connection)
            return
        self._arriving.discard(connection)
        self._selector.unregister(connection.sock)
        connection.proved = True
        self._adopt(peer, connection)
        self._greet(peer)

    def _turn_away(self, connection: Connection) -> None:
        self._arriving.discard(connection)
        self._selector.unregister(connection.sock)
        connection.close()

    def _read(self, peer: Peer) -> None:
        assert peer.connection is not None
        try:
            frames = peer.connection.read()
        except OSError:
            self._drop(peer, LOST)
            return
        for frame in frames:
            self._take(peer, frame)


def _in_child() -> None:
    for channel in _open:
        channel.abandon()
    leave_to_parent(_open)


os.register_at_fork(after_in_child=_in_child)
