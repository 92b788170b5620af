"""Modules whose tensors are made of others: on the meta device, and with parts of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import varve
import varve.torch


def nested(rows: int, layout: torch.layout = torch.jagged) -> torch.Tensor:
    rows_of = [torch.arange(float(rows)), torch.arange(3.0)]
    return torch.nested.nested_tensor(rows_of, layout=layout)


def kept(count: int) -> torch.Tensor:
    """A diagonal of which `count` elements are kept."""
    return torch.diag(torch.arange(1.0, 7.0) * (torch.arange(6) < count))


#: Buffers whose inner tensors have sizes of their own.
KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "coo": lambda count: kept(count).to_sparse(),
    "csr": lambda count: kept(count).to_sparse_csr(),
    "csc": lambda count: kept(count).to_sparse_csc(),
    "bsr": lambda count: kept(count).to_sparse_bsr((2, 2)),
    "jagged": nested,
    "nested": lambda count: nested(count, torch.strided),
}


class Holder(nn.Module):
    """A wrapped parameter under two names, a plain one, and a buffer."""

    def __init__(self, buffer: torch.Tensor, value: float, device: str = "cpu") -> None:
        super().__init__()
        parts = [torch.full((4, 2), value + i, device=device) for i in range(2)]
        self.w = nn.Parameter(TwoTensor(*parts))
        self.tied = self.w
        self.frozen = nn.Parameter(TwoTensor(*parts[::-1]), requires_grad=False)
        self.plain = nn.Linear(2, 2, device=device)
        self.inner = nn.Module()
        self.inner.register_buffer("b", buffer.to(device))


def dense(tensor: torch.Tensor) -> list[Any]:
    if tensor.is_nested:
        return [each.tolist() for each in tensor.unbind()]
    return tensor.to_dense().tolist()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nested"])
def test_a_module_on_the_meta_device_gets_them_and_ties_stay(kind: str, tmp_path: Path) -> None:
    saved = Holder(KINDS[kind](5), 1.0)
    varve.torch.save({"m": saved}, tmp_path / "c")
    hollow = Holder(KINDS[kind](4), 3.0, "meta")
    with pytest.raises(varve.InvalidArgumentError, match=r"meta device: load with assign=True"):
        varve.torch.load({"m": hollow}, tmp_path / "c")
    varve.torch.load({"m": hollow}, tmp_path / "c", assign=True, strict="exact")
    assert not any(each.is_meta for each in (*hollow.parameters(), *hollow.buffers()))
    assert isinstance(hollow.w, nn.Parameter) and hollow.w.requires_grad
    assert hollow.w is hollow.tied and not hollow.frozen.requires_grad
    assert hollow.w.b.tolist() == [[2.0, 2.0]] * 4
    assert hollow.frozen.b.tolist() == [[1.0, 1.0]] * 4
    assert torch.equal(hollow.plain.weight, saved.plain.weight)
    assert hollow.inner.b.layout is saved.inner.b.layout
    assert dense(hollow.inner.b) == dense(saved.inner.b)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_buffer_of_other_sizes_takes_the_place_of_the_one_that_is_there(
    kind: str, tmp_path: Path
) -> None:
    """torch's load_state_dict refuses most of these, after other tensors have been filled."""
    saved = Holder(KINDS[kind](5), 1.0)
    varve.torch.save({"m": saved}, tmp_path / "c")
    other = Holder(KINDS[kind](4), 3.0)
    varve.torch.load({"m": other}, tmp_path / "c", strict="exact")
    assert dense(other.inner.b) == dense(saved.inner.b)
    assert other.w.a.tolist() == [[1.0, 1.0]] * 4


def test_a_plain_parameter_on_the_meta_device_is_not_made_one(tmp_path: Path) -> None:
    varve.torch.save({"w": TwoTensor(torch.ones(2, 2), torch.ones(2, 2))}, tmp_path / "c")
    hollow = nn.Module()
    hollow.w = nn.Parameter(torch.ones(2, 2, device="meta"))
    about = r"w \(stored a torch.*TwoTensor, wanted a plain tensor\)"
    with pytest.raises(varve.InvalidArgumentError, match=about):
        varve.torch.load(hollow, tmp_path / "c", assign=True)
    assert hollow.w.is_meta


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_a_model_quantized_on_the_meta_device_computes_as_the_saved_one(
    config: str, tmp_path: Path
) -> None:
    quantization = pytest.importorskip("torchao.quantization")

    def model(device: str) -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(64, 32, dtype=torch.bfloat16, device=device))
        quantization.quantize_(made, getattr(quantization, config)())
        return made

    saved, hollow = model("cpu"), model("meta")
    varve.torch.save({"m": saved}, tmp_path / "c")
    varve.torch.load({"m": hollow}, tmp_path / "c", assign=True, strict="exact")
    given = torch.randn(3, 64, dtype=torch.bfloat16)
    assert type(hollow[0].weight) is type(saved[0].weight)
    assert torch.equal(hollow(given), saved(given))
