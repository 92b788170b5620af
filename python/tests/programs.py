"""Running a program in a process of its own that begins with torch imported.

`run(text)` is `subprocess.run([sys.executable, "-c", text])`, less the two seconds that it takes to
import torch: a server does that once, and forks for each program. The program imports varve itself,
and ends as an interpreter ends.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run(
    text: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. Its `PYTHONPATH` counts, and its output is kept."""
    request = {
        "text": text,
        "arguments": list(map(str, arguments)),
        "environment": dict(os.environ if env is None else env),
        "folder": os.fspath(cwd or os.getcwd()),
    }
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        descriptors = [theirs.fileno(), out.fileno(), err.fileno()]
        socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        theirs.close()
        pid = int(mine.recv(100))
        mine.settimeout(timeout)
        try:
            status = int(mine.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["python", "-c", text], status, *texts)


def output(text: str, *arguments: object, **more: Any) -> str:
    """The output of a program that succeeds."""
    done = run(text, *arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _server() -> socket.socket:
    """Returns the connection to this process's server, which ends when the connection closes."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    return mine


def _next_program(requests: socket.socket) -> Any:
    """Returns once for each program, each time in a new process. Its parent reports how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No server waits for the processes below.
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=descriptors[0]) as reply:
        pid = os.fork()
        if pid != 0:
            reply.send(b"%d" % pid)
            reply.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)
    for target, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *descriptors[1:]]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    return json.loads(message)


def _become(arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    more = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = ["", *(path for path in more if path and path not in sys.path[1:])]


if __name__ == "__main__":
    import gc

    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401

    assert "varve" not in sys.modules
    gc.collect()
    gc.freeze()
    program = _next_program(socket.socket(fileno=int(sys.argv[1])))
    _become(program["arguments"], program["environment"], program["folder"])
    exec(compile(program["text"], "<string>", "exec"), {"__name__": "__main__"})
