"""Runs clang-tidy on the sources that can have findings.

    tidy.py            those that differ from the tree that was last checked whole, and those that
                       include what differs
    tidy.py --all      every source; before a release
    tidy.py --record   as without; then notes the tree of HEAD as checked, if nothing was found

tests/tidy/checked_tree names that tree (a git tree, which commits that are written anew keep) and what
configured clang-tidy then. Where the clone does not have the tree, or the configuration differs, every
source is checked.

clang-tidy reads the sources of a folder one after the other in one file: nine sources then take the time
of four, for most of it goes into the headers that they share. It says nothing of an include that a source
lacks and one before it has; so the compiler looks at each of the sources by itself as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ROOT / "tests" / "tidy" / "checked_tree"
CLANG_TIDY = "clang-tidy-19"
JOINED = ROOT / "build" / "tidy" / "joined"

#: A difference in one of these may change what is found anywhere.
CONFIGURES = re.compile(r"(^|/)\.clang-tidy$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)

#: How many warnings in other people's headers were left out, and the like.
NOISE = re.compile(r"^(\d+ warnings? (and \d+ errors? )?(generated|treated as errors?)\.?|)$")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def changed_files(tree: str) -> set[str]:
    """Files that differ between a tree and the working directory."""
    differing = git("diff", "--name-only", "-z", tree).split("\0")
    new = git("ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return {name for name in (*differing, *new) if name}


def commands() -> list[dict[str, str]]:
    """Returns how the preset compiles each source."""
    found: list[dict[str, str]] = json.loads(
        (ROOT / "build" / "tidy" / "compile_commands.json").read_text()
    )
    return found


class Unit(NamedTuple):
    """Our sources, relative to the repository, that are looked at together, and the compiler's flags."""

    flags: list[str]
    sources: list[str]

    def joined(self) -> tuple[Path, list[tuple[int, str]]]:
        """Writes the sources into one file; returns it, and the line where each of them begins."""
        file = JOINED / f"{self.sources[0].replace('/', '.')}"
        text, begins = "", []
        for source in self.sources:
            begins.append((text.count("\n") + 1, source))
            text += (ROOT / source).read_text()
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file, begins


def units() -> list[Unit]:
    """Returns what clang-tidy is to look at: folders, but single verbs of the command line."""
    found: dict[tuple[str, ...], Unit] = {}
    for entry in commands():
        path = Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT):
            continue
        source = path.relative_to(ROOT)
        if source.parts[0] in (".venv", "build"):
            continue
        words = shlex.split(entry["command"])[1:]
        output = words.index("-o")
        flags = [
            word for word in words[:output] + words[output + 2 :] if word not in ("-c", str(path))
        ]
        # Verbs have the same names for their own things.
        together = source if source.parts[0] == "tools" else source.parent
        found.setdefault((str(together), *flags), Unit(flags, [])).sources.append(str(source))
    return list(found.values())


def configuration() -> str:
    """Returns a digest of the version of clang-tidy and of the flags, less paths, that it is given."""
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True).stdout
    flags = {" ".join(w for w in one["command"].split() if "/" not in w) for one in commands()}
    return hashlib.sha256(version + "\n".join(sorted(flags)).encode()).hexdigest()


def sources() -> list[str]:
    return sorted(source for unit in units() for source in unit.sources)


def included(name: str, known: dict[str, set[str]]) -> set[str]:
    """The repository's headers that a file includes, directly or not; itself too."""
    if name in known:
        return known[name]
    known[name] = found = {name}  # Before the search: headers may include each other.
    folder = Path(name).parent
    for what in INCLUDE.findall((ROOT / name).read_text()):
        for place in (Path("src"), Path("include"), folder, Path("python/src"), Path("tests")):
            path = os.path.normpath(place / what)
            if (ROOT / path).is_file():
                found |= included(path, known)
                break
    return found


def to_check(everything: list[str], changed: set[str]) -> list[str]:
    """The sources that differ or include what differs."""
    if any(CONFIGURES.search(name) for name in changed):
        return everything
    known: dict[str, set[str]] = {}
    return [name for name in everything if included(name, known) & changed]


def run(*words: str | Path) -> list[str]:
    """Returns what a checker says, or how it ended."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if not NOISE.match(line)]
    return lines or ([f"{words[0]} ended with {done.returncode}"] if done.returncode else [])


def check(unit: Unit, names: set[str]) -> list[str]:
    """Checks a unit, and by themselves those of its sources that are named; returns what was found."""
    if len(unit.sources) == 1:
        return run(CLANG_TIDY, "-quiet", unit.sources[0], "--", *unit.flags)
    file, begins = unit.joined()

    def place(at: re.Match[str]) -> str:
        begin, source = max(one for one in begins if one[0] <= int(at[1]))
        return f"{source}:{int(at[1]) - begin + 1}"

    found = run(CLANG_TIDY, "-quiet", file, "--", *unit.flags)
    found = [re.sub(rf"{re.escape(str(file))}:(\d+)", place, line) for line in found]
    for source in names.intersection(unit.sources):
        found += run("clang++-19", "-fsyntax-only", *unit.flags, source)
    return found


def select(whole: bool) -> list[str]:
    everything = sources()
    if whole or not CHECKED.is_file():
        return everything
    tree, _, configured = CHECKED.read_text().strip().partition("\n")
    if configured != configuration():
        print("tidy: all sources, for clang-tidy is configured in another way")
        return everything
    try:
        return to_check(everything, changed_files(tree))
    except RuntimeError as error:
        print(f"tidy: all sources, for {error}")
        return everything


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="check every source")
    parser.add_argument("--record", action="store_true", help="note the tree of HEAD as checked")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at once")
    arguments = parser.parse_args()
    if arguments.record and git("status", "--porcelain").strip():
        print("tidy: there are changes that are not committed: no tree has what would be checked")
        return 2
    subprocess.run(["cmake", "--preset", "tidy"], cwd=ROOT, check=True, capture_output=True)
    tree = git("rev-parse", "HEAD^{tree}")
    names = set(select(arguments.all))
    selected = [unit for unit in units() if names & set(unit.sources)]
    selected.sort(key=lambda unit: -len(unit.sources))  # The longest is not begun last.
    failed = 0
    with ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        for unit, found in zip(
            selected, pool.map(lambda one: check(one, names), selected), strict=True
        ):
            if found:
                failed += 1
                print(f"{unit.sources[0]} and what is beside it:", *found, sep="\n")
    print(f"tidy: {len(names)} of {len(sources())} sources checked, findings in {failed} places")
    if arguments.record and not failed:
        CHECKED.write_text(tree + configuration() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
