"""Checks what is in a wheel: its files, their modes, and the libraries that its binaries ask for.

python contents.py WHEEL     in an environment with auditwheel, which brings pyelftools
"""

from __future__ import annotations

import io
import json
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

#: What a binary may ask the system for. Every system of the wheel's platform tag has them.
SYSTEM = {
    *("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
    "ld-linux-x86-64.so.2",
}
#: What auditwheel is to bring, by the beginning of the file's name.
VENDORED = {
    *("libisal", "libsimdjson", "libxxhash", "libzstd"),
    *("libcurl", "libssl", "libcrypto", "libpugixml"),
}
#: What THIRD_PARTY.txt must name, each as a heading.
LICENSED = (
    *("ISA-L", "xxHash", "Zstandard", "simdjson", "FlatBuffers", "nanobind", "CLI11"),
    *("JSON for Modern C++", "tsl::robin_map", "zlib", "curl", "OpenSSL", "pugixml"),
)
PROGRAMS = ("varve", "varve-agent")


def dynamic(data: bytes) -> tuple[set[str], str]:
    """Returns the libraries that a binary asks for, and its run path."""
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    tags = list(section.iter_tags())
    needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
    paths = [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
    paths += [tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"]
    return needed, ":".join(paths)


def binaries(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """Returns the ELF files of a wheel."""
    found = {name: wheel.read(name) for name in wheel.namelist()}
    return {name: data for name, data in found.items() if data.startswith(b"\x7fELF")}


def wrong_files(wheel: zipfile.ZipFile) -> list[str]:
    """Returns what is missing, or there and should not be."""
    names = {name for name in wheel.namelist() if not name.endswith("/")}
    problems = []
    info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
    data = info.replace(".dist-info", ".data")
    wanted = {"varve/__init__.py", "varve/py.typed", f"{info}/licenses/LICENSE"}
    programs = {f"varve/bin/{name}" for name in PROGRAMS}
    programs |= {f"{data}/scripts/{name}" for name in PROGRAMS}
    problems += [f"no {name}" for name in sorted((wanted | programs) - names)]
    for name in sorted(programs & names):
        if not wheel.getinfo(name).external_attr >> 16 & stat.S_IXUSR:
            problems.append(f"{name} is not executable")
    own = (f"{info}/", f"{data}/scripts/", "varve/", "varve.libs/")
    problems += [f"unexpected file {name}" for name in sorted(names) if not name.startswith(own)]
    # The package of the wheel is that of the repository, file for file.
    package = Path(__file__).resolve().parents[2] / "python" / "varve"
    sources = {f"varve/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py*")}
    sources = {name for name in sources if not name.endswith(".pyc")}
    problems += [f"no {name}" for name in sorted(sources - names)]
    third = [name for name in names if name.endswith("/THIRD_PARTY.txt")]
    if len(third) != 1:
        return [*problems, f"{len(third)} files THIRD_PARTY.txt"]
    text = wheel.read(third[0]).decode()
    problems += [f"THIRD_PARTY.txt: no {name}" for name in LICENSED if f"\n{name}" not in text]
    return problems


def wrong_libraries(wheel: zipfile.ZipFile) -> list[str]:
    """Returns the binaries that ask for a library that is neither the system's nor in the wheel."""
    problems = []
    found = binaries(wheel)
    brought = {PurePosixPath(name).name for name in found if name.startswith("varve.libs/")}
    stems = {re.split(r"[-.]", name)[0] for name in brought}
    if stems != VENDORED:
        problems.append(f"varve.libs/ has {sorted(stems)}, expected {sorted(VENDORED)}")
    for name, data in sorted(found.items()):
        needed, path = dynamic(data)
        for library in sorted(needed - SYSTEM - brought):
            problems.append(f"{name} asks for {library}, which is not in the wheel")
        if needed & brought and not path.startswith("$ORIGIN") and "varve.libs" not in name:
            problems.append(f"{name} would not find varve.libs: its run path is {path!r}")
    if len(found) != len(brought) + len(PROGRAMS) + 1:
        problems.append(f"unexpected binaries: {sorted(found)}")
    return problems


def wrong_tag(path: Path) -> list[str]:
    """Returns whether auditwheel still agrees with the platform in the wheel's name."""
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", path], capture_output=True, text=True
    )
    if done.returncode != 0:
        return [f"auditwheel show: {done.stderr}"]
    tag = json.loads(done.stdout)["overall_tag"]
    return [] if path.name.endswith(f"-{tag}.whl") else [f"auditwheel says {tag}"]


def versions(wheel: zipfile.ZipFile) -> str:
    """Returns the newest version of each system library that the binaries ask for."""
    newest: dict[str, tuple[int, ...]] = {}
    for data in binaries(wheel).values():
        section = ELFFile(io.BytesIO(data)).get_section_by_name(".gnu.version_r")
        for _, wanted in section.iter_versions() if section else ():
            for version in wanted:
                match = re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", version.name)
                if match:
                    number = tuple(int(part) for part in match[2].split("."))
                    newest[match[1]] = max(newest.get(match[1], ()), number)
    return ", ".join(f"{name}_{'.'.join(map(str, newest[name]))}" for name in sorted(newest))


def main() -> None:
    """Prints what is wrong with a wheel, or that nothing is."""
    path = Path(sys.argv[1])
    with zipfile.ZipFile(path) as wheel:
        problems = wrong_files(wheel) + wrong_libraries(wheel) + wrong_tag(path)
        needs = versions(wheel)
    if problems:
        raise SystemExit("\n".join(f"{path.name}: {problem}" for problem in problems))
    print(f"packaging: {path.name}: contents are right; needs {needs}", flush=True)


if __name__ == "__main__":
    main()
