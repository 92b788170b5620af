"""The addresses at which rank 0 listens, and the connections of the other ranks to them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915  # linux/sockios.h

#: Seconds for one attempt to connect to one address.
_ATTEMPT = 5.0

_BACKLOG = 4096

#: An address in no network of one's own (RFC 5737): the way there is the default route.
_ELSEWHERE = "192.0.2.1"


@dataclass(frozen=True)
class Address:
    """The address that rank 0 publishes: ways to its listening socket, and the channel's token.

    Attributes:
        host: Names the machine and its network namespace; equal where the loopback device is shared.
        names: Numeric IP addresses, the likeliest first.
        port: The same at all of them.
        token: Proves that a rank has read this address, and that it is this channel's listener.
    """

    host: str
    names: tuple[str, ...]
    port: int
    token: str

    def encode(self) -> bytes:
        """Returns the text that is published."""
        return json.dumps([self.host, list(self.names), self.port, self.token]).encode()

    @staticmethod
    def decode(text: bytes) -> Address:
        """Returns the address that `encode` wrote."""
        host, names, port, token = json.loads(text)
        return Address(host, tuple(names), port, token)

    def __str__(self) -> str:
        return f"{' or '.join(self.names) or 'no known address'}, port {self.port}"


def listen() -> tuple[socket.socket, Address]:
    """Opens a listening socket on all interfaces.

    The addresses that are published are those of the interfaces in GLOO_SOCKET_IFNAME, as for torch's
    own gloo groups; without it those of the interfaces on the way to MASTER_ADDR and on the default
    route, and what the host's name resolves to.
    """
    if socket.has_dualstack_ipv6():
        sock = socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        sock = socket.create_server(("", 0), backlog=_BACKLOG)
    sock.setblocking(False)
    names = _of_interfaces() or _of_routes()
    return sock, Address(_host(), tuple(names), sock.getsockname()[1], secrets.token_hex(16))


def connect(address: Address, until: float) -> socket.socket:
    """Returns a socket connected to the first address that answers, before `until` (monotonic).

    Raises OSError: the last attempt's.
    """
    names = address.names
    if address.host == _host():
        names = ("127.0.0.1", *names)
    error: OSError = ConnectionRefusedError(f"no address is known for port {address.port}")
    for name in names:
        seconds = min(_ATTEMPT, until - time.monotonic())
        if seconds <= 0:
            break
        try:
            return socket.create_connection((name, address.port), timeout=seconds)
        except OSError as failure:
            error = failure
    raise error


def _host() -> str:
    parts = []
    with contextlib.suppress(OSError):
        parts.append(_first_line("/proc/sys/kernel/random/boot_id"))
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts) if len(parts) == 2 else f"unknown {secrets.token_hex(8)}"


def _first_line(path: str) -> str:
    with open(path) as file:
        return file.readline().strip()


def _of_interfaces() -> list[str]:
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    found: list[str] = []
    for name in names:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        ):
            request = struct.pack("256s", name.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            found.append(socket.inet_ntoa(answer[20:24]))
        found += _ipv6_of(name)
    return found


def _ipv6_of(interface: str) -> list[str]:
    """Its global IPv6 addresses."""
    found = []
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def _of_routes() -> list[str]:
    found: list[str] = []
    for target in filter(None, (os.environ.get("MASTER_ADDR", ""), _ELSEWHERE)):
        for family, *_, address in _resolve(target):
            # Connecting a datagram socket sends nothing: it picks the interface.
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address[0], 9))
                found.append(str(probe.getsockname()[0]))
    found += [str(address[0]) for *_, address in _resolve(socket.gethostname())]
    # Other machines do not reach the loopback device; ranks of this one try it first anyway.
    others = [name for name in found if not name.startswith("127.") and name != "::1"]
    return list(dict.fromkeys(others))


def _resolve(name: str) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    try:
        return socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)  # type: ignore[return-value]
    except OSError:
        return []
