"""Measures the CPU seconds that the ranks' meeting costs the job's store, a real TCPStore.

    python bench/scale/meeting.py [RANKS...]     (default 1024 4096 16384)

One process is the store's server. Rank 0 publishes its address. Every other rank looks for it `--late`
times before it is there, then reads it, as src/coordinate/channel.cc does.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys

import torch.distributed as dist

_KEY = "varve/channel/" + "0" * 32  # As long as the real ones,
_ADDRESS = b"a" * 160  # and so is this.

_SERVER = """
import datetime, signal, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=60))
print(store.port, flush=True)
signal.pause()
"""


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def meet(size: int, late: int) -> float:
    """CPU seconds of the server for one meeting of `size` ranks."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        store = dist.TCPStore("127.0.0.1", port, None, False, datetime.timedelta(seconds=60))
        before = _cpu_seconds(server.pid)
        for _ in range(1, size):
            for _ in range(late):
                assert not store.check([_KEY])
        store.set(_KEY, _ADDRESS)
        for _ in range(1, size):
            assert store.check([_KEY])
            store.get(_KEY)
        return _cpu_seconds(server.pid) - before
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="*", default=[1024, 4096, 16384])
    parser.add_argument("--late", type=int, default=10)
    arguments = parser.parse_args()
    for size in arguments.ranks:
        print(
            f"{size:6} ranks: {meet(size, arguments.late):6.2f} s of CPU of the store", flush=True
        )


if __name__ == "__main__":
    main()
