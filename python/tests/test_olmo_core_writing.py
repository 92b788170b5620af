"""OLMo-core's first layout, written: it reads back as what the ranks held."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import varve
import varve.torch
from varve.olmo import _core_layout
from varve.olmo._core_layout import CoreWriter, write_metadata
from varve.olmo._pieces import Piece


def parameters() -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(7)
    return {
        "wte.weight": torch.randn(7, 5, generator=numbers),
        "scale": torch.randn(3, generator=numbers).bfloat16(),
        "blocks.0.a": torch.randn(4, 3, 2, generator=numbers),
        "count": torch.arange(6).reshape(2, 3),
        "gate": torch.randn((), generator=numbers).half(),
        "empty": torch.zeros(0, 3),
    }


Rank = tuple[dict[str, Any], dict[str, dict[str, Any]], list[dict[str, Any]]]


def cut(world: int, copies: int = 1) -> list[Rank]:
    """Cuts one flat parameter of all parameters, and its moments, into the ranks' parts."""
    tensors = parameters()
    total = sum(tensor.numel() for tensor in tensors.values())
    size = -(-total // world)
    ranks = []
    for rank in range(world * copies):
        begin, at = (rank % world) * size, 0
        model: dict[str, Any] = {}
        state: dict[str, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            first, last = max(at, begin), min(at + tensor.numel(), begin + size)
            start, stop = (first - at, last - at) if first < last else (0, 0)
            model[name] = Piece(tensor.shape, start, tensor.flatten()[start:stop])
            if first < last and tensor.is_floating_point():
                moment = tensor.float() * 2
                state[name] = {
                    "step": torch.tensor(3.0),
                    "exp_avg": Piece(tensor.shape, start, moment.flatten()[start:stop]),
                }
            at += tensor.numel()
        names = list(tensors)
        groups = [
            {"lr": 0.1, "params": [0, 1], "param_names": names[:2]},
            {"lr": 0.2, "params": [2, 3, 4, 5], "param_names": names[2:]},
        ]
        ranks.append((model, state, groups))
    return ranks


def write(folder: Path, ranks: list[Rank]) -> list[Path]:
    writers = [CoreWriter(rank) for rank in range(len(ranks))]
    own = [writer.describe(*held) for writer, held in zip(writers, ranks, strict=True)]
    described = pickle.loads(pickle.dumps(own))  # As ranks send them.
    assert described == own
    paths = [path for writer in writers for path in writer.write(folder, described)]
    return paths + write_metadata(folder, described)


def assert_holds(folder: Path) -> None:
    assert varve.verify(folder) == []
    state = varve.torch.read(folder)
    assert list(state["model"]) == list(parameters())
    for name, tensor in parameters().items():
        assert state["model"][name].dtype == tensor.dtype
        assert torch.equal(state["model"][name], tensor), name
        entries = state["optim"]["state"].get(name, {})
        assert set(entries) == (
            {"step", "exp_avg"} if tensor.is_floating_point() and tensor.numel() else set()
        )
        if entries:
            assert torch.equal(entries["exp_avg"], tensor.float() * 2)
            assert entries["step"] == 3
    names = list(parameters())
    assert state["optim"]["param_groups"] == [
        {"lr": 0.1, "params": [0, 1], "param_names": names[:2]},
        {"lr": 0.2, "params": [2, 3, 4, 5], "param_names": names[2:]},
    ]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 80])
def test_what_every_world_writes_is_read(world: int, tmp_path: Path) -> None:
    paths = write(tmp_path / "step1", cut(world))
    assert sorted(paths) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(paths) == 2 * world + 2
    assert_holds(tmp_path / "step1")


def test_equal_pieces_are_written_once(tmp_path: Path) -> None:
    write(tmp_path / "one", cut(2))
    write(tmp_path / "two", cut(2, copies=2))
    assert_holds(tmp_path / "two")
    for part in ("model", "optim"):
        for rank in (0, 1):
            name = f"{part}/rank_{rank}.safetensors"
            assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
            empty = tmp_path / "two" / part / f"rank_{rank + 2}.safetensors"
            assert json.loads(empty.read_bytes()[8:]) == {"__metadata__": {"format": "pt"}}


def test_safetensors_opens_the_files(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    write(tmp_path / "step1", cut(1))
    held = safetensors.load_file(tmp_path / "step1" / "model" / "rank_0.safetensors")
    for name, tensor in parameters().items():
        assert torch.equal(held[name], tensor.flatten()), name


def test_whole_tensors_numbers_and_groups_of_names_are_taken(tmp_path: Path) -> None:
    model = parameters()
    state = {"scale": {"step": 4, "on": True, "exp_avg": torch.ones(3)}}
    groups = [{"params": list(model), "betas": (0.9, 0.95)}]
    write(tmp_path / "step1", [(model, state, groups)] * 2)
    read = varve.torch.read(tmp_path / "step1")
    assert torch.equal(read["model"]["wte.weight"], model["wte.weight"])
    assert read["optim"]["state"]["scale"]["step"] == 4
    assert read["optim"]["param_groups"][0]["params"] == list(range(len(model)))
    assert read["optim"]["param_groups"][0]["param_names"] == list(model)
    assert read["optim"]["param_groups"][0]["betas"] == (0.9, 0.95)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_dtensors_are_taken(dim: int, tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    held = distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(dim)])
    write(tmp_path / "step1", [({"w": held}, {}, [])])
    assert torch.equal(varve.torch.read(tmp_path / "step1")["model"]["w"], whole)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 3, 2)], ids=str)
def test_runs_of_every_box_are_its_elements(shape: tuple[int, ...]) -> None:
    places = torch.arange(math.prod(shape)).reshape(shape)
    cuts = [[(b, e - b) for b in range(n) for e in range(b + 1, n + 1)] for n in shape]
    for box in itertools.product(*cuts):
        offsets, sizes = [b for b, _ in box], [n for _, n in box]
        inside = places[tuple(slice(b, b + n) for b, n in box)].flatten().tolist()
        runs = list(_core_layout._runs(shape, offsets, sizes))
        assert [at for begin, end in runs for at in range(begin, end)] == inside
        joined = [b != e for (_, b), (e, _) in itertools.pairwise(runs)]
        assert all(joined) or len(shape) == 3  # Runs are as long as they can be.


def test_columns_of_a_matrix_are_boxes(tmp_path: Path) -> None:
    box = _core_layout.Described("F32", (2, 3), (), ((0, 1), (2, 2)))
    assert _core_layout._spec(box) == {
        "flattened_offsets": None,
        "local_shape": (2, 2),
        "global_offset": (0, 1),
    }
    assert box.elements() == 4


# ---- what is refused ----


def test_missing_elements_are_refused_and_no_metadata_written(tmp_path: Path) -> None:
    ranks = cut(3)
    ranks[0][0]["wte.weight"].data = ranks[0][0]["wte.weight"].data[:-1]
    with pytest.raises(varve.InvalidArgumentError, match=r'element 22 of model "wte\.weight"'):
        write(tmp_path / "step1", ranks)
    assert not list(tmp_path.rglob("metadata.json"))


def test_ranks_that_disagree_about_a_shape_are_refused(tmp_path: Path) -> None:
    ranks = cut(2)
    ranks[1][0]["wte.weight"].shape = (5, 7)
    with pytest.raises(varve.InvalidArgumentError, match=r"on rank 0 and .* on rank 1"):
        write(tmp_path / "step1", ranks)


def test_a_piece_outside_its_tensor_is_refused() -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r'"model.w": elements \[2, 5\)'):
        CoreWriter(0).describe({"w": Piece((4,), 2, torch.zeros(3))}, {}, [])


def test_a_dtype_that_olmo_core_cannot_read_is_refused() -> None:
    with pytest.raises(varve.UnsupportedError, match=r'"model.w" is torch\.complex64'):
        CoreWriter(0).describe({"w": torch.zeros(2, dtype=torch.complex64)}, {}, [])


def test_a_value_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(varve.UnsupportedError, match=r'"optim.state.w.note" is a str'):
        CoreWriter(0).describe({}, {"w": {"note": "text"}}, [])


def test_groups_without_names_are_refused() -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r"group 0 .* param_names"):
        CoreWriter(0).describe({}, {}, [{"params": [0, 1]}])


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "step1"
    write(folder, cut(1))
    before = (folder / "model" / "rank_0.safetensors").read_bytes()
    with pytest.raises(varve.CheckpointExistsError, match=r"rank_0\.safetensors"):
        write(folder, cut(1))
    assert (folder / "model" / "rank_0.safetensors").read_bytes() == before


def test_metadata_are_what_olmo_core_writes(tmp_path: Path) -> None:
    write(tmp_path, [({"w": torch.zeros(2, 2)}, {}, [])])
    assert json.loads((tmp_path / "model" / "metadata.json").read_text()) == {
        "tensors": {
            "w": {
                "shape": [2, 2],
                "is_sharded": False,
                "dtype": "F32",
                "shard_spec_per_file": {
                    "rank_0.safetensors": {
                        "flattened_offsets": [[0, 4]],
                        "local_shape": None,
                        "global_offset": None,
                    }
                },
            }
        }
    }
