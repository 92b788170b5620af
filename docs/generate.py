"""Makes the generated parts of the pages in this folder: `python docs/generate.py`, with varve installed.

A generated part lies between `<!-- generated: NAME -->` and `<!-- end -->`. `--check` writes nothing, and
exits with 1 where a page is not what this program makes. Signatures and docstrings of the Python package,
the option structs of include/varve, and `varve --help` are where the text comes from.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import varve
import varve.agent
import varve.errors
import varve.hfai
import varve.olmo
import varve.storage
import varve.torch
import varve.torch.dcp

DOCS = Path(__file__).resolve().parent
HEADERS = DOCS.parent / "include" / "varve"
MODULES = (
    varve,
    varve.torch,
    varve.agent,
    varve.storage,
    varve.torch.dcp,
    varve.olmo,
    varve.hfai,
    varve.errors,
)

#: What is public of modules without `__all__`, and the errors that `varve` itself does not list.
LISTED = {
    "varve.agent": ("AgentFile", "AgentReport", "drain", "status", "stop"),
    "varve.errors": (
        "AccessRefusedError",
        "InvalidPathError",
        "NoAnswerError",
        "PermissionDeniedError",
    ),
}

#: Modules whose errors other-formats.md lists, beside those of the software that they take the place of.
ELSEWHERE = ("varve.olmo.", "varve.hfai.")

#: Classes that functions make, so that nobody calls them.
MADE = (varve.Checkpoint, varve.StoredTensor, varve.StoredFiles)

STRUCTS = {
    "options.h": ("SaveOptions", "LoadOptions"),
    "async_save.h": ("StagedSaveOptions", "AsyncSaveOptions", "DeferSaveOptions", "StagerOptions"),
    "convert.h": ("ConvertOptions",),
    "upload.h": ("UploadOptions",),
    "agent.h": ("AgentOptions", "AgentServerOptions"),
}
#: Words of what is said of a C++ option; the header has the rest.
LONG = 14
FIELD = re.compile(
    r"^(?P<type>[\w:<>, ()&*]+?) (?P<name>\w+)(?: = (?P<is>[^;]+)|\{\})?;(?P<rest>.*)"
)


def sentence(text: str) -> str:
    """Returns the first sentence, on one line."""
    first = re.split(r"(?<=\.)\s+(?=[A-Z`\"(])", " ".join(text.split()), maxsplit=1)[0]
    return first.rstrip(":")


def clause(text: str) -> str:
    """Returns the first sentence, or its first clause where it is long; empty where that is long too."""
    whole = sentence(text)
    if len(whole.split()) <= LONG:
        return whole
    first = re.split(r"[;:,(] ?", whole, maxsplit=1)[0].strip().rstrip(".")
    return f"{first}." if 3 < len(first.split()) <= LONG else ""


# ---- Python ----


def public(module: Any) -> list[str]:
    """Returns the public names of a module that are no modules and no text."""
    names = LISTED.get(module.__name__) or module.__all__
    return [
        name
        for name in sorted(names, key=str.lower)
        if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
    ]


def names_of_all() -> Iterator[tuple[list[str], Any]]:
    """Yields each public object with all the names it has, in the order of the modules."""
    found: dict[int, tuple[list[str], Any]] = {}
    for module in MODULES:
        for name in public(module):
            value = getattr(module, name)
            found.setdefault(id(value), ([], value))[0].append(f"{module.__name__}.{name}")
    yield from found.values()


def signature(value: Any) -> str:
    """Returns names and defaults of the arguments; types are in the docstring's text."""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(value).parameters.values()
        if one.name not in {"self", "cls"}
    ]
    return str(inspect.Signature(parameters))


def is_report(value: Any) -> bool:
    """Tells whether a class is a result: of the engine, or a dataclass without arguments that matter."""
    return inspect.isclass(value) and type(value).__name__ == "nb_type"


def public_base(value: type) -> type | None:
    """Returns the nearest base that has a section of its own, or is torch's."""
    known = [one for _, one in names_of_all() if inspect.isclass(one)]
    bases = value.__mro__[1:]
    return next((b for b in bases if b in known or b.__module__.startswith("torch.")), None)


def members(value: type) -> Iterator[tuple[str, Any]]:
    """Yields public methods and properties that a class has of this package, without its public base's."""
    stop = public_base(value)
    seen = set()
    for base in value.__mro__:
        if base is stop:
            return
        if base.__module__.startswith("varve"):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in seen:
                    seen.add(name)
                    yield name, member


def is_method(member: Any) -> bool:
    """Tells whether a member of a class is called, and has a signature."""
    return inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)


def fields(value: type) -> list[str]:
    """Returns the fields of a report or dataclass, and the properties of a class."""
    if dataclasses.is_dataclass(value):
        return [one.name for one in dataclasses.fields(value)]
    return [name for name, one in members(value) if not is_method(one)]


def methods(value: type) -> list[str]:
    """Returns the methods of a class, each with its arguments."""
    found = []
    for name, one in members(value):
        if is_method(one) and not is_report(value):
            function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
            found.append(f"{name}{signature(function)}")
    return found


def entry(names: list[str], value: Any) -> str:
    """Returns the section of one public object."""
    text = inspect.getdoc(value) or ""
    lines = ["### " + ", ".join(f"`{name}`" for name in names), ""]
    is_class = inspect.isclass(value)
    called = not (is_report(value) or value in MADE)
    if called:
        lines += [f"`{names[-1].rpartition('.')[2]}{signature(value)}`", ""]
    base = public_base(value) if is_class else None
    lines.append(sentence(text) + (f" A subclass of `{base.__name__}`." if base else ""))
    shown = {one.strip("*") for one in inspect.signature(value).parameters} if called else set()
    listed = [name for name in (fields(value) if is_class else []) if name not in shown]
    if listed:
        lines += ["", "Fields: " + ", ".join(f"`{name}`" for name in listed) + "."]
    if is_class and methods(value) and not (base and base.__module__.startswith("torch.")):
        lines += ["", "Methods: " + ", ".join(f"`{one}`" for one in methods(value)) + "."]
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Returns the table of exceptions and warnings."""
    lines = ["| exception | is also | raised when |", "|---|---|---|"]
    for names, value in names_of_all():
        if is_error(value) and not names[0].startswith(ELSEWHERE):
            also = [base for base in value.__mro__[1:] if base.__module__ == "builtins"]
            last = [one for one in also if not any(one in b.__mro__[1:] for b in also)]
            kept = ", ".join(f"`{base.__name__}`" for base in last)
            lines.append(f"| `{names[0]}` | {kept} | {sentence(inspect.getdoc(value) or '')} |")
    return "\n".join(lines) + "\n"


def is_error(value: Any) -> bool:
    """Tells whether it is an exception or a warning of this package."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def api() -> str:
    """Returns the sections of all public objects but exceptions, by module."""
    parts, module = [], ""
    for names, value in names_of_all():
        if not is_error(value):
            if module != (module := names[0].rpartition(".")[0]):
                parts.append(f"## {module}\n")
            parts.append(entry(names, value))
    return "\n".join(parts)


# ---- C++ ----


def options_of(header: str, struct: str) -> Iterator[tuple[str, str, str]]:
    """Yields name, default and meaning of each field of a struct."""
    text = (HEADERS / header).read_text()
    body = re.search(rf"^struct {struct}(?: : \w+)? {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    assert body is not None, f"{struct} is not in {header}"
    comment: list[str] = []
    for line in map(str.strip, body[1].splitlines()):
        if line.startswith("///"):
            comment.append(line[3:].strip())
        elif found := FIELD.match(line):
            beside = found["rest"].partition("///<")[2].strip()
            yield found["name"], found["is"] or "", clause(beside or " ".join(comment))
            comment = []
        else:
            comment = []


def options() -> str:
    """Returns a list of fields for each struct of options."""
    parts = []
    for header, structs in STRUCTS.items():
        for struct in structs:
            parts += [f"**`{struct}`** ([{header}](../include/varve/{header}))", ""]
            bare = []
            for name, default, words in options_of(header, struct):
                field = f"`{name}` = `{default}`" if default else f"`{name}`"
                if words:
                    parts.append(f"- {field}: {words}")
                else:
                    bare.append(field)
            if bare:
                parts.append("- " + ", ".join(bare))
            parts.append("")
    return "\n".join(parts)


# ---- the command line ----


def verbs() -> str:
    """Returns a table of the verbs, as `varve --help` lists them."""
    program = Path(sys.executable).with_name("varve")
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    listed = done.stdout.partition("Subcommands:\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^  (\w+) +(.*)$", listed, re.MULTILINE)
    return (
        "\n".join(["| verb | |", "|---|---|", *(f"| `{verb}` | {what} |" for verb, what in rows)])
        + "\n"
    )


# ---- the pages ----

PARTS: dict[str, Callable[[], str]] = {
    "api": api,
    "errors": errors,
    "options": options,
    "verbs": verbs,
}
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def page(path: Path) -> str:
    """Returns the text that a page should have."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", path.read_text())


def main() -> int:
    """Writes the pages, or checks them."""
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        wanted = page(path)
        if wanted != path.read_text():
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(wanted)
    print(*(f"{name} is not what docs/generate.py makes" for name in stale), sep="\n")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
