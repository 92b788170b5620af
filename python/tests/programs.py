"""Running a program in a process of its own that begins with torch imported.

`run(text)` is `subprocess.run([sys.executable, "-c", text])`, less the two seconds that it takes to
import torch: a server does that once, and forks for each program. The program imports varve itself,
and ends as an interpreter ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class Started:
    """A program that has begun, with what a test uses of subprocess.Popen."""

    def __init__(self, pid: int, server: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._server = server
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 600.0) -> int:
        """Returns the exit status. A program that takes longer is killed, and TimeoutError raised."""
        if self._status is None:
            self._server.settimeout(timeout)
            try:
                self._status = int(self._server.recv(100))
            except TimeoutError:
                self.send_signal(signal.SIGKILL)
                raise
        return self._status

    def end(self) -> None:
        """Kills the program if it has not ended."""
        with contextlib.suppress(TimeoutError):
            self.wait(0.001)


@contextlib.contextmanager
def started(
    text: str,
    *arguments: object,
    err: IO[Any],
    out: IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[Started]:
    """Starts a program. Its `PYTHONPATH` counts, and without `out` its output goes to `stdout`."""
    request = {
        "text": text,
        "arguments": list(map(str, arguments)),
        "environment": dict(os.environ if env is None else env),
        "folder": os.fspath(cwd or os.getcwd()),
    }
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    with mine, open(in_write, "w") as stdin, open(out_read) as stdout:
        with theirs, open(in_read), open(out_write) as end:
            descriptors = [theirs.fileno(), in_read, (out or end).fileno(), err.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        program = Started(int(mine.recv(100)), mine, stdin, stdout)
        try:
            yield program
        finally:
            program.end()


def run(
    text: str, *arguments: object, timeout: float = 600.0, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, as `started`. Its output is kept."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with started(text, *arguments, out=out, err=err, **more) as program:
            program.stdin.close()
            status = program.wait(timeout)
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
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 4)
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
    for target, descriptor in enumerate(descriptors[1:]):
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
