"""Tensors that are made of others: saved, read into new ones, and loaded into those that are there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import varve
import varve.torch

pytestmark = pytest.mark.filterwarnings("ignore")


def grid() -> torch.Tensor:
    return torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


def ragged() -> list[torch.Tensor]:
    return [torch.arange(6.0).reshape(2, 3), torch.arange(15.0).reshape(5, 3)]


def per_channel() -> torch.Tensor:
    scales, zeros = torch.arange(1, 65) / 10, torch.arange(64)
    return torch.quantize_per_channel(grid(), scales, zeros, 0, torch.qint8)


TORCH: dict[str, Callable[[], torch.Tensor]] = {
    "TwoTensor": lambda: TwoTensor(grid(), grid() + 1),
    "nested TwoTensor": lambda: TwoTensor(
        TwoTensor(grid(), grid() + 1), TwoTensor(grid() + 2, grid() + 3)
    ),
    "coo": lambda: (grid() * (grid() > 1)).to_sparse(),
    "coo, not coalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 4)),
    "csr": lambda: (grid() * (grid() > 1)).to_sparse_csr(),
    "csc": lambda: (grid() * (grid() > 1)).to_sparse_csc(),
    "bsr": lambda: grid().to_sparse_bsr((8, 8)),
    "bsc": lambda: grid().to_sparse_bsc((8, 8)),
    "jagged": lambda: torch.nested.nested_tensor(ragged(), layout=torch.jagged),
    "jagged with holes": lambda: torch.nested.narrow(
        torch.arange(96.0).reshape(4, 8, 3),
        1,
        torch.tensor([0, 1, 2, 0]),
        torch.tensor([2, 3, 1, 4]),
        layout=torch.jagged,
    ),
    "nested": lambda: torch.nested.nested_tensor(ragged()),
    "qint8": lambda: torch.quantize_per_tensor(grid(), 0.1, 3, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(grid(), 0.1, 3, torch.quint8),
    "qint32": lambda: torch.quantize_per_tensor(grid(), 0.1, 3, torch.qint32),
    "per channel": per_channel,
    "quint4x2": lambda: torch.quantize_per_channel(
        grid(), torch.ones(64), torch.zeros(64), 0, torch.quint4x2
    ),
}

DTYPES = [
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)),
]


def contents(tensor: Any) -> list[Any]:
    """Returns the inner tensors and numbers that are all of a tensor."""
    if isinstance(tensor, nn.Parameter) and not hasattr(type(tensor), "__tensor_flatten__"):
        tensor = tensor.data
    if tensor.is_nested:
        return [*tensor.unbind(), tensor.layout]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values(), tensor.is_coalesced()]
    if tensor.layout is not torch.strided:
        return [tensor.to_dense(), tensor.values(), tensor.layout]
    if tensor.is_quantized:
        channels = tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        scale = tensor.q_per_channel_scales() if channels else tensor.q_scale()
        zero = tensor.q_per_channel_zero_points() if channels else tensor.q_zero_point()
        return [tensor.int_repr(), scale, zero]
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, attributes = tensor.__tensor_flatten__()
        inner = [each for name in names for each in contents(getattr(tensor, name))]
        return [*inner, str(attributes)]
    if "torch.bits" in str(tensor.dtype) or tensor.element_size() == 1:
        return [tensor.view(torch.uint8), tensor.dtype]
    return [tensor]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or a.dtype != b.dtype or a.size(0) != b.size(0):
        return False
    pairs = zip(contents(a), contents(b), strict=True)
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


def check(tensor: Any, other: Any, path: Path) -> None:
    """Saves a tensor, reads it, and loads it into another of its kind."""
    varve.torch.save({"m": {"w": tensor}, "step": 1}, path)
    assert varve.torch.verify(path) == []
    assert same(varve.torch.read(path)["m"]["w"], tensor)
    assert same(varve.torch.read(path, keys="m.w")["m"]["w"], tensor)
    state = {"m": {"w": other}}
    varve.torch.load(state, path)
    assert same(state["m"]["w"], tensor)


@pytest.mark.parametrize("kind", TORCH)
def test_every_kind_of_torch_comes_back_bit_by_bit(kind: str, tmp_path: Path) -> None:
    check(TORCH[kind](), TORCH[kind](), tmp_path / "c")


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_without_operators_are_stored_by_their_bytes(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    content = torch.arange(16 * 32, dtype=torch.int64).to(torch.uint8).reshape(16, 32)
    tensor, other = content.clone().view(dtype), torch.zeros_like(content).view(dtype)
    varve.torch.save({"w": tensor, "t": tensor.t() if name == "uint4" else tensor}, tmp_path / "c")
    back = varve.torch.read(tmp_path / "c")
    assert back["w"].dtype is dtype and torch.equal(back["w"].view(torch.uint8), content)
    state = {"w": other}
    varve.torch.load(state, tmp_path / "c")
    assert state["w"] is other and torch.equal(other.view(torch.uint8), content)


def test_a_wrapped_destination_is_filled_in_place(tmp_path: Path) -> None:
    varve.torch.save({"w": TwoTensor(grid(), grid() + 1)}, tmp_path / "c")
    other = TwoTensor(torch.zeros(64, 256), torch.zeros(64, 256))
    memory = other.b
    varve.torch.load({"w": other}, tmp_path / "c")
    assert torch.equal(memory, grid() + 1)


def test_a_wrapper_of_quantized_tensors_is_made_anew(tmp_path: Path) -> None:
    def of(fill: float) -> TwoTensor:
        part = torch.quantize_per_tensor(torch.full((2, 3), fill), 0.5, 0, torch.qint8)
        return TwoTensor(part, part.clone())

    varve.torch.save({"w": of(2.0)}, tmp_path / "c")
    state = {"w": of(0.0)}
    varve.torch.load(state, tmp_path / "c")
    assert torch.equal(state["w"].b.dequantize(), torch.full((2, 3), 2.0))


def test_another_number_of_entries_replaces_a_sparse_destination(tmp_path: Path) -> None:
    varve.torch.save({"w": (grid() * (grid() > 1)).to_sparse()}, tmp_path / "c")
    state = {"w": torch.zeros(64, 256).to_sparse()}
    varve.torch.load(state, tmp_path / "c")
    assert torch.equal(state["w"].to_dense(), grid() * (grid() > 1))


def test_a_module_of_wrapped_parameters_loads_on_the_meta_device(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self, fill: float) -> None:
            super().__init__()
            self.w = nn.Parameter(TwoTensor(torch.full((4, 2), fill), torch.full((4, 2), fill + 1)))

    varve.torch.save({"model": Model(3.0)}, tmp_path / "c")
    with torch.device("meta"):
        hollow = Model(0.0)
    assert hollow.w.is_meta
    varve.torch.load({"model": hollow}, tmp_path / "c", assign=True)
    assert isinstance(hollow.w, nn.Parameter) and hollow.w.b.tolist() == [[4.0, 4.0]] * 4


def test_what_is_stored_otherwise_does_not_fit(tmp_path: Path) -> None:
    varve.torch.save({"w": grid(), "t": TwoTensor(grid(), grid())}, tmp_path / "c")
    plain = {"t": torch.zeros(64, 256)}
    about = (
        r"t \(stored a torch.*\.TwoTensor, wanted a plain tensor\)[\s\S]*\bread\(\).*dequantize\(\)"
    )
    with pytest.raises(varve.InvalidArgumentError, match=about):
        varve.torch.load(plain, tmp_path / "c")
    wrapped = {"w": TwoTensor(torch.zeros(64, 256), torch.zeros(64, 256))}
    about = r"stored a plain tensor, wanted a .*TwoTensor\)[\s\S]*quantize_.*\bread\(\)"
    with pytest.raises(varve.InvalidArgumentError, match=about):
        varve.torch.load(wrapped, tmp_path / "c")
    assert not plain["t"].any() and not wrapped["w"].a.any()


class Scaled(torch.Tensor):
    """A wrapper with an attribute, and one that cannot be stored."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, block: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, block: Any) -> None:
        self.codes = codes
        self.block = block

    def __tensor_flatten__(self) -> Any:
        return ["codes"], {"block": self.block}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, attributes: Any, size: Any, stride: Any) -> Any:
        return cls(inner["codes"], attributes["block"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} is not there")


class Other(Scaled):
    pass


def test_attributes_must_be_those_of_the_destination(tmp_path: Path) -> None:
    codes = torch.arange(6, dtype=torch.uint8)
    varve.torch.save({"w": Scaled(codes, 32)}, tmp_path / "c")
    other = Scaled(torch.zeros(6, dtype=torch.uint8), 64)
    for cast in (False, True):
        with pytest.raises(varve.InvalidArgumentError, match="block 32, wanted 64"):
            varve.torch.load({"w": other}, tmp_path / "c", cast=cast)
    assert not other.codes.any()


def test_a_wrapped_tensor_of_another_shape_does_not_fit(tmp_path: Path) -> None:
    varve.torch.save({"w": TwoTensor(grid(), grid() + 1)}, tmp_path / "c")
    other = TwoTensor(torch.zeros(70, 256), torch.zeros(70, 256))
    with pytest.raises(varve.InvalidArgumentError, match=r"shape \[64, 256\], wanted \[70, 256\]"):
        varve.torch.load({"w": other}, tmp_path / "c", fit="overlap")
    assert not other.a.any()


def test_another_class_of_the_same_parts_needs_cast(tmp_path: Path) -> None:
    codes = torch.arange(6, dtype=torch.uint8)
    varve.torch.save({"w": Scaled(codes, 32)}, tmp_path / "c")
    other = Other(torch.zeros(6, dtype=torch.uint8), 32)
    with pytest.raises(varve.InvalidArgumentError, match=r"Scaled, wanted a .*Other"):
        varve.torch.load({"w": other}, tmp_path / "c")
    varve.torch.load({"w": other}, tmp_path / "c", cast=True)
    assert torch.equal(other.codes, codes)


def test_an_attribute_that_is_no_plain_value_is_refused_by_name(tmp_path: Path) -> None:
    state = {"m": {"w": Scaled(torch.zeros(3), iter([]))}}
    with pytest.raises(varve.InvalidArgumentError, match=r'"m\.w.*Scaled.*block'):
        varve.torch.save(state, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


class Boxed(torch.Tensor):
    """A tensor with an attribute, as those of torchvision."""

    kind: str

    @staticmethod
    def of(data: torch.Tensor, kind: str) -> Boxed:
        made = data.as_subclass(Boxed)
        made.kind = kind
        return made


def test_attributes_of_a_class_that_has_no_inner_tensors_are_warned_of(tmp_path: Path) -> None:
    state = {"b": Boxed.of(torch.ones(3), "xyxy")}
    with pytest.warns(UserWarning, match=r'tensor "b": of a Boxed the elements .*\(kind\)'):
        varve.torch.save(state, tmp_path / "c")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tensor")
        varve.torch.save(state, tmp_path / "d")  # Once for each class.
    target = {"b": Boxed.of(torch.zeros(3), "cxcy")}
    varve.torch.load(target, tmp_path / "c")
    assert type(target["b"]) is Boxed and target["b"].kind == "cxcy"
    assert type(varve.torch.read(tmp_path / "c")["b"]) is torch.Tensor


def test_jagged_tensors_of_one_raggedness_stay_so(tmp_path: Path) -> None:
    a, other = (torch.nested.nested_tensor(ragged(), layout=torch.jagged) for _ in range(2))
    varve.torch.save({"a": a, "b": a * 2}, tmp_path / "c")
    state = {"a": other, "b": other + 1}
    varve.torch.load(state, tmp_path / "c")
    for back in (varve.torch.read(tmp_path / "c"), state):
        assert torch.equal((back["a"] + back["b"]).values(), a.values() * 3)


def test_one_in_a_tuple_is_refused_by_name(tmp_path: Path) -> None:
    state = {"m": {"pair": (TwoTensor(grid(), grid()), 1)}}
    with pytest.raises(varve.InvalidArgumentError, match=r'"m\.pair.*TwoTensor.*list of tensors'):
        varve.torch.save(state, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_without_the_class_the_inner_tensors_come_back(tmp_path: Path) -> None:
    """In a program that has not imported it. The class is not imported for the file."""
    path = tmp_path / "c"
    varve.torch.save({"m": {"w": TwoTensor(grid(), grid() + 1)}}, path)
    text = (
        "import sys, varve.torch\n"
        "w = varve.torch.read(sys.argv[1])['m']['w']\n"
        "assert list(w) == ['a', 'b'] and (w['b'] - w['a'] - 1).abs().max() < 1e-5\n"
        "assert not any('two_tensor' in name for name in sys.modules)\n"
    )
    done = programs.run(text, path)
    assert done.returncode == 0, done.stderr
    assert "TwoTensor" in done.stderr and "has not imported" in done.stderr
    assert set(varve.read(path)["m"]["w"]) == {"a", "b"}


def test_of_some_of_its_inner_tensors_no_wrapped_one_is_made(tmp_path: Path) -> None:
    path, part = tmp_path / "c", tmp_path / "part"
    varve.torch.save({"w": TwoTensor(grid(), grid() + 1), "p": torch.ones(2)}, path)
    assert list(varve.torch.read(path, keys="w.a")["w"]) == ["a"]
    varve.torch.convert(path, part, "varve", exclude=["w.b"], everything=True)
    assert torch.equal(varve.torch.read(part)["w"]["a"], grid())


def test_inner_tensors_are_entries_of_the_checkpoint(tmp_path: Path) -> None:
    varve.torch.save({"w": TwoTensor(grid(), grid() + 1)}, tmp_path / "c")
    assert set(varve.torch.open(tmp_path / "c").tensors) == {"w.a", "w.b"}
    varve.torch.convert(tmp_path / "c", tmp_path / "d", "varve")
    assert isinstance(varve.torch.read(tmp_path / "d")["w"], TwoTensor)
    assert varve.torch.diff(tmp_path / "c", tmp_path / "d") == []
    varve.torch.convert(tmp_path / "c", tmp_path / "whole.pt", "torch", everything=True)
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert torch.equal(whole["w"]["b"], grid() + 1)
