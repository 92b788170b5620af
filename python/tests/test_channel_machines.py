"""Ranks on two machines: network namespaces with an interface each. tests/by_hand/hosts does more with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

RANK = textwrap.dedent("""
    import sys
    from pathlib import Path
    from varve._core import Channel

    rank, store = int(sys.argv[1]), Path(sys.argv[2])

    def get(key):
        path = store / key
        return path.read_bytes() if path.exists() else None

    def put(key, value):
        (store / (key + ".new")).write_bytes(value)
        (store / (key + ".new")).rename(store / key)

    channel = Channel(rank, 2, 30.0)
    channel.enter("meet", 20.0, 20.0, "key", get, put)
    if rank == 0:
        channel.send(1, b"hello " + channel.receive(1, 20.0), 20.0)
        channel.receive(1, 20.0)
    else:
        channel.send(0, b"machine", 20.0)
        print(channel.receive(0, 20.0).decode())
        channel.send(0, b"", 20.0)
    channel.leave("", None)
""")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """The names of two namespaces, 10.77.0.1 and 10.77.0.2 on one wire; no default route."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2")
    names = [f"varve-{os.getpid()}-{i}" for i in range(2)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip(
                *("link", "add", "eth0", "netns", names[0], "type", "veth"),
                *("peer", "name", "eth0", "netns", names[1]),
            )
            for i, name in enumerate(names):
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
        except OSError as error:
            pytest.skip(f"network namespaces need root: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.parametrize("environment", [{}, {"GLOO_SOCKET_IFNAME": "eth0"}], ids=["", "named"])
def test_machines_without_a_default_route_reach_each_other(
    environment: dict[str, str], machines: list[str], tmp_path: Path
) -> None:
    # MASTER_ADDR is the first machine's name, which its own /etc/hosts mostly has as a loopback address.
    masters = ["127.0.1.1", "10.77.0.1"]
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            env={**os.environ, **environment, "MASTER_ADDR": masters[rank]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, name in enumerate(machines)
    ]
    told = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert told == ["", "hello machine\n"], told
