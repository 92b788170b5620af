"""varve.open: names, shapes, layout and values of a checkpoint, and slices of its tensors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_jobs import save_rows
from ranks import run_ranks

import varve
import varve.torch

W = np.arange(24 * 30, dtype=np.float32).reshape(24, 30)
C = np.arange(4 * 5 * 6, dtype=np.int64).reshape(4, 5, 6)


def state() -> dict[str, Any]:
    layers = [{"w": torch.full((2,), float(i))} for i in range(12)]
    return {
        "w": torch.from_numpy(W.copy()),
        "c": torch.from_numpy(C.copy()),
        "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "layers": layers,
        "step": 1200,
        "args": {"lr": 0.1},
    }


@pytest.fixture(scope="module", params=["varve", "dcp", "torch", "safetensors"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state in each format that Varve opens."""
    path = tmp_path_factory.mktemp(request.param) / "step-1200"
    if request.param == "torch":
        torch.save(state(), path)
    elif request.param == "safetensors":
        varve.torch.save(state(), path.with_name("source"))
        varve.convert(path.with_name("source"), path, "safetensors")
    else:
        varve.torch.save(state(), path, format=request.param)
    return path


@pytest.fixture
def native(tmp_path: Path) -> Path:
    path = tmp_path / "step-1200"
    varve.torch.save(state(), path, files={"config.json": b"{}"})
    return path


INDEXES = [
    (slice(2, 4), slice(None, 10)),
    ...,
    (),
    3,
    -1,
    (3, 4),
    (np.int64(3), -2),
    slice(-5, None),
    slice(20, 99),
    slice(7, 3),
    (..., 5),
    (2, ...),
    (slice(1, 3), ..., 4),
    (slice(None, None, 1), slice(None)),
]


@pytest.mark.parametrize("index", INDEXES, ids=str)
@pytest.mark.parametrize("name", ["w", "c"])
def test_a_slice_is_what_numpy_takes_of_the_whole(checkpoint: Path, name: str, index: Any) -> None:
    expected = {"w": W, "c": C}[name][index]
    got = varve.open(checkpoint)[name][index]
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    tensor = varve.torch.open(checkpoint)[name][index]
    assert isinstance(tensor, torch.Tensor)
    assert torch.equal(tensor, torch.from_numpy(np.asarray(expected)))


def test_tensors_without_dimensions_or_elements_are_read(checkpoint: Path) -> None:
    opened = varve.torch.open(checkpoint)
    assert opened["scalar"][...] == 2.5
    assert opened["scalar"][()].shape == ()
    assert opened["empty"][:, 1:].shape == (0, 2)


def test_names_come_in_natural_order(checkpoint: Path) -> None:
    opened = varve.open(checkpoint)
    names = ["c", "empty", "half", *(f"layers.{i}.w" for i in range(12)), "scalar", "w"]
    assert list(opened.tensors) == names
    assert sorted(opened) == sorted([*opened.tensors, *opened.plain_values])
    assert [name for name in opened if name in opened.tensors] == names
    assert len(opened) == len(opened.tensors) + len(opened.plain_values)
    assert "layers.2.w" in opened
    assert "layers" not in opened
    with pytest.raises(KeyError, match="layers"):
        opened["layers"]


def test_what_is_known_of_a_tensor_needs_no_reading(native: Path) -> None:
    for file in native.glob("*.safetensors"):
        size = file.stat().st_size
        os.truncate(file, 0)
        os.truncate(file, size)
    tensor = varve.open(native)["w"]
    assert (tensor.shape, tensor.dtype, tensor.ndim) == ((24, 30), np.float32, 2)
    assert (tensor.size, tensor.nbytes, tensor.name) == (720, 2880, "w")
    assert varve.torch.open(native)["half"].dtype is torch.bfloat16
    assert repr(tensor) == "<stored tensor 'w': float32[24, 30]>"
    with pytest.raises(varve.CorruptCheckpointError):
        tensor[0]


def test_bfloat16_comes_as_a_torch_tensor(checkpoint: Path) -> None:
    got = varve.torch.open(checkpoint)["half"][1, 1:]
    assert got.dtype is torch.bfloat16
    assert got.tolist() == [4.0, 5.0]


def test_numpy_names_a_dtype_that_it_lacks_and_refuses_to_read_it(native: Path) -> None:
    tensor = varve.open(native)["half"]
    if tensor.dtype != "bfloat16":
        pytest.skip("ml_dtypes is installed: NumPy has bfloat16")
    with pytest.raises(varve.UnsupportedError, match="bfloat16"):
        tensor[0]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (slice(0, 4, 2), "step 1"),
        (slice(None, None, -1), "step 1"),
        (None, "no index"),
        (True, "no index"),
        ([0, 1], "no index"),
        (1.0, "no index"),
        ("w", "no index"),
        (slice("a", None), "step 1"),
    ],
)
def test_other_indexes_are_refused_by_name(native: Path, index: Any, words: str) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=f'"w", dimension 0.*{words}'):
        varve.open(native)["w"][index]


@pytest.mark.parametrize("index", [24, -25, (0, 30), (0, 0, 0), (..., 0, ...)])
def test_an_index_beyond_the_tensor_is_an_index_error(native: Path, index: Any) -> None:
    with pytest.raises(IndexError, match='"w"'):
        varve.open(native)["w"][index]


def test_only_the_blocks_of_a_slice_are_read(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    whole = np.arange(1 << 21, dtype=np.int64).reshape(1 << 11, 1 << 10)  # 16 blocks of 1 MiB
    varve.save({"w": whole}, path)
    tensor = varve.open(path)["w"]
    [chunk] = tensor.chunks
    with open(path / chunk.file, "r+b") as file:
        file.seek(chunk.end - 8)
        file.write(b"ruined!!")
    np.testing.assert_array_equal(tensor[100:300, 5:9], whole[100:300, 5:9])
    with pytest.raises(varve.CorruptCheckpointError, match='"w"'):
        tensor[-1]


def test_a_chunk_says_where_its_bytes_are(native: Path) -> None:
    opened = varve.open(native)
    [chunk] = opened["w"].chunks
    assert (chunk.offsets, chunk.sizes, chunk.rank) == ((0, 0), (24, 30), 0)
    content = (Path(opened.directory) / chunk.file).read_bytes()
    assert content[chunk.begin : chunk.end] == W.tobytes()


def test_chunks_name_their_ranks_and_slices_cross_them(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    run_ranks(2, save_rows, str(path), W.tolist())
    opened = varve.open(path)
    assert opened.world_size == 2
    assert [(c.offsets, c.sizes, c.rank) for c in opened["w"].chunks] == [
        ((0, 0), (12, 30), 0),
        ((12, 0), (12, 30), 1),
    ]
    np.testing.assert_array_equal(opened["w"][10:14, 3:5], W[10:14, 3:5])


def test_formats_without_ranks_name_none(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "state.pt")
    opened = varve.open(tmp_path / "state.pt")
    assert (opened.format, opened.save_id, opened.step) == ("torch", None, None)
    assert [chunk.rank for chunk in opened["w"].chunks] == [None]


def test_plain_values_are_read_at_their_lookup(native: Path) -> None:
    opened = varve.open(native)
    assert dict(opened.plain_values) == {"args.lr": 0.1, "step": 1200}
    assert opened["step"] == 1200
    assert opened.get("nothing") is None


def test_a_pickle_is_opened_only_when_that_is_allowed(tmp_path: Path) -> None:
    varve.save({"ratio": re.compile("a")}, tmp_path / "step-1", allow_pickle=True)
    opened = varve.open(tmp_path / "step-1")
    assert list(opened) == ["ratio"]
    with pytest.raises(varve.UnsupportedError, match="pickle"):
        opened["ratio"]
    assert varve.open(tmp_path / "step-1", allow_pickle=True)["ratio"] == re.compile("a")


def test_an_open_checkpoint_says_what_it_is(native: Path) -> None:
    opened = varve.open(native)
    assert (opened.format, opened.step, opened.world_size) == ("varve", 1200, 1)
    assert opened.path == opened.directory == str(native)
    assert opened.save_id is not None
    assert len(opened.save_id) == 32
    assert opened.nbytes == sum(file.stat().st_size for file in native.glob("*.safetensors"))
    assert dict(opened.files) == {"config.json": b"{}"}
    assert repr(opened) == f"<checkpoint {native} (varve): 17 tensors, 2 plain values>"


def test_a_replaced_checkpoint_is_not_read_by_its_old_index(native: Path) -> None:
    tensor = varve.open(native)["w"]
    varve.torch.save(state(), native, overwrite=True)
    with pytest.raises(varve.PreconditionError, match="open it again"):
        tensor[0]


def test_what_is_no_checkpoint_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(varve.CheckpointNotFoundError):
        varve.open(tmp_path / "nothing")
    with pytest.raises(varve.InvalidArgumentError, match="allow_pickle"):
        varve.open(tmp_path / "nothing", allow_pickle=1)  # type: ignore[arg-type]
