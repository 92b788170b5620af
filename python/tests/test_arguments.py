"""Arguments as people give them: dtypes of any library, and wrong ones, which are errors of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

SHARED = ["collect_garbage", "convert", "diff", "list_checkpoints", "repair", "verify"]


@pytest.fixture
def ck(tmp_path: Path) -> Path:
    varve.save({"w": np.arange(3, dtype=np.float32), "n": 1}, tmp_path / "ck")
    return tmp_path / "ck"


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "bf16", "torch.bfloat16"], ids=repr)
def test_bfloat16_by_any_name(ck: Path, dtype: Any) -> None:
    varve.convert(ck, ck.parent / "out", "safetensors", dtype=dtype)
    assert varve.torch.read(ck.parent / "out")["w"].dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [np.float64, np.dtype("f8"), "fp64", "double", torch.double])
def test_float64_by_any_name(ck: Path, dtype: Any) -> None:
    varve.convert(ck, ck.parent / "out", "safetensors", dtype=dtype)
    assert varve.read(ck.parent / "out")["w"].dtype == np.float64


CALLS: dict[str, Callable[[Path], Any]] = {
    "dtype=int": lambda ck: varve.convert(ck, "out", "hf", dtype=3),
    "dtype=unknown": lambda ck: varve.convert(ck, "out", "hf", dtype="bf17"),
    "dtype=object": lambda ck: varve.convert(ck, "out", "hf", dtype=object()),
    "to=": lambda ck: varve.convert(ck, "out", "zip"),
    "to=None": lambda ck: varve.convert(ck, "out", None),  # type: ignore[arg-type]
    "shard_size=": lambda ck: varve.convert(ck, "out", "hf", shard_size="5GB"),  # type: ignore[arg-type]
    "shard_size=0": lambda ck: varve.convert(ck, "out", "hf", shard_size=0),
    "shard_size=float": lambda ck: varve.convert(ck, "out", "hf", shard_size=1e9),  # type: ignore[arg-type]
    "memory_budget=": lambda ck: varve.convert(ck, "out", "hf", memory_budget=-1),
    "include=": lambda ck: varve.convert(ck, "out", "hf", include=3),  # type: ignore[arg-type]
    "exclude=": lambda ck: varve.convert(ck, "out", "hf", exclude=[3]),  # type: ignore[list-item]
    "rename=": lambda ck: varve.convert(ck, "out", "hf", rename=["a"]),  # type: ignore[arg-type]
    "everything=": lambda ck: varve.convert(ck, "out", "hf", everything="yes"),  # type: ignore[arg-type]
    "overwrite=": lambda ck: varve.convert(ck, "out", "hf", overwrite="yes"),  # type: ignore[arg-type]
    "dry_run=": lambda ck: varve.collect_garbage(ck.parent, dry_run="no"),  # type: ignore[arg-type]
    "allow_pickle= of save": lambda ck: varve.save({}, ck / "x", allow_pickle=1),  # type: ignore[arg-type]
    "allow_pickle= of read": lambda ck: varve.read(ck, allow_pickle="y"),  # type: ignore[arg-type]
    "allow_pickle= of load": lambda ck: varve.load({}, ck, allow_pickle=None),  # type: ignore[arg-type]
    "use_agent=": lambda ck: varve.read(ck, use_agent="no"),  # type: ignore[arg-type]
    "flat=": lambda ck: varve.read(ck, flat="w"),  # type: ignore[arg-type]
    "cast=": lambda ck: varve.load({"n": 0}, ck, cast=torch.float32),  # type: ignore[arg-type]
    "assign=": lambda ck: varve.torch.load({"n": 0}, ck, assign="w"),  # type: ignore[arg-type]
    "overwrite= of save": lambda ck: varve.save({}, ck, overwrite="yes"),  # type: ignore[arg-type]
    "format=": lambda ck: varve.torch.save({}, ck / "x", format=3),  # type: ignore[arg-type]
    "format=zip": lambda ck: varve.torch.save({}, ck / "x", format="zip"),
    "save_id": lambda ck: varve.torch.save({}, ck / "x", coordinate=False, save_id=7),  # type: ignore[arg-type]
    "timeout=": lambda ck: varve.torch.load({"n": 0}, ck, timeout="1m"),  # type: ignore[arg-type]
    "progress of load": lambda ck: varve.load({}, ck, progress=3),  # type: ignore[arg-type]
    "progress": lambda ck: varve.save({}, ck / "x", progress=3),  # type: ignore[arg-type]
    "dict": lambda ck: varve.save([1], ck / "x"),  # type: ignore[arg-type]
    "destination": lambda ck: varve.load([1], ck),
    "destination of torch": lambda ck: varve.torch.load(torch.ones(3), ck),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_an_error_of_ours_that_names_it(
    call: str, ck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ck.parent)
    with pytest.raises(varve.InvalidArgumentError) as caught:
        CALLS[call](ck)
    assert call.split("=")[0].split(" ")[0] in str(caught.value)
    assert "incompatible function arguments" not in str(caught.value)
    assert [path.name for path in ck.parent.iterdir()] == ["ck"]


_STATE = {f"layer{i}": torch.ones(3) for i in range(500)}

_SWAPPED: dict[str, Callable[[Path], object]] = {
    "save": lambda ck: varve.save(str(ck), _STATE),  # type: ignore[arg-type]
    "load": lambda ck: varve.load(ck, _STATE),  # type: ignore[arg-type]
    "torch save": lambda ck: varve.torch.save(ck, _STATE),  # type: ignore[arg-type]
    "torch load": lambda ck: varve.torch.load(str(ck), _STATE),  # type: ignore[arg-type]
    "async_save": lambda ck: varve.torch.async_save(ck, _STATE),  # type: ignore[arg-type]
    "module": lambda ck: varve.torch.save(ck, torch.nn.Linear(2, 2)),  # type: ignore[arg-type]
    "read": lambda ck: varve.torch.read(_STATE),  # type: ignore[arg-type]
    "overwrite": lambda ck: varve.torch.save({}, ck, overwrite=_STATE),  # type: ignore[arg-type]
    "timeout": lambda ck: varve.torch.save({}, ck, timeout=_STATE),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", _SWAPPED)
def test_a_state_in_the_place_of_another_argument_is_never_printed(call: str, ck: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError) as caught:
        _SWAPPED[call](ck)
    text = str(caught.value)
    assert len(text) < 200 and "\n" not in text and "tensor(" not in text
    if call not in ("overwrite", "timeout"):
        assert "is not a path" in text and "the state is the first argument" in text


def test_errors_name_options_as_python_spells_them(ck: Path) -> None:
    with pytest.raises(varve.CheckpointExistsError, match="overwrite=True"):
        varve.save({}, ck)
    varve.torch.save({}, ck.parent / "alone", coordinate=False)
    with pytest.raises(varve.CheckpointExistsError, match="overwrite=True"):
        varve.torch.save({}, ck.parent / "alone", coordinate=False)
    varve.convert(ck, ck.parent / "out", "safetensors")
    with pytest.raises(varve.CheckpointExistsError, match="overwrite=True"):
        varve.convert(ck, ck.parent / "out", "safetensors")


@pytest.mark.parametrize("name", SHARED)
def test_functions_of_checkpoints_are_in_both_packages(name: str) -> None:
    assert getattr(varve.torch, name) is getattr(varve, name)
    assert name in varve.torch.__all__
    assert name in varve.__all__
