"""Files of torch.save that the engine writes: torch and the engine open them, shared memory stays shared."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest
import torch

import varve.torch
from varve.errors import InvalidArgumentError, UnsupportedError
from varve.olmo._pickle import write


def some_state() -> dict[str, Any]:
    base = torch.arange(1 << 20, dtype=torch.float32)
    return {
        "whole": base,
        "view": base[100:200],
        "steps": base.view(1024, 1024)[::2, ::3],
        "half": torch.randn(7, 5).to(torch.bfloat16),
        "nothing": torch.empty(0, 3),
        "number": torch.tensor(True),
        "ordered": OrderedDict(a=1, b=[2.5, None, "text"]),
        "where": Path("a/b"),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
            assert found[name].stride() == value.stride(), name
        else:
            assert found[name] == value, name


def test_torch_opens_what_the_engine_wrote(tmp_path: Path) -> None:
    state = some_state()
    path = write(tmp_path / "folder" / "rank0.pt", state)
    found = torch.load(path, weights_only=False)
    assert_same(found, state)
    assert type(found["ordered"]) is OrderedDict
    assert found["parameter"].requires_grad
    assert found["view"].untyped_storage().data_ptr() == found["whole"].untyped_storage().data_ptr()
    assert [entry.name for entry in path.parent.iterdir()] == ["rank0.pt"]
    # As torch.save stores it: shared memory once.
    torch.save(state, tmp_path / "torch.pt")
    assert abs(path.stat().st_size - (tmp_path / "torch.pt").stat().st_size) < 8192


def test_paths_come_back_as_they_are(tmp_path: Path) -> None:
    paths = [Path(text) for text in ("/", "/a", "/a/b", "a", "a/b", ".", "//a/b", "..")]
    path = write(tmp_path / "train.pt", {"paths": paths})
    assert varve.torch.read(path) == {"paths": paths}
    torch.save({"paths": paths}, path)
    assert varve.torch.read(path) == {"paths": paths}


def test_the_file_has_the_checksums_of_its_storages(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.pt", some_state())
    assert zipfile.ZipFile(path).testzip() is None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    problems = varve.verify(path)
    assert len(problems) == 1
    assert "checksum" in str(problems[0])


def test_memory_that_has_two_types_is_refused_as_torch_does(tmp_path: Path) -> None:
    words = torch.arange(4, dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="same memory"):
        write(tmp_path / "rank0.pt", {"a": words, "b": words.view(torch.float32)})
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "train.pt"
    write(path, {"step": 1})
    write(path, {"step": 2})
    assert torch.load(path) == {"step": 2}
    with pytest.raises(pickle.PicklingError, match='the value of "step" cannot be pickled'):
        write(path, {"seed": 1, "step": lambda: 3})
    assert torch.load(path) == {"step": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.pt"]


def test_what_no_load_here_makes_is_warned_of_when_it_is_written(tmp_path: Path) -> None:
    state = {"step": 7, "queue": deque([1]), "tensor": torch.ones(2)}
    with pytest.warns(
        UserWarning, match=r"will not load: train\.pt: .* collections\.deque, in \"queue\""
    ):
        write(tmp_path / "train.pt", state)
    opened = torch.load(tmp_path / "train.pt", weights_only=False)
    assert (opened["step"], opened["queue"]) == (7, deque([1]))
    with pytest.raises(UnsupportedError, match=r"collections\.deque"):
        varve.torch.read(tmp_path / "train.pt")
