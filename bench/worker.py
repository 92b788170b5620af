"""A process of its own that saves and loads when told, for what is decided once per process.

The parent writes one JSON request per line; the worker answers each with one JSON line. Preparing
files and caches is the parent's part; the worker only times, and checks what it loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import arms
from bench.arms import Arm
from bench.files import files_under, remove
from bench.measure import Sample, timed
from bench.state import State, bytes_of, make_destination, make_state, negate, require_equal, zero

_ROOT = Path(__file__).resolve().parent.parent
_PROBE_BYTES = 4 << 20


class Worker:
    """The parent's handle. Use as a context manager; leaving it ends the process."""

    def __init__(
        self, arm: Arm, size: int, tensors: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts a process that holds `size` bytes in `tensors` tensors and uses `arm`."""
        command = [sys.executable, "-m", "bench.worker", arm.name, str(size), str(tensors)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Worker:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the worker's input, which ends it, and waits."""
        self._process.communicate()

    def save(self, path: Path) -> Sample:
        """Times one save to `path`, which must not exist."""
        return _sample(self._ask("save", path))

    def load(self, path: Path) -> Sample:
        """Times one load from `path`; the values are checked outside the time."""
        return _sample(self._ask("load", path))

    def prepare_staging(self) -> None:
        """Makes Varve's stager and asks it to take memory for the state, in the background."""
        self._ask("prepare", Path())

    def wait_prepared(self) -> float:
        """Waits for the memory asked for; returns the seconds of waiting."""
        return float(self._ask("wait-prepared", Path())["seconds"])

    def async_save(self, path: Path) -> Sample:
        """Times one call of Varve's async_save to `path`, until the tensors may change.

        Outside the time the state is then changed, and the checkpoint waited for, loaded and checked.
        """
        return _sample(self._ask("async-save", path))

    def notices_damage(self, path: Path) -> bool:
        """Saves a little at `path`, flips a bit in its largest file; tells if loading objects."""
        return bool(self._ask("probe", path)["noticed"])

    def _ask(self, operation: str, path: Path) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": operation, "path": str(path)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def _sample(answer: dict[str, Any]) -> Sample:
    return Sample(answer["seconds"], answer["cpu_seconds"])


def _probe(arm: Arm, path: Path) -> bool:
    path.parent.mkdir(exist_ok=True)
    state = make_state(_PROBE_BYTES, 1)
    arm.save(state, path)
    largest = max(files_under(path), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    try:
        arm.load(make_destination(state), path)
    except Exception:
        return True
    finally:
        remove(path)
    return False


class _Staging:
    """Varve's asynchronous saves in the worker, with the stager that was prepared, if one was."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._destination: State = {}
        self._stager: Any = None

    def prepare(self) -> dict[str, Any]:
        from varve.torch import Stager

        self._stager = Stager(memory_budget=arms.staging_budget(bytes_of(self._state)))
        self._stager.prepare(self._state)
        return {}

    def wait_prepared(self) -> dict[str, Any]:
        return {"seconds": timed(self._stager.wait_prepared).seconds}

    def save(self, arm: Arm, path: Path) -> dict[str, Any]:
        from varve.torch import async_save

        handles: list[Any] = []
        sample = timed(lambda: handles.append(async_save(self._state, path, stager=self._stager)))
        negate(self._state)
        if handles[0].result().in_waves:
            raise AssertionError("the staging memory was too small for the state")
        self._destination = self._destination or make_destination(self._state)
        zero(self._destination)
        arm.load(self._destination, path)
        negate(self._destination)
        require_equal(self._destination, self._state)
        return {"seconds": sample.seconds, "cpu_seconds": sample.cpu_seconds}


def _serve(arm: Arm, state: State) -> None:
    # What libraries print goes to stderr; the answers have the real stdout for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    destination: State = {}
    staging = _Staging(state)
    for line in sys.stdin:
        request = json.loads(line)
        path = Path(request["path"])
        answer: dict[str, Any]
        try:
            if request["do"] == "probe":
                answer = {"noticed": _probe(arm, path)}
            elif request["do"] == "prepare":
                answer = staging.prepare()
            elif request["do"] == "wait-prepared":
                answer = staging.wait_prepared()
            elif request["do"] == "async-save":
                answer = staging.save(arm, path)
            elif request["do"] == "save":
                sample = timed(partial(arm.save, state, path))
                answer = {"seconds": sample.seconds, "cpu_seconds": sample.cpu_seconds}
            else:
                destination = destination or make_destination(state)
                zero(destination)
                sample = timed(partial(arm.load, destination, path))
                require_equal(destination, state)
                answer = {"seconds": sample.seconds, "cpu_seconds": sample.cpu_seconds}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Imports the tool, builds the state, then serves requests until the input ends."""
    name, size, tensors = sys.argv[1:]
    arm = next(arm for arm in arms.ALL if arm.name == name)
    arm.unavailable()  # Imports; their time is no part of the first save.
    _serve(arm, make_state(int(size), int(tensors)))


if __name__ == "__main__":
    main()
