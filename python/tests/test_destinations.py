"""Loads into destinations whose containers differ from the saved ones, and what strict reports."""

from __future__ import annotations

import collections
import copy
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import varve
import varve.torch
from varve import _core
from varve._core import states


def tensor(value: float = 1.0, size: int = 3) -> torch.Tensor:
    return torch.full((size,), float(value))


def check(saved: Any, target: dict[str, Any], path: Path) -> None:
    """Loading `saved` into `target` makes them equal."""
    varve.torch.save(saved, path)
    varve.torch.load(target, path)
    assert repr(target) == repr(varve.torch.read(path))


@pytest.mark.parametrize(
    "before",
    [
        [],
        [None],
        [tensor(0)],
        [tensor(0), tensor(0)],
        [0, 1, 2],
        {},
        None,
        7,
        "text",
        (),
    ],
    ids=repr,
)
def test_a_list_of_tensors_fills_whatever_list_or_value_is_there(
    before: Any, tmp_path: Path
) -> None:
    check({"l": [tensor(1), tensor(2)]}, {"l": copy.deepcopy(before)}, tmp_path / "c")


@pytest.mark.parametrize("before", [[], [tensor(0)], [tensor(0), 5, None], [{}], None], ids=repr)
@pytest.mark.parametrize(
    "saved",
    [
        [tensor(1), {"x": tensor(2), "y": 3}],
        [{"x": [tensor(4)]}],
        [1, 2, 3],
        [],
        {},
        {"k": 1},
        None,
    ],
    ids=repr,
)
def test_containers_of_other_shapes_end_up_as_they_were_saved(
    saved: Any, before: Any, tmp_path: Path
) -> None:
    before = copy.deepcopy(before)  # One object of the table would be filled by several tests.
    holds_tensor = isinstance(before, list) and bool(before) and torch.is_tensor(before[0])
    fits = isinstance(saved, list) and bool(saved) and torch.is_tensor(saved[0])
    if holds_tensor and not fits:
        varve.torch.save({"v": saved}, tmp_path / "c")
        with pytest.raises(varve.InvalidArgumentError, match="mismatched: v"):
            varve.torch.load({"v": before}, tmp_path / "c")
    else:
        check({"v": saved}, {"v": before}, tmp_path / "c")


def test_a_list_in_the_destination_stays_the_same_object(tmp_path: Path) -> None:
    varve.torch.save({"l": [tensor(1), tensor(2), 3]}, tmp_path / "c")
    held = tensor(0)
    values: list[Any] = [held]
    varve.torch.load({"l": values}, tmp_path / "c")
    assert values[0] is held
    assert torch.equal(held, tensor(1))
    assert torch.equal(values[1], tensor(2))
    assert values[2] == 3


def test_created_containers_have_the_saved_types_and_order(tmp_path: Path) -> None:
    saved = {"s": collections.OrderedDict([(2, tensor(2)), ("a", collections.Counter({5: 1}))])}
    varve.torch.save(saved, tmp_path / "c")
    target: dict[str, Any] = {"s": {}}
    varve.torch.load(target, tmp_path / "c")
    assert type(target["s"]) is collections.OrderedDict
    assert list(target["s"]) == [2, "a"]
    assert type(target["s"]["a"]) is collections.Counter


def test_memory_that_is_there_is_filled_and_never_replaced(tmp_path: Path) -> None:
    varve.torch.save({"a": {"b": [tensor(1), {"c": tensor(2)}]}}, tmp_path / "c")
    first, second = tensor(0), tensor(0)
    state = {"a": {"b": [first, {"c": second}]}}
    varve.torch.load(state, tmp_path / "c")
    assert state["a"]["b"][0] is first
    assert torch.equal(first, tensor(1))
    assert torch.equal(second, tensor(2))


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )


def trained(steps: int, **options: Any) -> dict[str, Any]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optim": optimizer, "sched": scheduler, "step": steps}


def equal_state(a: Any, b: Any) -> bool:
    if hasattr(a, "state_dict"):
        a, b = a.state_dict(), b.state_dict()
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal_state(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal_state(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_stateful_objects_resume_whether_or_not_they_had_taken_a_step(
    steps_before: int, amsgrad: bool, tmp_path: Path
) -> None:
    saved = trained(4, amsgrad=amsgrad)
    varve.torch.save(saved, tmp_path / "c")
    target = trained(steps_before, amsgrad=amsgrad)
    weight = target["model"][0].weight
    varve.torch.load(target, tmp_path / "c")
    assert equal_state(saved, target)
    assert target["model"][0].weight is weight
    assert type(target["sched"].milestones) is collections.Counter
    assert target["optim"].param_groups[0]["lr"] == saved["optim"].param_groups[0]["lr"]


def test_a_checkpoint_from_before_the_first_step_loads_into_a_fresh_optimizer(
    tmp_path: Path,
) -> None:
    saved = trained(0)
    varve.torch.save(saved, tmp_path / "c")
    target = trained(0)
    varve.torch.load(target, tmp_path / "c")
    assert equal_state(saved, target)


def test_a_state_dict_that_does_not_need_loading_back_is_filled_in_place(tmp_path: Path) -> None:
    saved = trained(2)
    varve.torch.save({"model": saved["model"].state_dict()}, tmp_path / "c")
    model = network()
    varve.torch.load({"model": model.state_dict()}, tmp_path / "c")
    assert equal_state(model, saved["model"])
    other = network()
    varve.torch.load({"model": other}, tmp_path / "c")
    assert equal_state(other, saved["model"])


def saved_and_wanted() -> tuple[dict[str, Any], dict[str, Any]]:
    saved = {
        "ok": tensor(1),
        "shape": tensor(1, 3),
        "dtype": tensor(1),
        "kind": 5,
        "box": {"in": 1},
        "extra": tensor(1),
        "more": {"x": 1},
        "value": 8,
    }
    wanted = {
        "ok": tensor(0),
        "shape": tensor(0, 4),
        "dtype": tensor(0).to(torch.float64),
        "kind": tensor(0),
        "box": tensor(0),
        "gone": tensor(0),
        "away": {"y": 0, "z": tensor(0)},
        "value": 0,
    }
    return saved, wanted


def test_strict_names_everything_that_differs_and_changes_nothing(tmp_path: Path) -> None:
    saved, wanted = saved_and_wanted()
    before = repr(wanted)
    varve.torch.save(saved, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.torch.load(wanted, tmp_path / "c")
    text = str(caught.value)
    assert "missing from the checkpoint: away.y, away.z, gone" in text
    assert "unexpected in the checkpoint: extra, more.x" in text
    for mismatch in (
        "shape (stored float32[3], wanted float32[4])",
        "dtype (stored float32[3], wanted float64[3])",
        "kind (stored a plain value, wanted a tensor)",
        "box (stored a dict, wanted a tensor)",
    ):
        assert mismatch in text
    assert repr(wanted) == before


def test_without_strict_the_rest_is_loaded_and_the_differences_reported(tmp_path: Path) -> None:
    saved, wanted = saved_and_wanted()
    varve.torch.save(saved, tmp_path / "c")
    report = varve.torch.load(wanted, tmp_path / "c", strict=False)
    assert report.missing == ["away.y", "away.z", "gone"]
    assert report.unexpected == ["extra", "more.x"]
    assert [m.split(" ")[0] for m in report.mismatched] == ["box", "dtype", "kind", "shape"]
    assert torch.equal(wanted["ok"], tensor(1))
    assert wanted["value"] == 8
    for untouched in ("shape", "dtype", "kind", "box", "gone"):
        assert not wanted[untouched].any()
    assert wanted["away"]["y"] == 0


def test_tensors_of_a_list_longer_than_the_saved_one_are_reported_missing(tmp_path: Path) -> None:
    varve.torch.save({"l": [tensor(1)]}, tmp_path / "c")
    state: dict[str, list[Any]] = {"l": [tensor(0), 5, tensor(0)]}
    with pytest.raises(
        varve.InvalidArgumentError, match=r"missing from the checkpoint: l\.1, l\.2"
    ):
        varve.torch.load(state, tmp_path / "c")
    assert not state["l"][0].any()
    report = varve.torch.load(state, tmp_path / "c", strict=False)
    assert report.missing == ["l.1", "l.2"]
    assert len(state["l"]) == 3
    assert state["l"][0].all()


def test_a_checkpoint_without_containers_is_matched_by_names(tmp_path: Path) -> None:
    weight = tensor(5)
    saved = states.State()
    saved.add("a.b.0", _core.DTYPE_NAMES.index("float32"), (3,), weight.data_ptr())
    saved.add_object("a.n", _core.encode_value(7, "a.n"))
    saved.add_object("extra", _core.encode_value(1, "extra"))
    _core.save(saved, str(tmp_path / "c"), _core.SaveOptions(), None)
    state: dict[str, Any] = {"a": {"b": [tensor(0)], "n": None}, "gone": 3}
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.torch.load(state, tmp_path / "c")
    assert "missing from the checkpoint: gone\n" in str(caught.value)
    assert "unexpected in the checkpoint: extra" in str(caught.value)
    report = varve.torch.load(state, tmp_path / "c", strict=False)
    assert (report.missing, report.unexpected) == (["gone"], ["extra"])
    assert torch.equal(state["a"]["b"][0], weight)
    assert (state["a"]["n"], state["gone"]) == (7, 3)
    assert list(varve.torch.read(tmp_path / "c")) == ["a.b.0", "a.n", "extra"]


def test_a_state_that_is_no_dict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="must be a dict, not a list"):
        varve.torch.save([tensor()], tmp_path / "c")  # type: ignore[arg-type]


def test_loading_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError, match="there is no checkpoint at"):
        varve.torch.load({}, tmp_path / "c")


def test_a_value_in_a_read_only_mapping_is_a_mismatch_and_nothing_changes(tmp_path: Path) -> None:
    varve.torch.save({"config": {"lr": 1, "w": tensor(1)}, "model": tensor(1)}, tmp_path / "c")
    config = types.MappingProxyType({"lr": 0, "w": tensor(0)})
    state = {"config": config, "model": tensor(0)}
    with pytest.raises(
        varve.InvalidArgumentError, match=r"config\.lr .*read-only mapping: make it"
    ):
        varve.torch.load(state, tmp_path / "c")
    assert not state["model"].any() and not config["w"].any()
    report = varve.torch.load(state, tmp_path / "c", strict=False)
    assert len(report.mismatched) == 1 and config["lr"] == 0
    assert state["model"].all() and config["w"].all(), "tensors are filled where they are"
