"""Planners that resolve to memory of their own hold little of it at a time."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp

import varve
import varve.torch
import varve.torch.dcp as dcp
from varve.torch.dcp import _write

COUNT = 32
ITEM_BYTES = 1 << 20
STATE = {f"w{i:02}": torch.full((ITEM_BYTES // 4,), float(i)) for i in range(COUNT)}


class Counting(torch_dcp.DefaultSavePlanner):
    """Resolves every tensor to a copy, and counts the bytes of copies that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self.resolved: list[str] = []
        self.lock = threading.Lock()

    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        self.resolved.append(write_item.index.fqn)
        if not isinstance(data, torch.Tensor):
            return data
        if data.dtype not in (torch.float32, torch.int32) or data.is_conj() or data.dim() == 0:
            return data.detach().clone()
        memory = data.detach().numpy().copy()  # Lives as long as any tensor over it.
        with self.lock:
            self.alive += memory.nbytes
            self.most = max(self.most, self.alive)
        weakref.finalize(memory, self.drop, memory.nbytes)
        return torch.from_numpy(memory)

    def drop(self, size: int) -> None:
        with self.lock:
            self.alive -= size


def assert_saved(path: Path, state: dict[str, torch.Tensor]) -> None:
    assert varve.verify(path) == []
    for module in (dcp, torch_dcp):
        loaded = {key: torch.zeros_like(value) for key, value in state.items()}
        module.load(loaded, checkpoint_id=path)
        assert all(torch.equal(loaded[key], state[key]) for key in state)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ahead", [0, 3 * ITEM_BYTES + 5, 10_000_000])
def test_what_is_resolved_is_within_the_copy_ahead(
    tmp_path: Path, ahead: int, threads: int
) -> None:
    path = tmp_path / "step"
    planner = Counting()
    writer = dcp.FileSystemWriter(path, per_thread_copy_ahead=ahead, thread_count=threads)
    gc.disable()  # Nothing is left to it.
    try:
        dcp.save(dict(STATE), storage_writer=writer, planner=planner)
        assert planner.alive == 0
    finally:
        gc.enable()
    assert sorted(planner.resolved) == sorted(STATE), "each once"
    assert ITEM_BYTES <= planner.most <= threads * (ahead + ITEM_BYTES)
    assert_saved(path, STATE)


def test_async_save_holds_as_little(tmp_path: Path) -> None:
    planner = Counting()
    dcp.async_save(dict(STATE), checkpoint_id=tmp_path / "step", planner=planner).result()
    assert planner.most <= 10_000_000 + ITEM_BYTES
    assert_saved(tmp_path / "step", STATE)


def test_items_of_every_kind_are_resolved_in_their_turn(tmp_path: Path) -> None:
    base = torch.arange(12 << 20, dtype=torch.int32)  # 48 MiB: several of the writer's blocks.
    state = {
        "large": base,
        "turned": base[: 6 << 10].view(64, 96).t(),
        "part": base[5:9],
        "none": torch.empty(0, 3),
        "one": torch.tensor(5.0),
        "wave": torch.tensor([1 + 2j]).conj(),
        "half": torch.ones(33, dtype=torch.bfloat16),
    }
    planner = Counting()
    dcp.save({**state, "step": 4}, checkpoint_id=tmp_path / "step", planner=planner)
    assert sorted(planner.resolved) == sorted([*state, "step"])
    assert_saved(tmp_path / "step", state)
    assert varve.torch.read(tmp_path / "step")["step"] == 4


def test_the_files_are_those_of_tensors_in_memory(tmp_path: Path) -> None:
    for name, planner in (("in memory", None), ("in turn", Counting())):
        dcp.save(dict(STATE), checkpoint_id=tmp_path / name, planner=planner)
    contents = [(tmp_path / name / "__0_0.distcp").read_bytes() for name in os.listdir(tmp_path)]
    assert contents[0] == contents[1]


def test_tensors_elsewhere_are_copied_in_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there is no device: the tensors that count as being on one are in memory all the same."""
    monkeypatch.setattr(_write, "is_here", lambda tensor: False)
    dcp.save(dict(STATE), checkpoint_id=tmp_path / "step")
    assert_saved(tmp_path / "step", STATE)


@pytest.mark.parametrize("at", [0, COUNT // 2, COUNT - 1])
def test_a_planner_that_fails_in_a_tensors_turn_fails_the_save(tmp_path: Path, at: int) -> None:
    class Failing(Counting):
        def resolve_data(self, write_item: Any) -> Any:
            if len(self.resolved) == at:
                raise OSError("the tensor has moved to Mars")
            return super().resolve_data(write_item)

    with pytest.raises(dcp.CheckpointError, match="OSError: the tensor has moved to Mars"):
        dcp.save(dict(STATE), checkpoint_id=tmp_path / "step", planner=Failing())
    assert os.listdir(tmp_path) == []


def test_what_does_not_agree_with_the_plan_is_refused_in_its_turn(tmp_path: Path) -> None:
    class Doubling(torch_dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item).double()

    with pytest.raises(dcp.CheckpointError, match=r'"w00": the planner resolved torch.float64'):
        dcp.save(dict(STATE), checkpoint_id=tmp_path / "step", planner=Doubling())
    assert os.listdir(tmp_path) == []


class Wrapper(torch.Tensor):
    """A tensor that is made of another one and has no memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], *_: Any) -> Wrapper:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__.split(".")[0]
        if name in ("detach", "clone", "alias", "_to_copy"):
            return Wrapper(function(args[0].inner, *args[1:], **(kwargs or {})))
        raise NotImplementedError(name)


def test_a_subclass_that_only_torch_stores_is_stored_by_torch(tmp_path: Path) -> None:
    class Plain(Counting):
        def resolve_data(self, write_item: Any) -> Any:
            if write_item.index.fqn == "wrapped":
                return Wrapper(torch.arange(4.0))
            return super().resolve_data(write_item)

    state = {**STATE, "wrapped": torch.arange(4.0)}
    dcp.save(state, checkpoint_id=tmp_path / "step", planner=Plain())
    loaded = {"w31": torch.zeros_like(STATE["w31"])}
    torch_dcp.load(loaded, checkpoint_id=tmp_path / "step")
    assert torch.equal(loaded["w31"], STATE["w31"])
    writer = Plain()
    dcp.save({"wrapped": torch.arange(4.0)}, checkpoint_id=tmp_path / "alone", planner=writer)
    item = torch.load((tmp_path / "alone" / "__0_0.distcp"), weights_only=False)
    assert isinstance(item, Wrapper) and item.inner.tolist() == [0, 1, 2, 3]


def test_resolving_sees_the_gradient_mode_of_the_caller(tmp_path: Path) -> None:
    seen = []

    class Looking(torch_dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            return super().resolve_data(write_item)

    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "step", planner=Looking())
    assert seen == [(True, False), (False, False), (False, True)]
