"""Starts the ranks of a training job, waits for them, or kills them in the middle of a save."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).parent
_POLL_SECONDS = 0.0005


class JobFailed(RuntimeError):
    """A rank ended with an error; the message has the end of its log."""


def staging_path(checkpoint: Path) -> Path | None:
    """Return the hidden directory in which `checkpoint` is being written, if there is one."""
    encoded = "".join(f"%3{c}" if c.isdecimal() else c for c in checkpoint.name)
    return next(checkpoint.parent.glob(f".{encoded}.varve-saving-*"), None)


class Job:
    """The ranks of one job, each a process in a session of its own; ends with its `with` block."""

    def __init__(self, name: str, ranks: int, scratch: Path, options: list[str]) -> None:
        """Start `train.py` with `options` on `ranks` ranks; logs go to `scratch`."""
        self.name = name
        scratch.mkdir(parents=True, exist_ok=True)
        meet_at = scratch / f"{name}.meet"
        meet_at.unlink(missing_ok=True)
        self._logs = [scratch / f"{name}-rank{rank}.log" for rank in range(ranks)]
        self._ranks: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(self._logs):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "DEMO_MEET_AT": meet_at.resolve().as_uri(),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            with log.open("wb") as output:
                self._ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(_HERE / "train.py"), *options],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def __enter__(self) -> Job:
        """Return the job."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave no process behind."""
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to every rank and its children, and wait until they have exited."""
        for rank in self._ranks:
            if rank.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
        for rank in self._ranks:
            rank.wait()

    def wait(self) -> None:
        """Wait until every rank has ended well; raises JobFailed as soon as one has not."""
        while self._running():
            time.sleep(0.02)

    def kill_once(self, begun: Callable[[], bool], delay_seconds: float = 0.03) -> None:
        """Kill the job `delay_seconds` after `begun` is true; JobFailed if it ends before that."""
        while not begun():
            if not self._running():
                raise JobFailed(f"{self.name} ended before it could be killed in a save")
            time.sleep(_POLL_SECONDS)
        time.sleep(delay_seconds)
        self.kill()

    def _running(self) -> bool:
        codes = [rank.poll() for rank in self._ranks]
        for code, log in zip(codes, self._logs, strict=True):
            if code:
                self.kill()
                tail = log.read_text(errors="replace")[-3000:]
                raise JobFailed(f"{self.name}: {log.stem} ended with {code}:\n{tail}")
        return None in codes


def has_data(staging: Path | None) -> bool:
    """Return whether data of a save have reached the disk."""
    if staging is None:
        return False
    try:
        return any(
            entry.stat().st_blocks > 0
            for entry in os.scandir(staging)
            if entry.name.startswith("data-")
        )
    except FileNotFoundError:
        return False


def written_share(staging: Path | None, step_bytes: int = 1 << 16) -> tuple[int, float]:
    """Return the size of the data files in `staging` in bytes, and what part of it was written.

    Files are allocated before they are filled, and what was not filled reads as zeros; so a sample
    of 16 bytes in every `step_bytes` tells, for data without long runs of zeros.
    """
    size = samples = filled = 0
    for path in sorted(staging.glob("data-*")) if staging is not None else []:
        size += path.stat().st_size
        with path.open("rb") as file:
            for offset in range(0, path.stat().st_size, step_bytes):
                file.seek(offset)
                samples += 1
                filled += any(file.read(16))
    return size, filled / samples if samples else 0.0
