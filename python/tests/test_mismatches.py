"""A load that does not fit names the stored and the wanted kind of each entry, and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import varve
import varve.torch

ONES = torch.ones
SPARSE = torch.eye(3).to_sparse()

#: Stored, wanted, and what the error says.
CASES: dict[str, tuple[Any, Any, str]] = {
    "shape": (ONES(3, 4), ONES(4, 3), "stored float32[3, 4], wanted float32[4, 3]"),
    "dtype": (ONES(3), ONES(3).int(), "stored float32[3], wanted int32[3]"),
    "tensor for dict": (ONES(3), {"a": ONES(3)}, "stored a tensor, wanted a dict with tensors"),
    "dict for tensor": ({"a": ONES(3)}, ONES(3), "stored a dict, wanted a tensor"),
    "list for tensor": ([ONES(3)], ONES(3), "stored a list, wanted a tensor"),
    "list for dict": ([ONES(3)], {"a": ONES(3)}, "stored a list, wanted a dict with tensors"),
    "dict for list": ({"0": ONES(3)}, [ONES(3)], "stored a dict, wanted a list with tensors"),
    "value for tensor": (3, ONES(3), "stored a plain value, wanted a tensor"),
    "value for dict": (3, {"a": ONES(3)}, "stored a plain value, wanted a dict with tensors"),
    "sparse for plain": (SPARSE, ONES(3, 3), "stored a torch.sparse_coo, wanted a plain tensor"),
    "plain for sparse": (ONES(3, 3), SPARSE, "stored a plain tensor, wanted a torch.sparse_coo"),
    "sparse shape": (
        SPARSE,
        torch.eye(4).to_sparse(),
        "stored a torch.sparse_coo of shape [3, 3], wanted [4, 4])",
    ),
}


def refusal(stored: Any, wanted: Any, path: Path, **options: Any) -> str:
    varve.torch.save(stored, path)
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.torch.load(wanted, path, **options)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_a_mismatch_says_what_is_stored_and_what_is_wanted(case: str, tmp_path: Path) -> None:
    stored, wanted, text = CASES[case]
    error = refusal({"w": stored}, {"w": wanted}, tmp_path / "a")
    assert f"mismatched: w ({text}" in error
    assert error.count("wanted") == 1


def test_only_options_that_would_help_are_named(tmp_path: Path) -> None:
    def remedies(name: str, stored: Any, wanted: Any) -> tuple[bool, bool]:
        error = refusal({"w": stored}, {"w": wanted}, tmp_path / name)
        assert "strict=False takes what fits" in error
        return "cast=True" in error, 'fit="overlap"' in error

    assert remedies("shape", ONES(3), ONES(4)) == (False, True)
    assert remedies("dimensions", ONES(3), ONES(3, 1)) == (False, False)
    assert remedies("dtype", ONES(3), ONES(3).half()) == (True, False)
    assert remedies("integers", ONES(3), ONES(3).int()) == (False, False)
    assert remedies("both", ONES(3), ONES(4).half()) == (True, True)
    assert remedies("container", ONES(3), {"a": ONES(3)}) == (False, False)


def test_many_mismatches_are_counted_and_the_first_of_them_shown(tmp_path: Path) -> None:
    stored = {f"l.{i}": ONES(3) for i in range(30)}
    error = refusal(stored, {name: ONES(4) for name in stored}, tmp_path / "a")
    assert "mismatched, 30 entries: l.0 (stored float32[3], wanted float32[4]), l.1 (" in error
    assert "l.9 (" in error and "l.10 (" not in error and "and 20 more" in error


def test_keys_that_the_destination_lacks_are_no_fault_of_its_names(tmp_path: Path) -> None:
    varve.torch.save({"a": ONES(1), "b": ONES(1)}, tmp_path / "a")
    with pytest.warns(UserWarning, match="has none of the entries that `keys` chooses"):
        varve.torch.load({"a": ONES(1)}, tmp_path / "a", keys="b")


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_load_of_one_file_names_the_file(name: str, tmp_path: Path) -> None:
    to: Any = {"m.pt": "torch", "m.safetensors": "safetensors"}[name]
    varve.torch.save({"w": torch.ones(2)}, tmp_path / "step-1")
    varve.convert(tmp_path / "step-1", tmp_path / name, to)
    differ = re.escape(f"load {tmp_path / name}: the checkpoint and the destination differ")
    with pytest.raises(varve.InvalidArgumentError, match=differ) as told:
        varve.torch.load({"w": torch.ones(3)}, tmp_path / name)
    assert told.value.path == str(tmp_path / name)
    with pytest.warns(UserWarning, match=re.escape(f"load {tmp_path / name}: nothing was loaded")):
        varve.torch.load({}, tmp_path / name)
    assert varve.open(tmp_path / name).directory == str(tmp_path)
