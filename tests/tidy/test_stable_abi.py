"""The binding calls nothing of CPython that the stable ABI hides: from Python 3.12 on it is built for that."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "python" / "src").glob("*.[ch]*"))
CALL = re.compile(r"\b(Py[A-Z_]\w*)\s*\(")
COMMENT = re.compile(r"//.*")
#: In the stable ABI since 3.12; the headers of 3.11 do not have them there.
NEW_IN_3_12 = {"PyObject_Vectorcall"}
DECLARED_BY_US = re.compile(r'extern "C" \w+ (Py\w+)\(')


def hidden(names: set[str]) -> list[str]:
    """Returns those that CPython's headers do not declare for the stable ABI of 3.12."""
    text = "#define Py_LIMITED_API 0x030C0000\n#include <Python.h>\n"
    for name in sorted(names):  # A macro has no address.
        text += f"#ifndef {name}\nvoid* of_{name} = (void*)&{name};\n#endif\n"
    done = subprocess.run(
        ["g++", "-x", "c++", "-fsyntax-only", "-I", sysconfig.get_path("include"), "-"],
        input=text,
        capture_output=True,
        text=True,
    )
    return sorted(set(re.findall(r"error: [^\n]*?(Py\w+)[^\n]*not declared", done.stderr)))


def test_the_binding_calls_what_the_stable_abi_has() -> None:
    text = "\n".join(COMMENT.sub("", path.read_text()) for path in SOURCES)
    called = set(CALL.findall(text)) - set(DECLARED_BY_US.findall(text))
    assert "PyErr_CheckSignals" in called
    assert hidden(called - NEW_IN_3_12) == []


def test_a_call_that_it_hides_is_found() -> None:
    assert hidden({"PyObject_LengthHint", "PyErr_CheckSignals"}) == ["PyObject_LengthHint"]
