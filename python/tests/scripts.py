"""Running a script on ranks as torchrun does, in processes that begin with the frameworks imported.

`run(2, path, *arguments)` does what `torchrun --nproc-per-node 2 path ...` does, and `run(0, ...)`
what `python path ...` does. No process spends seconds on the import of torch and a framework.
test_cookbook.py tests torchrun itself.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ranks import process_of


def run(
    size: int,
    script: str | Path,
    *arguments: object,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 200.0,
) -> str:
    """Returns the output of a script whose ranks all succeed, errors of each rank below it."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True) if size else None
    words = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as logs:
        ranks = []
        for rank in range(max(size, 1)):
            more = dict(env or {})
            if store is not None:
                more |= _as_torchrun(rank, size, store.port)
            log = str(Path(logs, str(rank)))
            ranks.append(process_of(_script, words, str(cwd or os.getcwd()), log, more))
        for one in ranks:
            one.start()
        codes = _until_all_have_ended(ranks, time.monotonic() + timeout)
        output = "".join(
            path.read_text() for path in sorted(Path(logs).iterdir(), key=_errors_last)
        )
    assert set(codes) == {0}, f"exit codes {codes}:\n{output}"
    return output


def _until_all_have_ended(ranks: list[Any], end: float) -> list[int]:
    """Returns exit codes. Kills what goes on when a rank has failed, or at the `end`."""
    running = {one.sentinel: one for one in ranks}
    while running and time.monotonic() < end:
        for sentinel in wait(list(running), max(0.0, end - time.monotonic())):
            one = running.pop(sentinel)  # type: ignore[arg-type]
            one.join()
            if one.exitcode:
                end = 0.0
    for one in running.values():
        one.kill()
        one.join()
    return [one.exitcode for one in ranks]


def _errors_last(log: Path) -> tuple[bool, str]:
    return log.suffix == ".err", log.name


def _as_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _script(words: list[str], folder: str, log: str, more: dict[str, str]) -> None:
    import torch

    for name, descriptor in ((log, 1), (f"{log}.err", 2)):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.update(more)
    os.chdir(folder)
    if "OMP_NUM_THREADS" in more:
        torch.set_num_threads(1)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    tempfile.tempdir = None  # Which is TMPDIR again.
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends a process without them.
