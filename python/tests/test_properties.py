"""Any state, any two layouts of up to six ranks: save, then load, is the identity.

Ranks are threads here, for hundreds of examples; test_ranks.py has them as processes.
"""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import run_threads

import varve
import varve.torch
from varve import _core, _engine, _load
from varve.torch._tensors import TorchArrays, add_shard

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex128]

Cuts = list[list[int]]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, 6), max_size=3)))


@st.composite
def partitions(draw: st.DrawFn, shape: tuple[int, ...], size: int) -> list[list[list[slice]]]:
    """Per rank a list of boxes; together they tile the shape. Some are held by several ranks."""
    cuts = [
        sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) if n else [0, 0]
        for n in shape
    ]
    boxes: list[list[slice]] = [[]]
    for points in cuts:
        steps = [slice(a, b) for a, b in itertools.pairwise(points)]
        boxes = [[*box, step] for box in boxes for step in steps]
    held: list[list[list[slice]]] = [[] for _ in range(size)]
    for box in boxes:
        owners = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3))
        for owner in owners:
            held[owner].append(box)
    return held


def shard_of(whole: torch.Tensor, boxes: list[list[slice]], strided: bool) -> torch.Tensor:
    """A CheckpointableTensor that holds these boxes one after the other along a new buffer."""
    parts = [whole[tuple(box)] for box in boxes]
    dims = whole.dim()
    height = [max((p.shape[d] for p in parts), default=0) for d in range(dims)]
    local = torch.zeros([len(parts), *height], dtype=whole.dtype)
    if strided:
        local = local.transpose(0, -1).contiguous().transpose(0, -1)
    for i, part in enumerate(parts):
        local[(i, *(slice(0, n) for n in part.shape))] = part
    return local


class Sharded:
    """Shards of one tensor on one rank, given to the engine as they are."""

    def __init__(
        self, whole: torch.Tensor, boxes: list[list[slice]], strided: bool, fill: bool
    ) -> None:
        self.shape = whole.shape
        self.boxes = boxes
        self.memory = shard_of(whole if fill else torch.zeros_like(whole), boxes, strided)

    def views(self) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        out = []
        for i, box in enumerate(self.boxes):
            sizes = tuple(s.stop - s.start for s in box)
            view = self.memory[(i, *(slice(0, n) for n in sizes))]
            out.append((tuple(s.start for s in box), view))
        return out


class ShardedArrays(TorchArrays):
    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Sharded) or super().is_tensor(value)

    def origin(self, tensor: Any) -> str:
        return "torch" if isinstance(tensor, Sharded) else super().origin(tensor)

    def add_sources(self, into: Any, fqn: str, tensor: Any) -> None:
        if not isinstance(tensor, Sharded):
            super().add_sources(into, fqn, tensor)
            return
        for offsets, view in tensor.views():
            add_shard(into, fqn, tensor.shape, offsets, view)

    def add_targets(self, into: Any, fqn: str, tensor: Any) -> None:
        if isinstance(tensor, Sharded):
            self.add_sources(into, fqn, tensor)
        else:
            super().add_targets(into, fqn, tensor)


@st.composite
def cases(draw: st.DrawFn) -> Any:
    tensors = {}
    save_size = draw(st.integers(1, 6))
    load_size = draw(st.integers(1, 6))
    for i in range(draw(st.integers(1, 4))):
        shape = draw(shapes())
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape) % 251 + 1
        whole = whole.to(draw(st.sampled_from(DTYPES)))
        tensors[f"t{i}"] = (
            whole,
            draw(partitions(shape, save_size)),
            draw(partitions(shape, load_size)),
            draw(st.booleans()),
            draw(st.booleans()),
        )
    return save_size, load_size, tensors


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.booleans())
def test_saving_in_one_layout_and_loading_in_another_is_the_identity(
    case: Any, coordinate: bool
) -> None:
    save_size, load_size, tensors = case
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/step"

        def save(coordinator: Any) -> None:
            state = {
                name: Sharded(whole, held[coordinator.rank], strided, fill=True)
                for name, (whole, held, _, strided, _) in tensors.items()
            }
            options = _core.SaveOptions(
                block_bytes=4096, coordinate=coordinate, save_id=b"s" * 16, timeout=30.0
            )
            nested = {"s": state, "n": 5}
            _engine.save(_engine.Content(nested), path, ShardedArrays(), coordinator, options)

        def load(coordinator: Any) -> None:
            state = {
                name: Sharded(whole, held[coordinator.rank], strided, fill=False)
                for name, (whole, _, held, _, strided) in tensors.items()
            }
            nested = {"s": state, "n": 0}
            options = _core.LoadOptions(strict="exact", timeout=30.0)
            choice = _load.Choice(None, None, allow_pickle=False, use_agent=False)
            _load.load(nested, path, ShardedArrays(), coordinator, options, choice)
            assert nested["n"] == 5
            for name, sharded in state.items():
                whole = tensors[name][0]
                for offsets, view in sharded.views():
                    box = tuple(slice(o, o + n) for o, n in zip(offsets, view.shape, strict=True))
                    assert torch.equal(view, whole[box]), (name, box)

        run_threads(save_size, save)
        assert varve.verify(path) == []
        for name, (whole, *_) in tensors.items():
            assert torch.equal(varve.torch.read(path)["s"][name], whole)
        run_threads(load_size, load)
