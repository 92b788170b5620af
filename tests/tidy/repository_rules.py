"""The rules of this repository that no compiler checks. Run as a ctest and by pytest.

    repository_rules.py                    all rules that only read files
    repository_rules.py --tests BINARY     also: every test that is written was compiled into BINARY
    repository_rules.py --headers CXX      only: every public header compiles by itself
Each rule is a function from the repository's root to a list of problems, one line each.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# ---- which module may include which (ARCHITECTURE.md) ----

# A module of src/ may include itself, the modules named here, and what those may include.
BELOW: dict[str, tuple[str, ...]] = {
    "base": (),
    "tensor": ("base",),
    "format": ("tensor",),
    "interop": ("format",),
    "plan": ("format",),
    "storage": ("base",),
    "coordinate": ("storage",),
    "device": ("base",),
    "pipeline": ("device", "plan", "storage"),
    "catalogue": ("pipeline", "interop", "coordinate"),
    "publish": ("catalogue",),
    "share": ("catalogue",),
    "load": ("share",),
    "save": ("publish", "load"),
    "async": ("save", "load"),
    "convert": ("save", "load"),
    "upload": ("publish",),
    "manage": ("upload",),
    "agent": ("async",),
    "protocol": ("save", "load"),
}


def closure(module: str) -> tuple[str, ...]:
    """All modules that `module` may include."""
    found = [name for below in BELOW[module] for name in (below, *closure(below))]
    return tuple(dict.fromkeys(found))


MODULES = {module: closure(module) for module in BELOW}

# The module of each header of include/varve/: the facade where none is named, else that of its folder.
PUBLIC_HEADER_MODULE = {
    "status.h": "base",
    "stop.h": "base",
    "events.h": "base",
    "hash.h": "base",
    "tensor.h": "tensor",
    "value.h": "format",
    "metadata.h": "format",
    "step_note.h": "format",
    "storage.h": "storage",
    "storage_plugins.h": "storage",
    "coordinator.h": "coordinate",
    "mpi.h": "coordinate",
    "async_save.h": "async",
    "convert.h": "convert",
    "agent.h": "agent",
    "manage.h": "manage",
    "upload.h": "upload",
}


def owner_of(header: str) -> str:
    """The module of a header, named from include/varve/."""
    folder, slash, _ = header.rpartition("/")
    return folder if slash else PUBLIC_HEADER_MODULE.get(header, "catalogue")


# These see the library as any user does: through include/varve/ only.
USERS = ("tools", "python/src", "examples", "bench")

# Headers of src/ that serve one user of ours and no other.
USERS_OWN_HEADERS = {
    "python/src": {
        "async/start.h",
        "coordinate/channel/channel.h",
        "interop/olmo/names.h",
        "interop/pickle/writer.h",
        "pipeline/host_copies.h",
        "publish/files_commit.h",
        "save/dcp_file.h",
        "save/dcp_index.h",
        "save/state_file.h",
    },
    "bench": {"save/dcp_index.h"},
    "tools": {"base/nearest.h"},
}

# Deterministic functions: no I/O, thread, clock or chance.
PURE_MODULES = ("tensor", "format", "interop", "plan")
IMPURE_HEADER = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|stop_token|semaphore|barrier|latch|chrono"
    r"|ctime|time\.h|random|fstream|iostream|filesystem|fcntl\.h|unistd\.h|pthread\.h|sys/.*)$"
)
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)

PUBLIC_HEADERS_MAX = 20
LINES_MAX = 500
LINES_WARN = 300
SOURCES_MAX = 20

CODE_SUFFIXES = {".cc", ".h", ".py", ".pyi", ".cmake", ".sh", ".fbs"}
CODE_NAMES = {"setup", "test", "demo", "run", "build", "CMakeLists.txt"}


def repository_files(root: Path) -> list[Path]:
    """Files that are, or would be, committed; relative to `root` and sorted."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
    )
    if listed.returncode == 0:
        names = [Path(n) for n in listed.stdout.decode().split("\0") if n]
    else:  # An unpacked archive: leave out what ./setup and ./test make.
        hidden = {".venv", "build", ".git"}
        names = [p.relative_to(root) for p in root.rglob("*")]
        names = [n for n in names if not hidden & set(n.parts) and "__pycache__" not in n.parts]
    return sorted({n for n in names if (root / n).is_file()})


def is_data(name: Path) -> bool:
    """What others wrote, or a fuzzer found: kept as it is."""
    corpus = name.parts[:2] == ("tests", "fuzz_corpus") and len(name.parts) > 3
    return corpus or name.parts[:2] == ("tests", "golden")


def is_generated(name: Path) -> bool:
    return name.stem.endswith("_generated") or is_data(name)


def text_of(path: Path) -> str | None:
    """The file's text, or None for a binary file."""
    data = path.read_bytes()
    return None if b"\0" in data else data.decode(errors="replace")


def code_files(root: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    """C++ files under the folders, with their text."""
    for name in repository_files(root):
        under = any(name.parts[: len(Path(f).parts)] == Path(f).parts for f in folders)
        if under and name.suffix in {".cc", ".h"} and not is_generated(name):
            yield name, (root / name).read_text()


def includes(text: str) -> Iterator[tuple[int, bool, str]]:
    """(line, quoted, what) of every #include."""
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1] == '"', match[2]


# ---- rules ----


def modules_include_downwards(root: Path) -> list[str]:
    """A module includes itself, the modules below it and their public headers.

    A test may include every public header, as users do.
    """
    problems = []
    for name, text in code_files(root, "src"):
        module = name.parts[1]
        if module not in MODULES or len(name.parts) < 3:
            problems.append(f"{name}: src/{module} is not one of the modules {', '.join(MODULES)}")
            continue
        open_to = (module, *MODULES[module])
        is_test = name.stem.endswith("_test")
        for line, quoted, what in includes(text):
            where = f"{name}:{line}"
            first, _, rest = what.partition("/")
            if first == "varve":
                owner = owner_of(rest)
                if owner not in open_to and not is_test:
                    problems.append(f"{where}: {module} may not include {what} of {owner}")
            elif first in MODULES and rest:
                if first not in open_to:
                    problems.append(f"{where}: {module} may not include {what}")
            elif is_test and first in ("support", "storages"):
                continue
            elif quoted:
                problems.append(
                    f'{where}: "{what}" is not of this repository (name it from src/, or use <>)'
                )
            elif module in PURE_MODULES and not is_test and IMPURE_HEADER.match(what):
                problems.append(f"{where}: {module} is pure and may not include <{what}>")
    return problems


def users_include_public_headers(root: Path) -> list[str]:
    """The command line, the binding, the examples and the benchmarks use only the public API.

    The headers in USERS_OWN_HEADERS are exceptions, each for one of them.
    """
    problems = []
    for name, text in code_files(root, *USERS):
        own = set().union(
            *(found for user, found in USERS_OWN_HEADERS.items() if name.is_relative_to(user))
        )
        for line, quoted, what in includes(text):
            first, _, rest = what.partition("/")
            beside = (root / name).parent / what
            if first == "varve":
                if not (root / "include" / "varve" / rest).is_file():
                    problems.append(f"{name}:{line}: there is no public header {what}")
            elif quoted and not beside.is_file() and what not in own:
                problems.append(f"{name}:{line}: may include only include/varve, not {what}")
    return problems


def public_headers_include_downwards(root: Path) -> list[str]:
    """A public header includes the standard library and public headers of its own module or below."""
    problems = []
    for name, text in code_files(root, "include"):
        module = owner_of(name.relative_to("include/varve").as_posix())
        if module not in MODULES:
            problems.append(f"{name}: there is no module {module}")
            continue
        for line, quoted, what in includes(text):
            first, _, rest = what.partition("/")
            if first == "varve":
                owner = owner_of(rest)
                if owner not in (module, *MODULES[module]):
                    problems.append(
                        f"{name}:{line}: of {module}, may not include {what} of {owner}"
                    )
            elif quoted or not STANDARD_HEADER.match(what):
                problems.append(f"{name}:{line}: a public header may not include {what}")
    return problems


def public_headers_are_few(root: Path) -> list[str]:
    """A folder has at most twenty public headers: each is one that C++ users look for."""
    counts = Counter(
        name.parent.as_posix()
        for name, _ in code_files(root, "include/varve")
        if name.suffix == ".h"
    )
    return [
        f"{folder}: {count} public headers, at most {PUBLIC_HEADERS_MAX}"
        for folder, count in sorted(counts.items())
        if count > PUBLIC_HEADERS_MAX
    ]


SPACE_OR_TYPE = re.compile(
    r"(?m)^(?:namespace (?P<opened>\w[\w:]*) \{|(?P<closed>\}  // namespace)"
    r"|(?:struct|class|enum class|using) (?P<type>[A-Z]\w*)\b(?!::| *;))"
)


def types_have_names_of_their_own(root: Path) -> list[str]:
    """No two headers have types of one name, which the linker takes for one; varve::protocol's count as varve's."""
    seen: dict[str, Path] = {}
    problems = []
    for name, text in code_files(root, "include", "src"):
        spaces: list[str] = []
        for found in SPACE_OR_TYPE.finditer(text) if name.suffix == ".h" else ():
            if found["opened"]:
                spaces.append(found["opened"].removesuffix("::protocol"))
            elif found["closed"]:
                spaces.pop()
            elif (other := seen.setdefault("::".join([*spaces, found["type"]]), name)) != name:
                problems.append(f"{name}: {found['type']} is also a type of {other}")
    return problems


# They stand on std::atomic::wait, which loses wake-ups in libstdc++ 11 and 12 (GCC bug 104928).
LOSES_WAKE_UPS = re.compile(r"^(semaphore|latch|barrier)$")
ATOMIC_WAKE = re.compile(r"\bstd::atomic_(?:flag_)?(?:wait|notify_one|notify_all)\b")


def no_lost_wake_ups(root: Path) -> list[str]:
    """Threads wait on condition variables: see src/pipeline/core_slots.h."""
    problems = []
    for name, text in code_files(root, "src", "include", *USERS):
        for line, _, what in includes(text):
            if LOSES_WAKE_UPS.match(what):
                problems.append(f"{name}:{line}: <{what}> loses wake-ups in libstdc++ 12")
        for match in ATOMIC_WAKE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{name}:{line}: {match[0]} loses wake-ups in libstdc++ 12")
        # A member wait on an atomic can't be told from one on a condition variable by its name, but
        # a notified object without a condition variable is an atomic.
        if re.search(r"notify_(?:one|all)\(", text) and not waits_on_a_condition(root, name, text):
            problems.append(f"{name}: notifies something that is no condition variable")
    return problems


def waits_on_a_condition(root: Path, name: Path, text: str) -> bool:
    """The file, or the header of its name, includes <condition_variable>."""
    header = root / name.with_suffix(".h")
    both = text + (header.read_text() if header.is_file() else "")
    return any(what == "condition_variable" for _, _, what in includes(both))


def file_length(root: Path) -> list[str]:
    """No file of ours is longer than 500 lines."""
    problems = []
    for name, lines in line_counts(root):
        if lines > LINES_MAX:
            problems.append(f"{name}: {lines} lines, at most {LINES_MAX}: look for the second idea")
    return problems


def folder_size(root: Path) -> list[str]:
    """No folder of src/ has more than twenty source files; headers and tests come with them."""
    counts: dict[Path, int] = {}
    for name, _ in code_files(root, "src"):
        if name.suffix == ".cc" and not name.stem.endswith("_test"):
            counts[name.parent] = counts.get(name.parent, 0) + 1
    return [
        f"{folder}: {count} source files, at most {SOURCES_MAX}: look for the second idea"
        for folder, count in sorted(counts.items())
        if count > SOURCES_MAX
    ]


def line_counts(root: Path) -> Iterator[tuple[Path, int]]:
    for name in repository_files(root):
        is_code = name.suffix in CODE_SUFFIXES or name.name in CODE_NAMES
        if is_code and not is_generated(name):
            yield name, len((root / name).read_bytes().splitlines())


# A path that only exists on its writer's machine, and a host that a mirror may stand for.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:home|root|work|Users)/[\w.]")
REGISTRY_HOST = re.compile(
    r"\b(?:pypi\.(?:org|python)|files\.pythonhosted|deb\.debian|download\.pytorch|registry\.npmjs)\b"
)


def machine_paths(root: Path) -> list[str]:
    """Nothing names a folder of one machine or the host of a package registry."""
    problems = []
    home = str(Path.home())
    for name in repository_files(root):
        text = text_of(root / name)
        if text is None or is_data(name):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            own_home = len(home) > 1 and f"{home}/" in line
            if MACHINE_PATH.search(line) or own_home:
                problems.append(f"{name}:{number}: a path of one machine: {line.strip()[:80]}")
            if REGISTRY_HOST.search(line):
                problems.append(f"{name}:{number}: a registry's host name: {line.strip()[:80]}")
    return problems


PYTHON_TEST = re.compile(r"^(?:async )?def test_", re.MULTILINE)


def python_tests_are_collected(root: Path) -> list[str]:
    """pytest only looks into files called test_*.py."""
    problems = []
    for name in repository_files(root):
        ours = name.parts[0] == "tests" or name.parts[:2] == ("python", "tests")
        if not ours or name.suffix != ".py" or name.name.startswith("test_"):
            continue
        if PYTHON_TEST.search((root / name).read_text()):
            problems.append(f"{name}: has tests, but pytest collects only test_*.py")
    return problems


FILE_RULES: tuple[Callable[[Path], list[str]], ...] = (
    modules_include_downwards,
    users_include_public_headers,
    public_headers_include_downwards,
    public_headers_are_few,
    types_have_names_of_their_own,
    no_lost_wake_ups,
    file_length,
    folder_size,
    machine_paths,
    python_tests_are_collected,
)

# ---- every test that is written runs ----

GTEST = re.compile(r"^[ \t]*(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)", re.M)


def written_tests(root: Path) -> dict[Path, set[str]]:
    """Suite.Test names by *_test.cc file."""
    found = {}
    for name, text in code_files(root, "src", "tests"):
        if name.name.endswith("_test.cc") and name.parts[:2] != ("tests", "consume"):
            found[name] = {f"{suite}.{test}" for _, suite, test in GTEST.findall(text)}
    return found


def listed_tests(listing: str) -> set[str]:
    """Suite.Test names in the output of --gtest_list_tests, without instantiation and parameter."""
    tests, suite = set(), ""
    for line in listing.splitlines():
        line = line.split("#")[0].rstrip()
        if line and not line.startswith(" "):
            # "Suite.", "Instantiation/Suite." (TEST_P), "Suite/0." (TYPED_TEST).
            parts = [p for p in line.rstrip(".").split("/") if not p.isdigit()]
            suite = parts[-1]
        elif line:
            tests.add(f"{suite}.{line.strip().split('/')[0]}")
    return tests


def tests_are_built(root: Path, listing: str) -> list[str]:
    """Every test in a *_test.cc is in the binary, and none is switched off."""
    problems = []
    built = listed_tests(listing)
    for name, tests in written_tests(root).items():
        if not tests:
            problems.append(f"{name}: no test in it")
        for test in sorted(tests - built):
            problems.append(f"{name}: {test} is not in the test binary")
        for test in sorted(t for t in tests if "DISABLED_" in t):
            problems.append(f"{name}: {test} is switched off")
    return problems


# ---- every public header compiles by itself ----


def headers_compile_alone(root: Path, compiler: str) -> list[str]:
    folder_of_all = root / "include" / "varve"
    headers = sorted(folder_of_all.rglob("*.h"))
    flags = [
        "-std=c++20",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Wconversion",
        "-Werror",
    ]

    def compile_one(header: Path) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            # Twice, so that a missing include guard shows.
            source = Path(folder) / "alone.cc"
            inside = header.relative_to(folder_of_all).as_posix()
            source.write_text(f"#include <varve/{inside}>\n" * 2)
            done = subprocess.run(
                [compiler, *flags, f"-I{root / 'include'}", source], capture_output=True, text=True
            )
        if done.returncode == 0:
            return []
        return [f"include/varve/{inside}: does not compile alone:\n{done.stderr}"]

    with ThreadPoolExecutor(max_workers=2) as pool:
        return [problem for problems in pool.map(compile_one, headers) for problem in problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--tests", help="the test binary, to compare with the tests in the sources")
    parser.add_argument("--headers", metavar="CXX", help="compile each public header alone")
    arguments = parser.parse_args()
    root: Path = arguments.root

    problems = []
    if arguments.headers:
        problems += headers_compile_alone(root, arguments.headers)
    else:
        for rule in FILE_RULES:
            problems += rule(root)
        for name, lines in line_counts(root):
            if LINES_WARN < lines <= LINES_MAX:
                print(f"note: {name}: {lines} lines")
        if arguments.tests:
            listing = subprocess.run(
                [arguments.tests, "--gtest_list_tests"], capture_output=True, text=True, check=True
            )
            problems += tests_are_built(root, listing.stdout)
        elif written_tests(root):
            problems.append("there are *_test.cc files, but no test binary was given")
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
