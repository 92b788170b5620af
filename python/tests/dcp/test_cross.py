"""What Varve writes PyTorch reads, and the other way: each dtype, each way to lie in memory, each value."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from same import same
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import varve
import varve.torch
import varve.torch.dcp as dcp

DTYPES = [
    dtype
    for name in [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
]

#: Tensors of shape [5, 6] made of one that is [8, 9].
LAYOUTS: dict[str, Any] = {
    "contiguous": lambda t: t[:5, :6].contiguous(),
    "transposed": lambda t: t[:6, :5].t(),
    "view with slack": lambda t: t[1:6, 2:8],
    "every other": lambda t: t.repeat(2, 2)[:10:2, 1:13:2],
    "expanded": lambda t: t[:1, :6].expand(5, 6),
    "parameter": lambda t: torch.nn.Parameter(t[:5, :6].clone(), requires_grad=False),
}

VALUES: dict[str, Any] = {
    "none": None,
    "int": 2**80,
    "float": -0.0,
    "text": "é\0",
    "bytes": b"\x00\xff",
    "tuple": (1, "a", (2.5,)),
    "plain list": [1, [2, 3]],
    "set": {1, 2},
    "ordered": {"in it": OrderedDict(a=1, b=[2])},
    "list with a dict": [{"x": 1}, {"y": [torch.arange(3), 5]}],
    "dtype": torch.float16,
    "size": torch.Size([2, 3]),
    "": "an empty key",
    "a.b": 1,
}


def bits(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = (shape[0], shape[1] * dtype.itemsize)
    return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8).view(dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """To compare NaNs too, and what has no comparison."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def tensors() -> dict[str, torch.Tensor]:
    out = {
        f"{dtype} {name}": make(bits((8, 9), dtype))
        for dtype in DTYPES
        for name, make in LAYOUTS.items()
    }
    complex_numbers = bits((5, 6), torch.complex64)
    return {
        **out,
        "conjugated": complex_numbers.conj(),
        "negated": complex_numbers.conj().imag,
        "scalar": torch.tensor(2.5),
        "none of two": torch.empty(0, 3, dtype=torch.int16),
        "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "larger than a page": torch.arange(5000.0),
    }


@pytest.mark.parametrize(("writer", "reader"), [(dcp, torch_dcp), (torch_dcp, dcp), (dcp, dcp)])
def test_tensors_of_every_dtype_and_layout(writer: Any, reader: Any, tmp_path: Path) -> None:
    saved = tensors()
    writer.save(dict(saved), checkpoint_id=tmp_path / "step")
    loaded = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in saved.items()}
    reader.load(loaded, checkpoint_id=tmp_path / "step")
    for name, tensor in saved.items():
        assert torch.equal(as_bytes(tensor), as_bytes(loaded[name])), name


@pytest.mark.parametrize(("writer", "reader"), [(dcp, torch_dcp), (torch_dcp, dcp), (dcp, dcp)])
def test_values_of_every_kind(writer: Any, reader: Any, tmp_path: Path) -> None:
    writer.save(dict(VALUES), checkpoint_id=tmp_path / "step")
    loaded = {
        **dict.fromkeys(VALUES, 0),
        "ordered": {"in it": {"a": 0, "b": 0}},
        "list with a dict": [{"x": 0}, {"y": [torch.zeros(3, dtype=torch.int64), 0]}],
    }
    reader.load(loaded, checkpoint_id=tmp_path / "step")
    loaded["ordered"] = {"in it": OrderedDict(loaded["ordered"]["in it"])}
    for name, value in VALUES.items():
        assert same(loaded[name], value), name


@pytest.mark.parametrize(("writer", "reader"), [(dcp, torch_dcp), (torch_dcp, dcp), (dcp, dcp)])
@pytest.mark.parametrize("elements", [1000, 16384])
def test_many_tensors_wherever_their_items_begin_in_the_file(
    elements: int, writer: Any, reader: Any, tmp_path: Path
) -> None:
    """Torch's items begin at any byte, so that elements lie across every boundary there is."""
    saved = {f"w{i}": torch.rand(elements) for i in range(600_000 // elements)}
    writer.save(dict(saved), checkpoint_id=tmp_path / "step")
    loaded = {name: torch.zeros(elements) for name in saved}
    reader.load(loaded, checkpoint_id=tmp_path / "step")
    assert [name for name in saved if not torch.equal(saved[name], loaded[name])] == []


@pytest.mark.parametrize("make", list(LAYOUTS.values())[:4], ids=list(LAYOUTS)[:4])
def test_tensors_are_filled_where_they_lie(make: Any, tmp_path: Path) -> None:
    saved = bits((5, 6), torch.int32)
    torch_dcp.save({"w": saved}, checkpoint_id=tmp_path / "step")
    whole = torch.zeros(8, 9, dtype=torch.int32)
    target = make(whole)
    dcp.load({"w": target}, checkpoint_id=tmp_path / "step")
    assert torch.equal(target, saved)


def test_another_dtype_is_converted_as_torch_does(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(6.0)}, checkpoint_id=tmp_path / "step")
    for module in (dcp, torch_dcp):
        loaded = {"w": torch.zeros(6, dtype=torch.int64)}
        module.load(loaded, checkpoint_id=tmp_path / "step")
        assert torch.equal(loaded["w"], torch.arange(6))


class Opaque:
    """Known to pickle alone."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)

    __hash__ = None  # type: ignore[assignment]


def test_values_that_only_pickle_knows_come_back(tmp_path: Path) -> None:
    stream = io.BytesIO(b"in a stream")
    for writer, reader in ((dcp, torch_dcp), (torch_dcp, dcp)):
        path = tmp_path / writer.__name__
        writer.save({"object": [Opaque()], "stream": stream}, checkpoint_id=path)
        loaded = {"object": None, "stream": None}
        reader.load(loaded, checkpoint_id=path)
        assert loaded["object"] == [Opaque()] and loaded["stream"].getvalue() == b"in a stream"


def test_tensors_that_no_load_would_open_are_refused_by_name(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.qint8)
    with pytest.raises(dcp.CheckpointError, match=r'"m\.q".*qint8.*varve\.torch\.save'):
        dcp.save({"m": {"q": quantized}, "w": torch.ones(2)}, checkpoint_id=tmp_path / "step")
    assert not (tmp_path / "step").exists()


def test_torch_builds_a_whole_state_from_what_varve_wrote(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(4.0), "layers": [{"b": torch.ones(2)}]}, "step": 4}
    dcp.save(state, checkpoint_id=tmp_path / "step")
    for reader in (dcp.FileSystemReader, torch_dcp.FileSystemReader):
        found = _load_state_dict_from_keys(storage_reader=reader(tmp_path / "step"))
        assert same(found, state)
        part = _load_state_dict_from_keys("model.layers", storage_reader=reader(tmp_path / "step"))
        assert same(part, {"model": {"layers": state["model"]["layers"]}})


def test_strides_that_torch_2_15_writes_into_an_index_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties: Any = torch_dcp.metadata.TensorProperties
    of_this_torch = properties.__getstate__
    monkeypatch.setattr(properties, "__getstate__", lambda p: (*of_this_torch(p)[:5], (1, 2)))
    torch_dcp.save({"w": torch.arange(4.0).reshape(2, 2).t()}, checkpoint_id=tmp_path / "step")
    monkeypatch.undo()
    loaded = {"w": torch.zeros(2, 2)}
    dcp.load(loaded, checkpoint_id=tmp_path / "step")
    assert loaded["w"].tolist() == [[0, 2], [1, 3]]
    assert same(varve.torch.read(tmp_path / "step"), loaded)
    assert varve.verify(tmp_path / "step") == []


def test_planners_may_rename_what_they_read(tmp_path: Path) -> None:
    class Renaming(torch_dcp.DefaultLoadPlanner):
        """Gives the entries of the checkpoint another prefix, as fine-tuning code does."""

        def set_up_planner(self, state_dict: Any, metadata: Any, is_coordinator: bool) -> None:
            new = {f"new.{k}": v for k, v in metadata.state_dict_metadata.items()}
            metadata.state_dict_metadata = new
            metadata.storage_data = {
                type(k)(f"new.{k.fqn}", k.offset, k.index): v
                for k, v in metadata.storage_data.items()
            }
            storage.update(metadata.storage_data)
            super().set_up_planner(state_dict, metadata, is_coordinator)

    storage: dict[Any, Any] = {}
    dcp.save({"w": torch.arange(4.0), "step": 4}, checkpoint_id=tmp_path / "step")
    loaded = {"new": {"w": torch.zeros(4), "step": 0}}
    dcp.load(loaded, checkpoint_id=tmp_path / "step", planner=Renaming())
    assert storage and same(loaded, {"new": {"w": torch.arange(4.0), "step": 4}})


def test_other_formats_load_through_torchs_planner(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(4.0)}, "step": 4, "names": {"a": (1, 2)}}
    varve.torch.save(state, tmp_path / "native")
    torch.save(state, tmp_path / "state.pt")
    for path in (tmp_path / "native", tmp_path / "state.pt"):
        loaded = {"model": {"w": torch.zeros(4)}, "step": 0, "names": {"a": None}}
        dcp.load(loaded, checkpoint_id=path)
        assert same(loaded, state)
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state["model"], tmp_path / "model.safetensors")
    loaded = {"w": torch.zeros(4)}
    dcp.load(loaded, checkpoint_id=tmp_path / "model.safetensors")
    assert same(loaded, state["model"])


def test_every_name_of_torchs_module_is_here() -> None:
    assert dcp.DefaultSavePlanner is torch_dcp.DefaultSavePlanner
    assert set(dir(torch_dcp)) <= set(dir(dcp))
    assert issubclass(dcp.FileSystemWriter, torch_dcp.FileSystemWriter)
    assert issubclass(dcp.FileSystemReader, torch_dcp.FileSystemReader)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = dcp.nothing_of_the_kind
