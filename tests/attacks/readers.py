"""Running what opens files, within limits that an attack must not pass."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

VERBS = ("ls", "inspect", "verify", "convert")

#: Seconds of a processor that refusing a file may take; a busy machine makes no difference.
CPU_SECONDS = 40
#: Seconds after which a process that waits for something counts as hanging.
HANGS_AFTER = 600


#: A program that limits itself and becomes another: `preexec_fn` would copy all pages of this process.
_LIMITED = ("prlimit", f"--cpu={CPU_SECONDS}", f"--as={2 << 30}", f"--fsize={64 << 20}", "--core=0")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """With 2 GiB of address space, files of 64 MiB and CPU_SECONDS; a signal fails the test."""
    done = subprocess.run(
        [*_LIMITED, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
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
