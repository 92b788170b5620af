"""Options and reports of the engine as Python has them: what the stubs in varve/_core say, and values."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

import varve
from varve import _core
from varve._core import background

STUBS = Path(varve.__file__).with_name("_core")


def structs() -> dict[str, list[ast.AnnAssign]]:
    """The fields that the stubs declare of each bound struct."""
    found: dict[str, list[ast.AnnAssign]] = {"_Struct": []}
    stubs = ("__init__.pyi", "background.pyi", "manage.pyi", "uploads.pyi")
    bodies = [ast.parse((STUBS / name).read_text()).body for name in stubs]
    for node in (node for body in bodies for node in body):
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.ClassDef) and len(bases) == 1 and bases[0] in found:
            own = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            found[node.name] = found[bases[0]] + own
    return {name: fields for name, fields in found.items() if not name.startswith("_")}


STRUCTS = structs()


def bound_class(name: str) -> Any:
    """The class that a stub declares."""
    places = (_core, _core.background, _core.manage, _core.uploads)
    return next(getattr(place, name) for place in places if hasattr(place, name))


@pytest.mark.parametrize("name", STRUCTS)
def test_the_stub_declares_the_fields_that_a_struct_has(name: str) -> None:
    declared = {ast.unparse(field.target): ast.unparse(field.annotation) for field in STRUCTS[name]}
    readable = {field for field, kind in declared.items() if not kind.startswith("InitVar")}
    bound = bound_class(name)
    assert {field for field in vars(bound) if not field.startswith("_")} == readable
    made = bound()
    bound(**{field: getattr(made, field) for field in readable})
    bound(**{field: None for field in declared.keys() - readable})


def test_a_misspelled_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"LoadOptions\(\) takes no stirct"):
        _core.LoadOptions(stirct=True)  # type: ignore[call-arg]


def test_fields_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        _core.LoadOptions().cast = True  # type: ignore[misc]


WRONG: dict[str, tuple[type, str, Any, str]] = {
    "a flag": (_core.LoadOptions, "cast", 1, "cast=1: want True or False"),
    "a choice": (_core.LoadOptions, "strict", "very", 'want False, True or "exact"'),
    "a name of a bool": (_core.LoadOptions, "strict", "True", "strict='True': want False, True"),
    "seconds": (_core.LoadOptions, "timeout", -1, "timeout=-1: want a number of seconds from 0 on"),
    "no number": (_core.LoadOptions, "timeout", float("nan"), "want a number of seconds"),
    "a number": (_core.LoadOptions, "max_gap_bytes", -1, "want a whole number from 0 on"),
    "a format": (_core.SaveOptions, "format", "zip", 'format=\'zip\': want "varve", "dcp" or "hf"'),
    "no written format": (_core.SaveOptions, "format", "torch", 'want "varve", "dcp" or "hf"'),
    "an id": (_core.SaveOptions, "save_id", b"short", "save_id=b'short': want 16 bytes"),
    "an overwrite": (_core.SaveOptions, "overwrite", "yes", 'want False, True or "damaged"'),
    "an optional": (
        background.AsyncSaveOptions,
        "deadline",
        "1s",
        "want None or a number of seconds",
    ),
    "options in options": (background.AsyncSaveOptions, "save", {}, "want a value of another type"),
    "when busy": (background.StagerOptions, "when_busy", "go", 'want "wait", "skip" or "replace"'),
    "a target": (_core.ConvertOptions, "to", None, 'want "varve", "dcp", "safetensors", "hf" or'),
    "a function": (_core.LoadOptions, "progress", 3, "want a function of bytes done"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_that_a_field_cannot_have_is_refused_by_name(case: str) -> None:
    kind, field, value, message = WRONG[case]
    with pytest.raises(varve.InvalidArgumentError) as caught:
        kind(**{field: value})
    assert message in str(caught.value)


PUBLIC = [name for name in STRUCTS if not bound_class(name).__module__.startswith("varve._core")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_report_is_where_it_says_and_can_be_pickled(name: str) -> None:
    kind = bound_class(name)
    assert getattr(importlib.import_module(kind.__module__), name) is kind
    assert "Attributes:" in kind.__doc__
    assert all(f"\n    {field}: " in kind.__doc__ for field in vars(kind) if field[0] != "_")
    back = pickle.loads(pickle.dumps(kind()))
    assert type(back) is kind and back == kind()


def test_a_name_that_is_no_unicode_survives_pickling() -> None:
    entry = varve.CheckpointEntry(name="step-\udcff", detail="why")
    assert pickle.loads(pickle.dumps(entry)) == entry and entry.name == "step-\udcff"


def report(**changed: Any) -> varve.LoadReport:
    return varve.LoadReport(**{"loaded": 3, "seconds": 0.5, "missing": ["a"], **changed})


def test_reports_are_values() -> None:
    first = report()
    assert first == report() and first != report(loaded=4) and first != "report"
    for other in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert type(other) is varve.LoadReport and other == first
    assert repr(first) == (
        "LoadReport(loaded=3, bytes_read=0, storage_bytes=0, bytes_from_agent=0, device_bytes=0, "
        "copied_ahead=CopiedAhead(tensors=0, problem=''), seconds=0.5, missing=['a'], "
        "unexpected=[], mismatched=[], kept=[], merged=[], resized=[], phases=[])"
    )
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)
