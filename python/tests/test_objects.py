"""Objects with a state dict get all that was saved of them; what nothing takes is told."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import varve
import varve.torch
from varve.torch import PerRank


class Holder:
    """An object whose state dict is its value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, value: Any) -> None:
        self.value = value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def whole(value: Any, path: Path, before: Any) -> None:
    """An object that holds `before` gets `value`, alone and inside PerRank, without a warning."""
    varve.torch.save({"o": Holder(value), "mine": PerRank(Holder(value))}, path)
    alone, mine = Holder(copy.deepcopy(before)), Holder(copy.deepcopy(before))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = varve.torch.load({"o": alone, "mine": PerRank(mine)}, path, strict="exact")
    assert report.unexpected == []
    assert same(value, alone.value)
    assert same(value, mine.value)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        torch.arange(3.0),
        [torch.arange(3.0), torch.ones(2)],
        [1, "a"],
        [{"a": 1}],
        None,
        5,
        "text",
        b"bytes",
        (1, (2, "x")),
        {},
    ],
    ids=repr,
)
def test_a_state_dict_may_be_anything_that_can_be_saved(
    value: Any, fresh: bool, tmp_path: Path
) -> None:
    before = None if fresh else [torch.zeros(3)] if isinstance(value, list) else 0
    whole(value, tmp_path / "c", before)


def test_a_tensor_that_an_object_returns_is_filled_in_place(tmp_path: Path) -> None:
    varve.torch.save({"o": Holder(torch.arange(3.0))}, tmp_path / "c")
    target = torch.zeros(3)
    holder = Holder(target)
    varve.torch.load({"o": holder}, tmp_path / "c")
    assert holder.value is target
    assert torch.equal(target, torch.arange(3.0))


@pytest.mark.parametrize(
    "before",
    [
        {"a": 0},
        {"a": 0, "deep": {"x": torch.zeros(2)}},
        {"deep": {"list": [torch.zeros(1), torch.zeros(1), torch.zeros(1)]}},
        {"t": None, "deep": {"x": 3}},
        {"t": torch.zeros(3), "deep": {}},
    ],
    ids=str,
)
def test_an_object_gets_what_its_own_state_has_not_grown_to(before: Any, tmp_path: Path) -> None:
    value = {
        "a": 1,
        "t": torch.arange(3.0),
        "deep": {"x": torch.ones(2), 7: "int key", "list": [torch.ones(1), {"y": 2}], "empty": {}},
    }
    path = tmp_path / "c"
    varve.torch.save({"o": Holder(value)}, path)
    holder = Holder(before)
    report = varve.torch.load({"o": holder}, path, strict="exact")
    assert report.unexpected == []
    assert set(holder.value) == set(value)
    assert all(same(value["deep"][key], holder.value["deep"][key]) for key in value["deep"])  # type: ignore[index]
    assert same(value["t"], holder.value["t"])


def test_values_where_an_object_holds_tensors_are_handed_over(tmp_path: Path) -> None:
    varve.torch.save({"o": Holder({"a": None, "b": torch.ones(2)})}, tmp_path / "c")
    holder = Holder({"a": torch.zeros(2), "b": torch.zeros(2)})
    varve.torch.load({"o": holder}, tmp_path / "c")
    assert holder.value["a"] is None
    assert torch.equal(holder.value["b"], torch.ones(2))


def test_an_object_as_the_whole_destination_gets_the_whole_checkpoint(tmp_path: Path) -> None:
    varve.torch.save({"a": 1, "b": {"c": torch.ones(2)}, "mine": PerRank(5)}, tmp_path / "c")
    holder = Holder({"a": 0})
    report = varve.torch.load(holder, tmp_path / "c", strict="exact")
    assert report.unexpected == []
    assert holder.value["a"] == 1
    assert torch.equal(holder.value["b"]["c"], torch.ones(2))
    assert holder.value["mine"].value == 5


def test_keys_choose_what_an_object_grows_by(tmp_path: Path) -> None:
    varve.torch.save({"o": Holder({"a": 1, "b": 2, "c": torch.ones(2)})}, tmp_path / "c")
    holder = Holder({"a": 0})
    varve.torch.load({"o": holder}, tmp_path / "c", keys=["o.c"])
    assert holder.value["a"] == 0
    assert set(holder.value) == {"a", "c"}


def test_an_object_under_another_name_grows_too(tmp_path: Path) -> None:
    varve.torch.save({"old": Holder({"a": 1, "b": {"c": torch.ones(2)}})}, tmp_path / "c")
    holder = Holder({"a": 0})
    report = varve.torch.load({"new": holder}, tmp_path / "c", rename={"old.": "new."})
    assert report.unexpected == []
    assert torch.equal(holder.value["b"]["c"], torch.ones(2))


class Numbers(torch.utils.data.IterableDataset[int]):
    """A data set that has a state once it has been read from."""

    def __init__(self) -> None:
        self.at = 0
        self.seen: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[int]:
        while self.at < 40:
            self.at += 1
            self.seen.append(torch.tensor(self.at))
            yield self.at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": self.seen} if self.at else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state.get("at", 0)
        self.seen = state.get("seen", [])


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_goes_on_from_state_its_dataset_did_not_have(
    workers: int, tmp_path: Path
) -> None:
    def loader() -> StatefulDataLoader[int]:
        return StatefulDataLoader(Numbers(), batch_size=2, num_workers=workers)

    before = loader()
    taken = iter(before)
    for _ in range(3):
        next(taken)
    varve.torch.save({"data": before}, tmp_path / "c")
    expected = [batch.tolist() for batch in taken]
    after = loader()
    report = varve.torch.load({"data": after}, tmp_path / "c", strict="exact")
    assert report.unexpected == []
    assert [batch.tolist() for batch in after] == expected


def network(layers: int = 2) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(layers)))


def test_a_scheduler_finds_the_initial_rate_that_it_has_put_into_the_groups(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    fresh = torch.optim.SGD(network().parameters(), lr=0.5)
    varve.torch.load({"optim": fresh}, tmp_path / "c", strict="exact")
    assert fresh.param_groups[0]["initial_lr"] == 0.5
    torch.optim.lr_scheduler.StepLR(fresh, 1, last_epoch=4)


# ---- what nothing takes ----


def test_what_is_left_over_beside_loaded_entries_is_one_warning_with_counts(tmp_path: Path) -> None:
    saved = {"model": network(3), "train": {"step": 1, "epoch": 2, "seed": 3}, "optim": {"lr": 1}}
    varve.torch.save(saved, tmp_path / "c")
    target = {"model": network(2), "train": {"step": 0, "epoch": 0}}
    with pytest.warns(UserWarning) as told:
        report = varve.torch.load(target, tmp_path / "c")
    assert len(told) == 1
    text = str(told[0].message)
    assert "3 of the checkpoint's entries are left over" in text
    assert '2 below "model" (model.2.weight, model.2.bias)' in text
    assert '1 below "train" (train.seed)' in text
    assert told[0].filename == __file__
    assert sorted(report.unexpected) == ["model.2.bias", "model.2.weight", "optim.lr", "train.seed"]
    with pytest.raises(varve.InvalidArgumentError, match=r"model\.2\.bias"):
        varve.torch.load(target, tmp_path / "c", strict="exact")


@pytest.mark.parametrize(
    "keys", [None, ["model.0", "model.1", "train.step"]], ids=["parts", "keys"]
)
def test_a_part_that_is_asked_for_is_loaded_without_a_warning(keys: Any, tmp_path: Path) -> None:
    saved = {"model": network(3), "train": {"step": 1, "epoch": 2}, "rng": PerRank(5)}
    varve.torch.save(saved, tmp_path / "c")
    target: dict[str, Any] = {"model": network(3)}
    if keys is not None:
        target = {"model": network(2), "train": {"step": 0}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load(target, tmp_path / "c", keys=keys)


@pytest.mark.parametrize("rename", [None, {"model.": "net."}], ids=["names", "renamed"])
def test_entries_picked_by_their_names_are_loaded_without_a_warning(
    rename: Any, tmp_path: Path
) -> None:
    varve.torch.save({"model": {"a": {"w": torch.ones(2), "b": torch.ones(2)}}}, tmp_path / "c")
    name = "model.a.w" if rename is None else "net.a.w"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load({name: torch.zeros(2)}, tmp_path / "c", rename=rename)


def test_what_a_rename_leaves_out_is_no_reason_to_warn(tmp_path: Path) -> None:
    varve.torch.save({"model": network()}, tmp_path / "c")
    target = {"model": {f"{i}.weight": torch.zeros(3, 3) for i in range(2)}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load(
            target, tmp_path / "c", rename=lambda name: None if name.endswith("bias") else name
        )


def test_a_module_is_not_given_what_it_has_not(tmp_path: Path) -> None:
    varve.torch.save(network(3), tmp_path / "c")
    module = network(2)
    with pytest.warns(UserWarning, match="2 of the checkpoint's entries are left over"):
        report = varve.torch.load(module, tmp_path / "c")
    assert report.unexpected == ["2.bias", "2.weight"]
    assert torch.equal(module[1].weight, network(3)[1].weight)


def test_resume_logs_what_the_state_has_no_place_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with varve.torch.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"a": torch.ones(2), "old": {"x": 1, "y": 2}}, force=True)
    with (
        varve.torch.CheckpointManager(tmp_path / "run") as manager,
        caplog.at_level("WARNING", "varve"),
    ):
        manager.resume({"a": torch.zeros(2)})
    told = [one.getMessage() for one in caplog.records if "resume" in one.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("resume: 2 entries of ")
    assert told[0].endswith("old.x, old.y")
