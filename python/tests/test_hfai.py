"""varve.hfai in one process: what hfai.checkpoint 2.0.0 has written, and what is made of it."""

from __future__ import annotations

import collections
import decimal
import enum
import hashlib
import inspect
import json
import pickle
import shutil
import uuid
from pathlib import Path
from typing import Any

import hfai_jobs
import hfai_original
import pytest
import torch
from hfai_original import assert_same, raw
from torch import nn

import varve
import varve.hfai
import varve.torch
from varve.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    InvalidArgumentError,
    PreconditionError,
    UnsupportedError,
)

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "hfai"
GOOD = ("world1", "world4", "world4-two-models")
BROKEN = sorted(path.name for path in GOLDEN.iterdir() if path.name.startswith("broken"))


def expected(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return found


def assert_is(value: Any, entry: dict[str, Any]) -> None:
    """Compares a value with its typed description."""
    kind = entry["type"]
    if kind == "tensor":
        assert str(value.dtype) == f"torch.{entry['dtype']}"
        assert list(value.shape) == entry["shape"]
        assert hashlib.sha256(raw(value)).hexdigest() == entry["sha256"]
        return
    assert type(value).__name__ == kind
    if "items" in entry:
        assert len(value) == len(entry["items"])
        for item, described in zip(value, entry["items"], strict=True):
            assert_is(item, described)
    elif kind != "NoneType":
        assert value == entry["value"]


def assert_holds(state: dict[str, Any], case: dict[str, Any]) -> None:
    """Compares what a load returned with what the original's returns."""
    models = state["model"] if len(case["model"]) > 1 else [state["model"]]
    for model, entries in zip(models, case["model"], strict=True):
        assert set(model) == set(entries)
        for name, entry in entries.items():
            assert_is(model[name], entry)
    optimizers = state["optimizer"] if len(case["optimizer"]) != 1 else [state["optimizer"]]
    for optimizer, entries in zip(optimizers, case["optimizer"], strict=True):
        assert {str(number) for number in optimizer["state"]} == set(entries["state"])
        for number, values in optimizer["state"].items():
            assert type(number) is int
            assert set(values) == set(entries["state"][str(number)])
            for key, value in values.items():
                assert_is(value, entries["state"][str(number)][key])
        for group, described in zip(
            optimizer["param_groups"], entries["param_groups"], strict=True
        ):
            assert list(group) == list(described)
            for key, value in group.items():
                assert_is(value, described[key])
    assert set(state) - {"model", "optimizer"} == set(case["others"])
    for key, entry in case["others"].items():
        assert_is(state[key], entry)


# ---- the original's files ----


@pytest.mark.parametrize("nthreads", [0, 1, 8])
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("case", GOOD)
def test_load_returns_what_the_original_returns(case: str, mmap: bool, nthreads: int) -> None:
    state = varve.hfai.load(GOLDEN / case, nthreads, map_location="cpu", mmap=mmap)
    assert_holds(state, expected(case))


@pytest.mark.parametrize("case", GOOD)
def test_every_verb_works_on_the_originals_files(case: str, tmp_path: Path) -> None:
    path, truth = GOLDEN / case, expected(case)
    assert varve.verify(path) == []
    assert [entry.format for entry in varve.list_checkpoints(path)] == ["hfai"]
    with_names = varve.open(path)
    name = next(iter(truth["model"][0]))
    entry = truth["model"][0][name]
    assert list(with_names[f"model.0.{name}"].shape) == entry["shape"]
    assert with_names.world_size == truth["world_size"]
    for target in ("varve", "torch", "dcp"):
        varve.convert(path, tmp_path / target, to=target)
        assert varve.diff(path, tmp_path / target) == []
    again = varve.torch.read(tmp_path / "torch")
    assert_is(again["model"][0][name], entry)
    assert varve.torch.read(path, "epoch", flat=True) == {"epoch": 3}
    filled = {"model": [{name: torch.zeros(entry["shape"])}]}
    if entry["dtype"] == "float32":
        varve.torch.load(filled, path)
        assert_is(filled["model"][0][name], entry)


@pytest.mark.parametrize("case", BROKEN)
def test_broken_sets_are_refused_by_name_everywhere(case: str, tmp_path: Path) -> None:
    path, names = GOLDEN / case, expected(case)["must_name"]
    calls = (
        lambda: varve.hfai.load(path),
        lambda: varve.torch.read(path),
        lambda: varve.convert(path, tmp_path / "out", to="varve"),
    )
    for call in calls:
        with pytest.raises(varve.Error) as caught:
            call()
        assert all(name in str(caught.value) for name in names)
    with pytest.raises(AssertionError):
        varve.hfai.load(path)
    try:
        found = [damage.problem for damage in varve.verify(path)]
    except varve.Error as error:  # What is missing or of another version is no damage.
        found = [str(error)]
    assert all(name in " ".join(found) for name in names)
    (entry,) = varve.list_checkpoints(path)
    assert entry.format == "hfai" and entry.state in ("damaged", "incomplete")


def test_the_empty_entry_of_a_parameter_keeps_its_place() -> None:
    state = varve.hfai.load(GOLDEN / "world4-two-models")
    assert list(state["optimizer"][1]["state"][0]) == ["momentum_buffer"]


def test_files_of_torch_before_1_6_are_read_in_place(tmp_path: Path) -> None:
    net, adam = hfai_jobs.trained(1)
    model, optimizer = net.state_dict(), adam.state_dict()
    for legacy in (False, True):
        folder = tmp_path / f"latest-{legacy}.pt"
        hfai_original.write(folder, [model], [optimizer], {"epoch": 1}, 3, 4096, legacy)
        state = varve.hfai.load(folder)
        assert state["epoch"] == 1
        assert_same(state["model"], model)
        assert_same(state["optimizer"], optimizer)


# ---- arguments of load ----


def test_load_refuses_what_the_original_asserts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nthreads"):
        varve.hfai.load(GOLDEN / "world1", nthreads=-1)
    for kind in (AssertionError, FileNotFoundError, CheckpointNotFoundError):
        with pytest.raises(kind):
            varve.hfai.load(tmp_path / "nothing.pt")
        with pytest.raises(kind):
            varve.hfai.load(tmp_path)
    for kind in (FileNotFoundError, AssertionError, PreconditionError):
        with pytest.raises(kind, match=r"PART_000\.pt"):
            varve.hfai.load(GOLDEN / "broken-missing-first")
    for kind in (AssertionError, UnsupportedError):
        with pytest.raises(kind, match=r"3\.0\.0"):
            varve.hfai.load(GOLDEN / "broken-wrong-version")
    for kind in (AssertionError, RuntimeError, CorruptCheckpointError):
        with pytest.raises(kind, match=r"a\.weight"):
            varve.hfai.load(GOLDEN / "broken-large-piece-missing")
    with pytest.raises(InvalidArgumentError, match="pickle_module"):
        varve.hfai.load(GOLDEN / "world1", pickle_module=pickle)
    with pytest.raises(TypeError, match="mapp_location"):
        varve.hfai.load(GOLDEN / "world1", mapp_location="cpu")


def test_map_location_is_honoured() -> None:
    def device(where: Any) -> torch.device:
        tensor: torch.Tensor = varve.hfai.load(GOLDEN / "world4", map_location=where)["model"][
            "module.embed.weight"
        ]
        return tensor.device

    assert device(None).type == device("cpu").type == "cpu"
    assert device("meta").type == device(torch.device("meta")).type == "meta"
    assert device({"cpu": "meta"}).type == "meta"
    assert device(lambda storage, location: storage).type == "cpu"


def test_mmap_maps_whole_tensors_and_changes_no_file(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "world4", tmp_path / "latest.pt")
    before = [path.read_bytes() for path in sorted((tmp_path / "latest.pt").iterdir())]
    state = varve.hfai.load(tmp_path / "latest.pt", mmap=True)
    for tensor in state["model"].values():
        tensor.zero_()
    assert before == [path.read_bytes() for path in sorted((tmp_path / "latest.pt").iterdir())]


class Custom:
    """An object that only a pickle can make."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    __hash__ = object.__hash__


def test_weights_only_decides_about_objects_of_classes(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    others = {"args": Custom(), "epoch": 4}
    hfai_original.write(folder, [{"w": torch.ones(2)}], [], others, 2, 4096)
    with pytest.raises(UnsupportedError, match=r'"args" needs .*Custom.*weights_only=False'):
        varve.hfai.load(folder)
    state = varve.hfai.load(folder, weights_only=False)
    assert state["args"] == Custom() and state["epoch"] == 4
    assert state["optimizer"] == []


# ---- names in the place of ids ----


def test_model_gives_names_to_parameter_ids(tmp_path: Path) -> None:
    net, adam = hfai_jobs.trained(1)
    wrapped = {f"module.{name}": value for name, value in net.state_dict().items()}
    hfai_original.write(tmp_path / "x", [wrapped], [adam.state_dict()], {}, 3, 4096)
    fresh, _ = hfai_jobs.trained(1, seed=3)
    state = varve.hfai.load(tmp_path / "x", model=fresh)
    assert list(state["model"]) == list(fresh.state_dict())
    fresh.load_state_dict(state["model"])
    assert_same(fresh.state_dict(), net.state_dict())
    names = [name for name, _ in net.named_parameters()]
    assert state["optimizer"]["param_groups"][0]["params"] == names
    by_id = adam.state_dict()["state"]
    for number, name in enumerate(names):
        if number in by_id:
            assert_same(state["optimizer"]["state"][name], by_id[number])
    # As torch's own functions for any layout of ranks take it.
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    other = torch.optim.Adam(fresh.parameters(), lr=0.5, amsgrad=True)
    set_optimizer_state_dict(fresh, other, state["optimizer"])
    assert_same(other.state_dict()["state"], by_id)


def test_names_are_those_of_the_groups(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [{"params": [net[1].weight]}, {"params": [net[0].weight], "lr": 0.5}]
    sgd = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    net(torch.ones(1, 3)).sum().backward()
    sgd.step()
    hfai_original.write(tmp_path / "x", [net.state_dict()], [sgd.state_dict()], {}, 2, 4096)
    state = varve.hfai.load(tmp_path / "x", names=["1.weight", "0.weight"])["optimizer"]
    assert [group["params"] for group in state["param_groups"]] == [["1.weight"], ["0.weight"]]
    assert state["state"]["1.weight"]["momentum_buffer"].shape == (2, 4)
    with pytest.raises(InvalidArgumentError, match="pass names="):
        varve.hfai.load(tmp_path / "x", model=net)
    with pytest.raises(InvalidArgumentError, match="2 parameters"):
        varve.hfai.load(tmp_path / "x", names=["1.weight"])
    for layer in (net[0], net[1]):
        layer.bias.requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match="another order"):
        varve.hfai.load(tmp_path / "x", model=net)


# ---- save by one rank ----


def test_signatures_are_those_of_the_original() -> None:
    save = inspect.signature(varve.hfai.save)
    names = ["fname", "model", "optimizer", "others", "group"]
    assert list(save.parameters) == [*names, "remote_overwrite"]
    assert save.parameters["remote_overwrite"].kind == inspect.Parameter.KEYWORD_ONLY
    assert [save.parameters[name].default for name in names[2:]] == [None, None, None]
    load = inspect.signature(varve.hfai.load)
    assert list(load.parameters)[:2] == ["fname", "nthreads"]
    assert load.parameters["nthreads"].default == 8
    init = inspect.signature(varve.hfai.init)
    assert list(init.parameters)[:5] == [
        "model",
        "optimizer",
        "scheduler",
        "amp_scaler",
        "ckpt_path",
    ]


def test_save_needs_torch_distributed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not initialized"):
        varve.hfai.save(tmp_path / "x", nn.Linear(2, 2))


def test_save_refuses_what_the_original_refuses(one_rank: None, tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    path = tmp_path / "x.pt"
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match="others"):
            varve.hfai.save(path, net, None, [1])  # type: ignore[arg-type]
    for key in ("model", "optimizer", "__nshards__", "__version__"):
        with pytest.raises(AssertionError, match=key):
            varve.hfai.save(path, net, None, {key: 1})
    with pytest.raises(AssertionError, match="group"):
        varve.hfai.save(path, net, group="all")
    for wrong in ("net", [net, 3], {"w": 1}):
        with pytest.raises(TypeError, match="model"):
            varve.hfai.save(path, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimizer"):
        varve.hfai.save(path, net, net)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"where\.is"):
        varve.hfai.save(path, net, None, {"where": {"is": object()}})
    for twins in ({"a.b": 1, "a": {"b": 2}}, {"d": {1: 0, "1": 0}}, {"model.0.bias": 1}):
        with pytest.raises(InvalidArgumentError, match="two entries get the name"):
            varve.hfai.save(path, net, None, twins)
    with pytest.raises(InvalidArgumentError, match=r"sparse"):
        varve.hfai.save(path, net, None, {"t": torch.eye(3).to_sparse()})
    assert not path.exists()


class Stage(enum.Enum):
    WARMUP = 1


Range = collections.namedtuple("Range", ["first", "last"])


@pytest.mark.parametrize(
    "value",
    [
        Stage.WARMUP,
        Range(1, 2),
        collections.deque([1]),
        decimal.Decimal("0.1"),
        uuid.UUID(int=3),
        (1, [{"deep": {Stage.WARMUP}}]),
        {Stage.WARMUP: 1},
        Range(torch.ones(1), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_of_other_classes_are_refused_by_name(
    value: Any, one_rank: None, tmp_path: Path
) -> None:
    # A part has plain values in their place: the script that resumes would get a tuple, a text, a list.
    with pytest.raises(InvalidArgumentError, match=r'"where(\.is.*)?" holds a [\w.]+: '):
        varve.hfai.save(tmp_path / "x.pt", nn.Linear(2, 2), None, {"where": {"is": value}})
    assert not (tmp_path / "x.pt").exists()


def test_save_keeps_every_plain_type_and_torch_loads_it(one_rank: None, tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    others: dict[str, Any] = {
        "epoch": 3,
        "text": "…",
        "pair": (1, 2.5, None),
        "nested": {"a": [torch.ones(2), {"b": torch.zeros(3)}], 7: True},
        "dtype": torch.float16,
        "size": torch.Size((2, 3)),
        "rng": torch.get_rng_state(),
        "tuple": (torch.arange(3), "x"),
    }
    net, adam = hfai_jobs.trained(1)
    varve.hfai.save(path, net, adam, others)
    for state in (
        varve.hfai.load(path),
        hfai_original.read(path),
        torch.load(path / "PART_000.pt", weights_only=True),
    ):
        for key, value in others.items():
            assert_same(state[key], value)
    assert_same(hfai_original.read(path)["model"], net.state_dict())
    assert varve.verify(path) == []


def test_tied_tensors_of_one_part_are_stored_once(one_rank: None, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False))
    net[1].weight = net[0].weight
    varve.hfai.save(tmp_path / "x", net)
    assert (tmp_path / "x" / "PART_000.pt").stat().st_size < 45_000
    assert_same(varve.hfai.load(tmp_path / "x")["model"], dict(net.state_dict()))
    part = torch.load(tmp_path / "x" / "PART_000.pt")["model"][0][0]
    assert part["0.weight"].data_ptr() == part["1.weight"].data_ptr()


def test_overwriting_leaves_no_stale_part_and_keeps_other_files(
    one_rank: None, tmp_path: Path
) -> None:
    path = tmp_path / "latest.pt"
    shutil.copytree(GOLDEN / "world4", path)
    (path / "notes.txt").write_text("mine")
    varve.hfai.save(path, nn.Linear(2, 2))
    assert {item.name for item in path.iterdir()} == {"PART_000.pt", "expected.json", "notes.txt"}
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []
    with pytest.raises(InvalidArgumentError):
        varve.hfai.save(path, nn.Linear(2, 2), None, {"bad": object()})
    assert set(varve.hfai.load(path)["model"]) == {"weight", "bias"}


def test_a_damaged_part_is_found(one_rank: None, tmp_path: Path) -> None:
    path = tmp_path / "x"
    varve.hfai.save(path, nn.Linear(40, 40))
    part = path / "PART_000.pt"
    place = varve.open(path)["model.0.weight"].chunks[0]
    content = bytearray(part.read_bytes())
    content[place.begin + 100] ^= 1
    part.write_bytes(content)
    assert any("model.0.weight" in str(d) or "checksum" in d.problem for d in varve.verify(path))
    with pytest.raises(AssertionError, match="checksum"):
        varve.hfai.load(path)
    part.write_bytes(content[:-500])
    with pytest.raises(RuntimeError, match=r"PART_000\.pt"):
        varve.hfai.load(path)
