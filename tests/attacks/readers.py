"""Running what opens files, within limits that an attack must not pass."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

VERBS = ("ls", "inspect", "verify", "convert")

#: Seconds of a processor that refusing a file may take; a busy machine makes no difference.
CPU_SECONDS = 40
#: Seconds after which a process that waits for something counts as hanging.
HANGS_AFTER = 600


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """With 2 GiB of address space, files of 64 MiB and CPU_SECONDS; a signal fails the test."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
        preexec_fn=_limits,
        restore_signals=False,  # SIGXFSZ stays ignored: a file too large is an error of write.
    )
    assert done.returncode >= 0, f"killed by signal {-done.returncode}: {done.stderr}"
    return done


def said(verb: str, binary: Path, path: Path, out: Path) -> str:
    """What a command says that gives an error; "" when all was well."""
    arguments: dict[str, tuple[object, ...]] = {
        "ls": ("ls", path, "--json"),
        "inspect": ("inspect", path),
        "verify": ("verify", path),
        "convert": ("convert", path, out, "--to", "varve", "--memory", "64MiB"),
    }
    done = run(binary, *arguments[verb])
    if verb == "ls":
        assert done.returncode == 0, done.stderr
        return " ".join(e["detail"] for e in json.loads(done.stdout) if e["state"] == "damaged")
    assert done.returncode in (0, 1, 2)
    if done.returncode == 0:
        return ""
    assert not out.exists(), "the target of a conversion that failed"
    return done.stdout + done.stderr
