"""Keys that are no strings, such as the numbers of an optimizer's state, outlast DCP's format.

DCP has names only. Varve keeps the structure beside them; of what torch wrote, an optimizer's groups tell.
"""

from __future__ import annotations

import collections
import datetime
import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import dcp_jobs
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from ranks import run_ranks
from same import same
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import varve
import varve.torch
import varve.torch.dcp as dcp

State = dict[str, Any]


class Training:
    """A model and AdamW with two groups, which have made some steps."""

    def __init__(self, seed: int, steps: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 1))
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=0.1
        )
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.linspace(0, 1, 15).reshape(3, 5)).square().sum().backward()
        self.optimizer.step()

    @property
    def state(self) -> State:
        return {"model": self.model, "optimizer": self.optimizer}

    @property
    def dicts(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def assert_goes_on(resumed: Training, saved: Training) -> None:
    """Both have the same state, and the next step makes the same of it."""
    assert same(resumed.dicts, saved.dicts)
    assert set(resumed.optimizer.state_dict()["state"]) == {0, 1, 2, 3}
    resumed.step()
    saved.step()
    assert same(resumed.dicts, saved.dicts)


def save_async(training: Training, path: Path) -> None:
    varve.torch.async_save(training.state, path, format="dcp").result()


def save_async_drop_in(training: Training, path: Path) -> None:
    dcp.async_save(training.dicts, checkpoint_id=path).result()


SAVES: dict[str, Callable[[Training, Path], Any]] = {
    "save": lambda training, path: varve.torch.save(training.state, path, format="dcp"),
    "async_save": save_async,
    "drop-in": lambda training, path: dcp.save(training.dicts, checkpoint_id=path),
    "drop-in, async": save_async_drop_in,
    "torch": lambda training, path: torch_dcp.save(training.dicts, checkpoint_id=path),
}


@pytest.fixture(params=SAVES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Training]:
    training = Training(1, steps=2)
    SAVES[request.param](training, tmp_path / "step")
    return tmp_path / "step", training


def test_a_fresh_optimizer_goes_on_with_the_moments(checkpoint: tuple[Path, Training]) -> None:
    path, saved = checkpoint
    resumed = Training(2)
    varve.torch.load(resumed.state, path)
    assert_goes_on(resumed, saved)


def test_read_gives_the_state_by_number(checkpoint: tuple[Path, Training]) -> None:
    path, saved = checkpoint
    state = varve.torch.read(path)
    assert list(state["optimizer"]["state"]) == [0, 1, 2, 3]
    resumed = Training(2)
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.model.load_state_dict(state["model"])
    assert_goes_on(resumed, saved)


@pytest.mark.parametrize("to", ["varve", "dcp"])
def test_conversions_keep_the_numbers(
    to: Any, checkpoint: tuple[Path, Training], tmp_path: Path
) -> None:
    path, saved = checkpoint
    varve.convert(path, tmp_path / "converted", to=to)
    resumed = Training(2)
    varve.torch.load(resumed.state, tmp_path / "converted")
    assert_goes_on(resumed, saved)


def test_unshard_keeps_the_numbers(checkpoint: tuple[Path, Training], tmp_path: Path) -> None:
    path, saved = checkpoint
    varve.convert(path, tmp_path / "whole.pt", to="torch")
    resumed = Training(2)
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    resumed.optimizer.load_state_dict(whole["optimizer"])
    resumed.model.load_state_dict(whole["model"])
    assert_goes_on(resumed, saved)


def test_torch_opens_it_still(checkpoint: tuple[Path, Training], tmp_path: Path) -> None:
    path, saved = checkpoint
    resumed = Training(2, steps=1)  # DCP fills what is there.
    state = resumed.dicts
    torch_dcp.load(state, checkpoint_id=path)
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.model.load_state_dict(state["model"])
    dcp_to_torch_save(path, tmp_path / "torch.pt")
    whole = torch.load(tmp_path / "torch.pt", weights_only=False)
    moment = saved.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    assert_goes_on(resumed, saved)
    assert torch.equal(whole["optimizer"]["state"]["0"]["exp_avg"], moment)


def test_a_manager_that_writes_dcp_resumes_with_the_moments(tmp_path: Path) -> None:
    saved = Training(1, steps=2)
    options: Any = {"format": "dcp"}
    run = tmp_path / "run"
    with varve.torch.CheckpointManager(run, every=1, save_options=options) as manager:
        manager.save(2, saved.state)
    resumed = Training(2)
    with varve.torch.CheckpointManager(run, every=1, save_options=options) as manager:
        assert manager.resume(resumed.state) is not None
    assert_goes_on(resumed, saved)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_of_another_world_go_on_with_the_moments(size: int, tmp_path: Path) -> None:
    (before, _) = run_ranks(2, dcp_jobs.train_by_number, str(tmp_path / "step"))
    for found in run_ranks(size, dcp_jobs.resume_by_number, str(tmp_path / "step")):
        assert found == before


# ---- Every kind of key and container ----

CONTAINERS: State = {
    "keys": {0: 1, "0x": 2, True: 3, 2.5: 4, None: 5, (1, "a"): 6, -7: 7, 10**30: 8, b"b": 9},
    "nested": {3: {"w": torch.ones(2), 4: [{5: 1}, {}]}, "empty": {}},
    "ordered": collections.OrderedDict([("b", 1), ("a", torch.zeros(1))]),
    "counts": collections.Counter({3: 2}),
    "defaults": collections.defaultdict(int, {1: 2}),
    "none": [],
}


def test_keys_and_containers_come_back_as_they_were(tmp_path: Path) -> None:
    varve.torch.save(CONTAINERS, tmp_path / "dcp", format="dcp")
    found = varve.torch.read(tmp_path / "dcp")
    assert same(found, CONTAINERS)
    assert type(found["ordered"]) is collections.OrderedDict
    assert type(found["counts"]) is collections.Counter
    assert type(found["defaults"]) is collections.defaultdict
    assert list(found["ordered"]) == ["b", "a"]
    assert [type(key) for key in found["keys"]] == [type(key) for key in CONTAINERS["keys"]]


@pytest.mark.parametrize(
    "key",
    [
        np.int64(-3),
        np.uint8(200),
        np.bool_(True),
        torch.float32,
        torch.device("cuda:1"),
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2, 3),
        PurePosixPath("a/b"),
        range(3),
        range(0, 3, 2),
        1e16,
        float("inf"),
        (1, (2.5, None)),
        frozenset({1}),
    ],
    ids=repr,
)
def test_a_key_of_another_type_comes_back_as_it_was(key: Any, tmp_path: Path) -> None:
    varve.torch.save({"d": {key: {"w": torch.ones(1), "n": 5}}}, tmp_path / "dcp", format="dcp")
    (found,) = varve.torch.read(tmp_path / "dcp")["d"]
    assert (type(found), found) == (type(key), key)


def test_there_and_back_again_is_the_same(tmp_path: Path) -> None:
    varve.torch.save(CONTAINERS, tmp_path / "native")
    varve.convert(tmp_path / "native", tmp_path / "dcp", to="dcp")
    varve.convert(tmp_path / "dcp", tmp_path / "again", to="varve")
    for name in ("dcp", "again"):
        found = varve.torch.read(tmp_path / name)
        assert same(found, varve.torch.read(tmp_path / "native"))
        assert [type(key) for key in found["keys"]] == [type(key) for key in CONTAINERS["keys"]]


def test_arrays_of_numpy_come_back_as_such(tmp_path: Path) -> None:
    varve.save({"a": np.arange(3), 1: {"b": np.ones(2)}}, tmp_path / "native")
    varve.convert(tmp_path / "native", tmp_path / "dcp", to="dcp")
    found = varve.read(tmp_path / "dcp")
    assert type(found["a"]) is np.ndarray
    assert list(found[1]["b"]) == [1.0, 1.0]


# ---- What others write ----


def test_parameters_that_are_called_like_numbers_stay_names(tmp_path: Path) -> None:
    """The parameters of a ParameterList are "0" and "1": that is how get_optimizer_state_dict calls them."""
    state = {
        "state": {"0": {"exp_avg": torch.ones(2)}, "1": {"exp_avg": torch.zeros(2)}},
        "param_groups": [{"lr": 0.1, "params": ["0", "1"]}],
    }
    torch_dcp.save({"optimizer": state}, checkpoint_id=tmp_path / "step")
    assert list(varve.torch.read(tmp_path / "step")["optimizer"]["state"]) == ["0", "1"]


def test_an_optimizer_saved_alone_has_its_numbers(tmp_path: Path) -> None:
    saved = Training(1, steps=2)
    torch_dcp.save(saved.optimizer.state_dict(), checkpoint_id=tmp_path / "step")
    resumed = Training(1)
    varve.torch.load(resumed.optimizer, tmp_path / "step")
    assert same(resumed.optimizer.state_dict(), saved.optimizer.state_dict())


def test_an_index_that_torch_has_changed_since_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Other software drops entries from an index and keeps attributes that it does not know."""
    varve.torch.save(
        {"a": torch.ones(1), "n": {1: torch.zeros(1)}}, tmp_path / "step", format="dcp"
    )
    index = tmp_path / "step" / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    assert hasattr(metadata, "varve_structure")
    del metadata.state_dict_metadata["a"]
    del metadata.varve_checksums
    metadata.storage_data = {k: v for k, v in metadata.storage_data.items() if k.fqn != "a"}
    index.write_bytes(pickle.dumps(metadata))
    assert same(varve.torch.read(tmp_path / "step"), {"n": {"1": torch.zeros(1)}})
