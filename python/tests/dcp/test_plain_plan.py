"""A plain state has one checkpoint, whether torch's planner plans it or the engine takes it at once."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from plan_jobs import (
    load_beside_a_dtensor,
    replicas_that_differ_where_a_warning_is_an_error,
    replicas_that_samples_do_not_tell_apart,
    save_states_that_differ,
    save_while_a_rank_ends_after_it,
)
from ranks import run_ranks
from same import same
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

import varve
import varve.torch.dcp as dcp
from varve.torch.dcp._by_engine import engine_takes
from varve.torch.dcp._functions import job_of
from varve.torch.dcp._plain_plan import PlainLoadPlanner
from varve.torch.dcp._ranks import Group


class TorchsSave(DefaultSavePlanner):
    """Is not torch's class itself: so every step is torch's."""


class TorchsLoad(DefaultLoadPlanner):
    """Likewise."""


def optimizer(values: float) -> dict[str, Any]:
    """The state dict of an optimizer, whose parameters have numbers."""
    state = {i: {"step": torch.tensor(values), "m": torch.full((2, 3), values)} for i in range(3)}
    return {"state": state, "param_groups": [{"lr": values, "params": [0, 1, 2]}]}


#: States, made with a number that tells what was saved from what is to be filled.
PLAIN: dict[str, Callable[[float], dict[str, Any]]] = {
    "tensors": lambda x: {"b": torch.full((2, 3), x), "a": torch.tensor(x), "c": torch.zeros(0, 4)},
    "nested": lambda x: {
        "model": {"w": torch.full((5,), x)},
        "optim": optimizer(x),
        "step": int(x),
    },
    "lists": lambda x: {
        "tensors": [torch.full((2,), x), [torch.full((1,), x), x]],
        "values": [x, [x, 2]],
        "pair": (x, "b"),
        "dicts": [{"w": torch.full((2,), x)}, {"x": x}],
        "none": {},
    },
    "keys": lambda x: {
        "é": torch.full((2,), x),
        "a.b": torch.full((2,), x),
        "": torch.full((2,), x),
        "of numbers": {1: torch.full((2,), x), 2.5: x, None: x, ("a", 1): torch.full((2,), x)},
    },
    "dicts": lambda x: {
        "ordered": OrderedDict(w=torch.full((2,), x)),
        "read only": {"inner": torch.full((2,), x), "last": x},
    },
    "layouts": lambda x: {
        "transposed": torch.full((4, 3), x).t(),
        "parameter": torch.nn.Parameter(torch.full((3,), x)),
        "frozen": torch.nn.Parameter(torch.full((3,), x), requires_grad=False),
        "row": torch.full((3, 3), x)[1],
        "column": torch.full((3, 3), x)[:, 1],
        "half": torch.full((3,), x, dtype=torch.bfloat16),
        "complex": torch.full((3,), complex(x, 1)),
        "page": torch.full((5000,), x),
    },
}


def index(path: Path) -> Metadata:
    """Torch's own reading of the index."""
    metadata: Metadata = pickle.loads((path / ".metadata").read_bytes())
    return metadata


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_state_is_saved_under_the_names_of_torchs_planner(
    name: str, tmp_path: Path
) -> None:
    returned = dcp.save(PLAIN[name](1.5), checkpoint_id=tmp_path / "ours")
    dcp.save(PLAIN[name](1.5), checkpoint_id=tmp_path / "torchs", planner=TorchsSave())
    ours, torchs = index(tmp_path / "ours"), index(tmp_path / "torchs")
    assert ours.planner_data == torchs.planner_data
    assert ours.storage_data.keys() == torchs.storage_data.keys()
    assert list(ours.state_dict_metadata) == list(torchs.state_dict_metadata)
    for fqn, entry in ours.state_dict_metadata.items():
        planned = torchs.state_dict_metadata[fqn]
        assert type(entry) is type(planned)
        if isinstance(entry, TensorStorageMetadata):
            assert (entry.size, entry.chunks) == (planned.size, planned.chunks)
            assert entry.properties.dtype == planned.properties.dtype
    assert returned.storage_meta is not None and ours.storage_meta is not None
    assert returned.storage_meta.save_id == ours.storage_meta.save_id is not None
    returned.storage_meta = ours.storage_meta = None
    assert returned == ours
    loaded = [PLAIN[name](0.0), PLAIN[name](0.0)]
    for state, way in zip(loaded, ("ours", "torchs"), strict=True):
        torch_dcp.load(state, checkpoint_id=tmp_path / way)
    assert same(*loaded)
    assert varve.verify(tmp_path / "ours") == []


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_state_is_filled_as_torchs_planner_fills_it(name: str, tmp_path: Path) -> None:
    saved = PLAIN[name](1.5)
    dcp.save(saved, checkpoint_id=tmp_path / "step")
    ours, torchs = PLAIN[name](0.0), PLAIN[name](0.0)
    with torch.no_grad():
        reader = varve._core.Reader(str(tmp_path / "step"))
        assert PlainLoadPlanner.of(PLAIN[name](0.0), reader) is not None
    dcp.load(ours, checkpoint_id=tmp_path / "step")
    dcp.load(torchs, checkpoint_id=tmp_path / "step", planner=TorchsLoad())
    assert same(ours, torchs)
    assert same(ours, saved) or name in ("lists", "keys")  # Of which DCP has less than the state.


def test_nothing_is_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    dcp.save(PLAIN["nested"](1.5), checkpoint_id=tmp_path / "step", no_dist=True)
    dcp.load(PLAIN["nested"](0.0), checkpoint_id=tmp_path / "step", no_dist=True)
    assert [str(warning.message) for warning in recwarn] == []


class Colour(enum.Enum):
    RED = 1


class Steps(int):
    """A number of a class of its own."""


@dataclasses.dataclass
class Progress:
    steps: int = 3


Pair = collections.namedtuple("Pair", ["a", "b"])

#: Values that the engine would store as plain ones.
OBJECTS: list[Any] = [
    Colour.RED,
    Steps(3),
    Progress(),
    Pair(1, 2),
    io.BytesIO(b"abc"),
    decimal.Decimal("1.5"),
    collections.deque([1, 2], 3),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("save", [dcp.save, dcp.async_save])
def test_objects_come_back_as_they_are(save: Any, value: Any, tmp_path: Path) -> None:
    made = save({"a": value, "t": torch.ones(1)}, checkpoint_id=tmp_path / "c", no_dist=True)
    if save is dcp.async_save:
        made.result()
    for module in (torch_dcp, dcp):
        found = {"a": io.BytesIO() if isinstance(value, io.BytesIO) else value, "t": torch.ones(1)}
        module.load(found, checkpoint_id=tmp_path / "c", no_dist=True)
        assert type(found["a"]) is type(value)
        if isinstance(value, io.BytesIO):
            assert found["a"].getvalue() == value.getvalue()
        else:
            assert found["a"] == value


def test_what_is_not_plain_goes_to_torchs_planner(tmp_path: Path) -> None:
    class Described:
        def __create_write_items__(self, fqn: str, value: Any) -> Any: ...

    described = torch.ones(1)
    described.__create_write_items__ = lambda *_: []  # type: ignore[attr-defined]
    others: list[dict[str, Any]] = [
        {"a": Described()},
        {"a": described},
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": torch.ones(2, device="meta")},
        {"a": torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {}))},
        *({"a": value} for value in OBJECTS),
        *({"a": (1, {"b": value})} for value in OBJECTS),
    ]
    for state in others:
        group = Group(None, no_dist=True)
        job = job_of(tmp_path / "none", None, None, group, use_collectives=True)
        job.begin(state)
        assert not engine_takes(job)
    dcp.save({"a": torch.ones(1)}, checkpoint_id=tmp_path / "c", no_dist=True)
    part = torch.zeros(1)
    part.__create_chunk_list__ = lambda: []  # type: ignore[attr-defined]
    dcp.load({"a": part}, checkpoint_id=tmp_path / "c", no_dist=True)
    assert part.tolist() == [0.0]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no such pickle")


@pytest.mark.parametrize("planner", [None, TorchsSave()], ids=["engine", "torch"])
def test_a_value_that_no_pickle_holds_fails_the_writing(planner: Any, tmp_path: Path) -> None:
    state = {"t": torch.ones(1), "a": Unpicklable()}
    with pytest.raises(dcp.CheckpointError, match=r"step: write.*no such pickle"):
        dcp.save(state, checkpoint_id=tmp_path / "c", no_dist=True, planner=planner)
    assert not (tmp_path / "c").exists()


def test_methods_that_a_caller_has_replaced_are_called(tmp_path: Path) -> None:
    writer, lengths = dcp.FileSystemWriter(tmp_path / "c"), []
    write = writer.write_data

    def counted(plan: Any, planner: Any) -> Any:
        lengths.append(len(plan.items))
        return write(plan, planner)

    writer.write_data = counted  # type: ignore[method-assign]
    dcp.save({"a": torch.ones(1), "b": 2}, storage_writer=writer, no_dist=True)
    assert lengths == [2]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"w": torch.ones(3), "more": torch.ones(1)}, "Missing key in checkpoint state_dict: more"),
    ({"w": torch.ones(4)}, "Size mismatch between saved .* and current: .* for w"),
    ({"w": 5}, "Invalid checkpoint metadata for w"),
    ({"w": torch.ones(3), "o": [{}, {"w": torch.ones(1)}]}, r"checkpoint state_dict: o\.0"),
    ({"o.w": torch.ones(1), "o": {"w": torch.ones(1)}}, "duplicated flatten key o.w"),
]


@pytest.mark.parametrize(("state", "message"), FAULTS)
def test_what_a_load_cannot_fill_is_torchs_error(
    state: dict[str, Any], message: str, tmp_path: Path
) -> None:
    dcp.save({"w": torch.ones(3), "o": {"w": torch.ones(1)}}, checkpoint_id=tmp_path / "step")
    with pytest.raises(dcp.CheckpointError, match=message):
        dcp.load(state, checkpoint_id=tmp_path / "step")


def test_a_state_with_a_name_twice_is_torchs_error(tmp_path: Path) -> None:
    state = {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}
    with pytest.raises(dcp.CheckpointError, match=r"duplicated flatten key a\.b"):
        dcp.save(state, checkpoint_id=tmp_path / "step")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_checkpoint_load_and_other_dtypes_are_converted(tmp_path: Path) -> None:
    dcp.save(PLAIN["nested"](1.5), checkpoint_id=tmp_path / "step")
    for dtype in (torch.float32, torch.float64):
        state = {"model": {"w": torch.zeros(5, dtype=dtype)}}
        dcp.load(state, checkpoint_id=tmp_path / "step")
        assert state["model"]["w"].tolist() == [1.5] * 5


def test_a_dict_that_torch_2_3_stored_as_one_value_loads(tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(1), "args": ({"lr": 0.5},)}, checkpoint_id=tmp_path / "step")
    for args in ({}, {"lr": 0.0}):
        state: dict[str, Any] = {"w": torch.zeros(1), "args": args}
        dcp.load(state, checkpoint_id=tmp_path / "step")
        assert state == {"w": torch.ones(1), "args": ({"lr": 0.5},)}


def test_a_rank_with_a_plain_state_loads_beside_one_that_torch_plans(tmp_path: Path) -> None:
    path = str(tmp_path / "step")
    dcp.save({"w": torch.arange(4.0), "s": 3}, checkpoint_id=path, no_dist=True)
    assert run_ranks(2, load_beside_a_dtensor, path) == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_states_that_are_of_other_kinds_on_some_ranks_are_saved_as_torch_does(
    tmp_path: Path,
) -> None:
    assert run_ranks(2, save_states_that_differ, str(tmp_path)) == [[], []]


def test_a_replica_is_stored_whole_and_no_mix_of_several_ranks(tmp_path: Path) -> None:
    found = run_ranks(2, replicas_that_samples_do_not_tell_apart, str(tmp_path))
    assert found == [[1, 1], [1, 1]]


def test_a_planner_with_a_method_of_its_own_is_asked(tmp_path: Path) -> None:
    planner = DefaultSavePlanner()
    planner.lookup_object = lambda index: torch.full((3,), 7.0)  # type: ignore[method-assign]
    dcp.save({"a": torch.zeros(3)}, checkpoint_id=tmp_path / "c", planner=planner, no_dist=True)
    assert varve.torch.read(tmp_path / "c")["a"].tolist() == [7.0] * 3


@pytest.mark.parametrize("key", [np.str_("w"), 1j, int, (1, frozenset([2]))], ids=repr)
def test_keys_that_the_engine_does_not_store_go_to_torchs_planner(key: Any, tmp_path: Path) -> None:
    dcp.save({"m": {key: torch.ones(1)}}, checkpoint_id=tmp_path / "c", no_dist=True)
    assert list(index(tmp_path / "c").state_dict_metadata) == [f"m.{key}"]


def test_the_engine_takes_the_state_of_an_optimizer_with_two_groups(tmp_path: Path) -> None:
    """Torch gives all groups one tuple of betas."""
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    groups = [{"params": layer.parameters(), "weight_decay": 0.1} for layer in layers]
    adam = torch.optim.AdamW(groups)
    layers(torch.ones(1, 2)).sum().backward()
    adam.step()
    group = Group(None, no_dist=True)
    job = job_of(tmp_path / "none", None, None, group, use_collectives=True)
    job.begin({"model": layers.state_dict(), "optim": adam.state_dict()})
    assert engine_takes(job)


def test_a_warning_that_is_an_error_fails_the_save_on_all_ranks(tmp_path: Path) -> None:
    found = run_ranks(2, replicas_that_differ_where_a_warning_is_an_error, str(tmp_path))
    assert all("ReplicasDifferWarning" in text for text in found)


def test_ranks_return_though_one_ends_when_the_checkpoint_stands(tmp_path: Path) -> None:
    found = run_ranks(3, save_while_a_rank_ends_after_it, str(tmp_path))
    assert [returned for returned, _ in found] == [True, True, False]
    assert all(seconds < 60 for _, seconds in found), "no rank waits for its time limit"


def test_what_stands_twice_comes_back_once(tmp_path: Path) -> None:
    shared = [1, 2]
    ordered = OrderedDict(a=1)
    ordered.attribute = 5  # type: ignore[attr-defined]
    twice: Any = (1, 2)
    for _ in range(40):
        twice = (twice, twice)
    state = {"x": (shared, shared), "ordered": (ordered,), "twice": twice, "t": torch.ones(1)}
    dcp.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    found = {"x": None, "ordered": None, "t": torch.zeros(1)}
    torch_dcp.load(found, checkpoint_id=tmp_path / "c", no_dist=True)
    assert found["x"][0] is found["x"][1]  # type: ignore[index]
    assert found["ordered"][0].attribute == 5  # type: ignore[index]


def calls_of(run: Callable[[], Any]) -> int:
    """The number of Python functions that a call calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="before torch 2.10 the engine asks Python for each tensor",
)
def test_a_plain_tensor_costs_few_calls_of_python(tmp_path: Path) -> None:
    """Torch's planner and the items of a plan are 60 calls a tensor in a save, and 50 in a load.

    A save calls torch's `flatten_state_dict`, whose names it compares with the engine's.
    """
    counts = {}
    for number in (100, 1100):
        state = {f"layer{i}": torch.zeros(2) for i in range(number)}
        path = tmp_path / str(number)
        save = calls_of(lambda: dcp.save(state, checkpoint_id=path, no_dist=True))  # noqa: B023
        load = calls_of(lambda: dcp.load(state, checkpoint_id=path, no_dist=True))  # noqa: B023
        counts[number] = (save, load)
    save, load = (more - less for less, more in zip(counts[100], counts[1100], strict=True))
    assert save / 1000 < 30
    assert load / 1000 < 6


class Swapping:
    """Gives a tensor another memory when it is pickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        self.tensor.data = torch.zeros(1)
        self.over = [torch.full((1 << 20,), 9.0) for _ in range(4)]
        return int, (3,)


def test_a_tensor_whose_memory_is_swapped_meanwhile_is_saved_as_it_was_taken(
    tmp_path: Path,
) -> None:
    tensor = torch.full((1 << 20,), 3.0)
    dcp.save({"a": tensor, "b": Swapping(tensor)}, checkpoint_id=tmp_path / "c", no_dist=True)
    filled = {"a": torch.zeros(1 << 20)}
    dcp.load(filled, checkpoint_id=tmp_path / "c", no_dist=True)
    assert filled["a"].unique().tolist() == [3.0]
