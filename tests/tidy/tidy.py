"""Runs clang-tidy on the sources that can have findings.

    tidy.py            those that differ from the tree that was last checked whole, and those that
                       include what differs
    tidy.py --all      every source; before a release
    tidy.py --record   as without; then notes the tree of HEAD as checked, if nothing was found

tests/tidy/checked_tree names that tree (a git tree, which commits that are written anew keep) and what
configured clang-tidy then. Where the clone does not have the tree, or the configuration differs, every
source is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ROOT / "tests" / "tidy" / "checked_tree"
CLANG_TIDY = "clang-tidy-19"

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


def configuration() -> str:
    """Returns a digest of the version of clang-tidy and of the flags, less paths, that it is given."""
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True).stdout
    flags = {" ".join(w for w in one["command"].split() if "/" not in w) for one in commands()}
    return hashlib.sha256(version + "\n".join(sorted(flags)).encode()).hexdigest()


def sources() -> list[str]:
    """Our sources that the preset compiles, relative to the repository."""
    paths = (Path(entry["directory"], entry["file"]).resolve() for entry in commands())
    ours = (path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
    generated = (".venv", "build")
    return sorted({str(path) for path in ours if path.parts[0] not in generated})


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


def check(name: str) -> tuple[str, int, str]:
    done = subprocess.run(
        [CLANG_TIDY, "-quiet", "-p", "build/tidy", name], cwd=ROOT, capture_output=True, text=True
    )
    lines = (done.stdout + done.stderr).splitlines()
    return name, done.returncode, "\n".join(line for line in lines if not NOISE.match(line))


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
    names = select(arguments.all)
    failed = 0
    with ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        for name, code, output in pool.map(check, names):
            if code != 0 or output:
                failed += 1
                print(f"{name}:\n{output}" if output else f"{name}: {CLANG_TIDY} ended with {code}")
    print(f"tidy: {len(names)} of {len(sources())} sources checked, {failed} with findings")
    if arguments.record and not failed:
        CHECKED.write_text(git("rev-parse", "HEAD^{tree}") + configuration() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
