"""A plain state has one checkpoint, whether torch's planner plans it or the engine takes it at once."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_jobs import load_beside_a_dtensor
from ranks import run_ranks
from same import same
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import varve
import varve.torch.dcp as dcp
from varve.torch.dcp import _index
from varve.torch.dcp._plain_plan import PlainLoadPlanner, PlainSavePlanner


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


def read(path: Path) -> Metadata:
    """Torch's own reading of the index, with what differs between two saves of one state taken out."""
    metadata: Metadata = pickle.loads((path / ".metadata").read_bytes())
    assert metadata.storage_meta is not None
    assert metadata.storage_meta.checkpoint_id == str(path) and metadata.storage_meta.save_id
    metadata.storage_meta = None
    return metadata


def hints(metadata: Metadata) -> list[int | None]:
    """The positions of chunks, which equality leaves out."""
    return [index.index for index in metadata.storage_data]


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_state_is_saved_as_torchs_planner_plans_it(name: str, tmp_path: Path) -> None:
    assert PlainSavePlanner.of(PLAIN[name](1.5)) is not None
    returned = dcp.save(PLAIN[name](1.5), checkpoint_id=tmp_path / "at once")
    dcp.save(PLAIN[name](1.5), checkpoint_id=tmp_path / "torch", planner=TorchsSave())
    ours, torchs = read(tmp_path / "at once"), read(tmp_path / "torch")
    assert ours == torchs
    returned.storage_meta = None
    assert returned == ours and hints(returned) == hints(ours) == hints(torchs)
    for field in ("state_dict_metadata", "planner_data", "storage_data"):
        assert list(getattr(ours, field)) == list(getattr(torchs, field))
    files = [(tmp_path / way / "__0_0.distcp").read_bytes() for way in ("at once", "torch")]
    assert files[0] == files[1]
    assert varve.verify(tmp_path / "at once") == []


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


def test_what_is_not_plain_goes_to_torchs_planner(tmp_path: Path) -> None:
    class Described:
        def __create_write_items__(self, fqn: str, value: Any) -> Any: ...

    described = torch.ones(1)
    described.__create_write_items__ = lambda *_: []  # type: ignore[attr-defined]
    others: list[dict[str, Any]] = [
        {},
        {"a": Described()},
        {"a": described},
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": torch.ones(2, device="meta")},
        {"a": torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {}))},
    ]
    for state in others:
        assert PlainSavePlanner.of(state) is None
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
    """Torch's planner and the items of a plan are 60 calls a tensor in a save, and 50 in a load."""
    counts = {}
    for number in (100, 1100):
        state = {f"layer{i}": torch.zeros(2) for i in range(number)}
        path = tmp_path / str(number)
        save = calls_of(lambda: dcp.save(state, checkpoint_id=path, no_dist=True))  # noqa: B023
        load = calls_of(lambda: dcp.load(state, checkpoint_id=path, no_dist=True))  # noqa: B023
        counts[number] = (save, load)
    save, load = (more - less for less, more in zip(counts[100], counts[1100], strict=True))
    assert save / 1000 < 16
    assert load / 1000 < 6


class Own(Metadata):
    """An index of a planner's own."""


def indexes() -> dict[str, Metadata]:
    """Indexes that only Python can pickle as they are."""
    place = {MetadataIndex("w"): _StorageInfo("f", 1, 2)}
    return {
        "a class of its own": Own({}, storage_data=place),
        "planner data of its own": Metadata({}, planner_data={"a": {1.5}}, storage_data=place),
        "a number beyond 64 bits": Metadata({}, planner_data={"a": (2**70,)}, storage_data=place),
        "a lone surrogate": Metadata({}, planner_data={"\ud800": ("\ud800",)}, storage_data=place),
        "a field of its own": _with_more(Metadata({}, storage_data=place)),
        "deep": Metadata({}, planner_data=_deep(40), storage_data=place),
        "another's field": _with_more(Metadata({}, storage_data=place), "save_id"),
        "an entry's field": Metadata({"w": _with_more(BytesStorageMetadata())}, storage_data=place),
        "a place without its length": Metadata(
            {}, storage_data={MetadataIndex("w"): _without_length()}
        ),
        "a name for a dtype": Metadata({"w": _of_dtype("torch.float32")}, storage_data=place),
        "one list many times": Metadata({}, planner_data=_repeated(7), storage_data=place),
    }


def _with_more(entry: Any, name: str = "more") -> Any:
    setattr(entry, name, {"a": 1})
    return entry


def _without_length() -> _StorageInfo:
    made = _StorageInfo("f", 1, 2)
    del vars(made)["length"]
    return made


def _of_dtype(dtype: Any) -> TensorStorageMetadata:
    properties = TensorProperties(dtype=dtype)
    return TensorStorageMetadata(properties, torch.Size([1]), [])


def _repeated(levels: int) -> Any:
    return [_repeated(levels - 1)] * 10 if levels else ["v"]  # One list, ten times.


def _deep(levels: int) -> Any:
    return ([_deep(levels - 1)],) if levels else ()


@pytest.mark.parametrize("name", list(indexes()))
def test_what_only_python_pickles_is_in_the_index(name: str) -> None:
    metadata = indexes()[name]
    pickled = _index._pickled(metadata)
    assert pickled == pickle.dumps(metadata, protocol=3)
    if name != "a place without its length":  # Which no class of Python can compare.
        again = pickle.loads(pickled)
        assert type(again) is type(metadata) and vars(again) == vars(metadata)


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


def test_an_index_of_thousands_of_chunks_and_names_is_pickled_whole() -> None:
    dcp_metadata = sys.modules[Metadata.__module__]
    properties = dcp_metadata.TensorProperties(
        dtype=torch.int8, requires_grad=True, pin_memory=True
    )
    chunks = [
        dcp_metadata.ChunkStorageMetadata(torch.Size([i, 0, 0, 2**40]), torch.Size([1, 2, 3, 0]))
        for i in range(2500)
    ]
    metadata = Metadata(
        {"w": TensorStorageMetadata(properties, torch.Size([2500, 2, 3, 2**41]), chunks)},
        planner_data={f"n{i}": (f"n{i}",) for i in range(3000)},
        storage_data={
            MetadataIndex("w", chunk.offsets, i): _StorageInfo("f", 2**33 + i, -1)
            for i, chunk in enumerate(chunks)
        },
        version="1.0.0",
    )
    pickled = varve._core.pickle_dcp_metadata(metadata, _index._CLASSES, _index._TORCHS)
    assert pickled is not None
    again = pickle.loads(pickled)
    assert again == metadata and hints(again) == hints(metadata)
