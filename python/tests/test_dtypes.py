"""Every dtype in every memory layout, saved and loaded; interop; what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

import varve
import varve.torch
from varve import _core

DTYPES = [getattr(torch, name) for name in _core.DTYPE_NAMES]

#: What a dtype is to safetensors where it is not one of its own: see docs/format.md.
SAFETENSORS_LACKS = {torch.complex32, torch.complex128}


def content(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A contiguous tensor of a dtype with as many different bit patterns as fit."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(shape)
    raw = (torch.arange(count * dtype.itemsize) * 37 + 11).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


def strided(base: torch.Tensor, how: str) -> torch.Tensor:
    """A tensor that equals `base` and lies in memory in another way."""
    if how == "contiguous":
        return base.clone()
    if how == "0-d":
        return base.reshape(-1)[0].clone()
    if how == "empty":
        return base[:0].clone()
    shape = list(base.shape)
    strides = {
        "transposed": (1, shape[0], *np.cumprod([shape[0] * shape[1], *shape[2:-1]])),
        "sliced": tuple(3 * s for s in base.stride()),
        "expanded": (0, *base.stride()[1:]),
        "channels_last": (shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]),
    }[how]
    strides = tuple(int(s) for s in strides)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = torch.zeros((last + 1) * base.element_size(), dtype=torch.uint8).view(base.dtype)
    out = memory.as_strided(shape, strides)
    fill(out, base[:1].expand_as(base) if how == "expanded" else base)
    return out


def memory_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's own memory as bytes per element."""
    size = tensor.element_size()
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: None}[size]
    if unsigned is None:
        return torch.view_as_real(tensor).view(torch.int64).numpy()
    return (tensor if tensor.dtype is torch.bool else tensor.view(unsigned)).numpy()


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    memory_of(target)[...] = memory_of(source)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(memory_of(a), memory_of(b))


LAYOUTS = ["contiguous", "transposed", "sliced", "expanded", "channels_last", "0-d", "empty"]
TARGETS = ["contiguous", "transposed", "sliced", "channels_last"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout_loads_into_every_layout(dtype: torch.dtype, tmp_path: Path) -> None:
    base = content(dtype, (3, 4, 5, 2))
    state = {how: strided(base, how) for how in LAYOUTS}
    varve.torch.save(state, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")
    assert [how for how in state if not same(back[how], state[how])] == []
    for layout in TARGETS:
        target = {
            how: strided(torch.zeros_like(content(dtype, (3, 4, 5, 2))), layout)
            if value.dim() == 4 and value.numel()
            else strided(content(dtype, (3, 4, 5, 2)), how)
            for how, value in state.items()
        }
        varve.torch.load(target, tmp_path / "c")
        assert [how for how in state if not same(target[how], state[how])] == []


def test_bytes_between_the_elements_of_a_strided_destination_are_left_alone(
    tmp_path: Path,
) -> None:
    varve.torch.save({"t": torch.arange(12).reshape(3, 4)}, tmp_path / "c")
    memory = torch.full((6, 8), -1)
    varve.torch.load({"t": memory[::2, 1::2]}, tmp_path / "c")
    assert torch.equal(memory[::2, 1::2], torch.arange(12).reshape(3, 4))
    assert (memory[1::2] == -1).all()
    assert (memory[:, ::2] == -1).all()


def test_negative_strides_are_saved_and_loaded(tmp_path: Path) -> None:
    source = np.arange(24).reshape(4, 6)
    varve.save({"a": source[::-1, ::-2], "b": source[:, 4:1:-1]}, tmp_path / "c")
    back = varve.read(tmp_path / "c")
    assert np.array_equal(back["a"], source[::-1, ::-2])
    memory = np.zeros((4, 6), np.int64)
    varve.load({"a": memory[::-1, ::-2], "b": np.zeros((4, 3), np.int64)[::-1]}, tmp_path / "c")
    assert np.array_equal(memory[:, 1::2], source[:, 1::2])
    assert not memory[:, ::2].any()


def test_conjugate_and_negative_views_are_saved_and_loaded_by_value(tmp_path: Path) -> None:
    base = torch.tensor([1 + 2j, 3 - 4j])
    state = {"conj": base.conj(), "imag": base.conj().imag}
    assert state["imag"].is_neg()
    varve.torch.save(state, tmp_path / "c")
    assert torch.equal(varve.torch.read(tmp_path / "c", "conj")["conj"], base.conj())
    memory = torch.zeros(2, dtype=torch.complex64)
    varve.torch.load({"conj": memory.conj(), "imag": torch.zeros(2)}, tmp_path / "c")
    assert torch.equal(memory, base)


@pytest.mark.parametrize("large", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_of_many_blocks_round_trip(large: torch.dtype, tmp_path: Path) -> None:
    base = content(large, (1111, 1777))
    varve.torch.save({"a": base, "t": base.t(), "s": base[::3, 5::7]}, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")
    assert same(back["a"], base)
    assert same(back["t"], base.t())
    assert same(back["s"], base[::3, 5::7])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_safetensors_package_opens_the_data_file(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {"a.b": content(dtype, (3, 5)), "t": content(dtype, (4, 2)).t()}
    varve.torch.save({"n": 1, "a": {"b": state["a.b"]}, "t": state["t"]}, tmp_path / "c")
    (file,) = tmp_path.glob("c/*.safetensors")
    with safetensors.safe_open(str(file), "pt") as opened:
        assert {"a.b", "t"} <= set(opened.keys())
        for name, value in state.items():
            got = opened.get_tensor(name)
            if dtype in SAFETENSORS_LACKS:
                assert got.dtype is torch.uint8
                assert got.numel() == value.numel() * value.element_size()
            else:
                assert same(got, value.contiguous())


def test_torch_opens_the_directory_as_a_huggingface_checkpoint(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.randn(5, 3), "b": {"v": torch.randn(7).to(torch.bfloat16)}}
    varve.torch.save(state, tmp_path / "c")
    target: dict[str, Any] = {"w": torch.zeros(5, 3), "b.v": torch.zeros(7, dtype=torch.bfloat16)}
    reader = HuggingFaceStorageReader(str(tmp_path / "c"))
    dcp_load(target, storage_reader=reader, no_dist=True)
    assert torch.equal(target["w"], state["w"])
    assert torch.equal(target["b.v"], state["b"]["v"])


def wrapper_subclass() -> torch.Tensor:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError

    return torch.Tensor._make_wrapper_subclass(Wrapper, (2, 3))


def fake_tensor() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2, 3)


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.zeros(2, device="meta"),
    "uninitialized": lambda: torch.nn.LazyLinear(3).weight,
    "wrapper subclass": wrapper_subclass,
    "fake": fake_tensor,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_tensors_without_plain_memory_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match=r'"a\.b"'):
        varve.torch.save({"a": {"b": REFUSED[kind]()}}, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_they_are_refused_as_destinations_too_with_nothing_changed(
    kind: str, tmp_path: Path
) -> None:
    varve.torch.save({"a": torch.ones(2), "b": torch.ones(2, 3)}, tmp_path / "c")
    target = {"a": torch.zeros(2), "b": REFUSED[kind]()}
    with pytest.raises(varve.InvalidArgumentError, match="b"):
        varve.torch.load(target, tmp_path / "c")
    assert not target["a"].any()


@pytest.mark.parametrize(
    "overlapping",
    [lambda: torch.zeros(1).expand(4), lambda: torch.zeros(5).as_strided((4,), (0,))],
)
def test_a_destination_whose_elements_share_memory_is_refused(
    overlapping: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    varve.torch.save({"a": torch.ones(2), "b": torch.arange(4.0)}, tmp_path / "c")
    target = {"a": torch.zeros(2), "b": overlapping()}
    with pytest.raises(varve.InvalidArgumentError, match=r'"b".*share memory'):
        varve.torch.load(target, tmp_path / "c")
    assert not target["a"].any()


def test_a_destination_of_another_dtype_or_shape_is_refused(tmp_path: Path) -> None:
    varve.torch.save({"a": torch.ones(2, 3)}, tmp_path / "c")
    for dtype, shape in itertools.product([torch.float32, torch.float64], [(2, 3), (3, 2), (6,)]):
        target = {"a": torch.zeros(shape, dtype=dtype)}
        if (dtype, shape) == (torch.float32, (2, 3)):
            varve.torch.load(target, tmp_path / "c")
        else:
            with pytest.raises(varve.InvalidArgumentError, match="mismatched: a"):
                varve.torch.load(target, tmp_path / "c")
            assert not target["a"].any()
