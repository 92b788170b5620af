"""Facts without which a number means nothing: the machine, the versions, the commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("varve", "torch", "numpy", "safetensors", "torchsnapshot")


def facts(directory: Path) -> dict[str, Any]:
    """Returns machine facts as a JSON value; `directory` is where the checkpoints go."""
    file_system, device = _file_system(directory)
    return {
        "cpu": processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory("MemTotal"),
        "kernel": platform.release(),
        "filesystem": file_system,
        "device": device,
        "transparent_hugepages": _huge_pages(),
        "load_average": os.getloadavg()[0],
    }


def processor(cpuinfo: str) -> str:
    """Returns the processor's name in `cpuinfo`, and its family, model and stepping.

    A hypervisor may tell no more than "AMD EPYC". The speed of checksums depends on `vpclmulqdq`.
    """
    name = _value(cpuinfo, "model name") or platform.machine()
    keys = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    known = [f"{word} {value}" for word, key in keys.items() if (value := _value(cpuinfo, key))]
    if not known:
        return name
    flags = (_value(cpuinfo, "flags") or "").split()
    sums = "vpclmulqdq" if "vpclmulqdq" in flags else "no vpclmulqdq"
    return f"{name} ({' '.join(known)}, {sums})"


def vendor() -> str | None:
    """Returns the processor's vendor as it calls itself, "AuthenticAMD" or "GenuineIntel"."""
    return _field(Path("/proc/cpuinfo"), "vendor_id")


def available_memory_bytes() -> int:
    """Returns what the kernel says can be had without swapping."""
    return _memory("MemAvailable")


def versions() -> dict[str, str | None]:
    """Returns the version of Python and of each package, None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def commit(repository: Path) -> str | None:
    """Returns the commit of the working tree, "+dirty" added if it differs, None without git."""
    head = _git(repository, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+dirty" if _git(repository, "status", "--porcelain") else "")


def _git(repository: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(repository), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _field(path: Path, name: str) -> str | None:
    return _value(path.read_text(), name)


def _value(text: str, name: str) -> str | None:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _memory(name: str) -> int:
    value = _field(Path("/proc/meminfo"), name)
    return int(value.split()[0]) * 1024 if value else 0


def _huge_pages() -> str | None:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0]


def _file_system(directory: Path) -> tuple[str | None, str | None]:
    target = directory.resolve()
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        path = Path(mount.replace("\\040", " "))
        if target.is_relative_to(path) and len(path.parts) >= best[0]:
            best = (len(path.parts), kind, device)
    return best[1], best[2]
