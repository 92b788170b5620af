"""Debian root file systems under build/packaging/roots, in which wheels are built and tried."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: What a command in a root sees of the caller's environment. A proxy is the network's business.
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy")

#: Mounts what programs expect, then becomes the command. It runs in a mount namespace of its own.
ENTER = """
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/dev/shm"
exec chroot "$0" "$@"
"""


class Root:
    """A Debian root file system, made once and used again by later runs.

    Commands run in a mount and a process namespace of their own. When the first process of one ends
    or is killed, the kernel ends all others and takes the mounts away, also after Ctrl-C.
    """

    def __init__(self, path: Path, suite: str, mirror: str | None) -> None:
        """Names the root; `make` makes it.

        Args:
            path: Where it lies or will lie.
            suite: The Debian release, such as "bookworm".
            mirror: Where debootstrap fetches packages from; None for its default.
        """
        self.path = path
        self.suite = suite
        self.mirror = mirror

    def make(self, packages: Sequence[str]) -> None:
        """Makes the root with these packages in it, unless an earlier run has.

        A root whose list of packages has changed is made anew. A root that was not finished is never
        used.

        Args:
            packages: Debian packages beside those of a minimal system.
        """
        made_of = " ".join(sorted(packages))
        stamp = self.path.with_suffix(".made-of")
        if self.path.is_dir() and stamp.is_file() and stamp.read_text() == made_of:
            print(f"packaging: root {self.path.name}: there", flush=True)
            return
        print(f"packaging: root {self.path.name}: making it", flush=True)
        stamp.unlink(missing_ok=True)
        remove_tree(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["debootstrap", "--variant=minbase", self.suite, str(self.path)]
        _run(in_namespace(arguments + ([self.mirror] if self.mirror else [])), quiet=True)
        install = "apt-get install -y -qq --no-install-recommends"
        self.run(["sh", "-ec", f"apt-get update -qq; {install} {' '.join(packages)}"], quiet=True)
        self.run(["apt-get", "clean"])
        stamp.write_text(made_of)

    def folder(self, name: str) -> Path:
        """Returns the path, outside of the root, of its empty folder /name."""
        path = self.path / name
        remove_tree(path)
        path.mkdir()
        return path

    def run(
        self, command: Sequence[str], quiet: bool = False, capture: bool = False, **variables: str
    ) -> str:
        """Runs a command in the root, as root, and returns what it printed where `capture` is set.

        Args:
            command: The program and its arguments.
            quiet: Print its output only if it fails.
            capture: Return its output instead of printing it.
            **variables: Added to its environment, which has little else.
        """
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            **variables,
        }
        settings = [f"{name}={value}" for name, value in environment.items()]
        inside = ["/usr/bin/env", "-i", *settings, *command]
        enter = in_namespace(["sh", "-ec", ENTER, str(self.path), *inside])
        return _run(enter, quiet=quiet, capture=capture, where=f" in {self.path.name}")


def in_namespace(command: Sequence[str]) -> list[str]:
    """Returns the command that runs `command` where its mounts and processes end with it."""
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", *command]


def remove_tree(path: Path) -> None:
    """Removes a folder of ours. Refuses one with a file system mounted in it."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    inside = [
        place for place in (line.split()[1] for line in mounts) if place.startswith(f"{path}/")
    ]
    if inside:
        raise SystemExit(f"packaging: {path} has mounted file systems: {', '.join(inside)}")
    if path.exists():
        shutil.rmtree(path)


def _run(
    command: Sequence[str], quiet: bool = False, capture: bool = False, where: str = ""
) -> str:
    """Runs a command to its end. Failure ends the program with the command's output."""
    keep = quiet or capture
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if keep else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    try:
        output = process.communicate()[0] or ""
    except KeyboardInterrupt:
        process.kill()  # unshare; the kernel then ends everything in its namespace.
        process.wait()
        raise
    if process.returncode != 0:
        raise SystemExit(
            f"{output}\npackaging: exit code {process.returncode}{where}: {command[-1]}"
        )
    return output
