"""Tensors that are made of others, by class x format x world: bit-exact, or refused by name at the save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchao", reason="torchao is not installed")

import wrapped_matrix_jobs as jobs
from ranks import run_ranks
from test_wrapped import TORCH, same
from wrapped_classes import MATRIX
from wrapped_making import REASONS, classes_in, kind_of, make, unlike

import varve
import varve.torch

pytestmark = pytest.mark.filterwarnings("ignore")


def test_every_class_is_in_the_matrix_or_has_a_reason_not_to_be() -> None:
    # Nodes of torch's compiler, and classes of torch's own tests.
    others = ("torch._inductor.", "torch.testing._internal.")
    rows = {row.kind for row in MATRIX.values()}
    found = {kind for kind in classes_in("torch", "torchao") if not kind.startswith(others)}
    assert found | rows == rows | REASONS.keys() and not rows & REASONS.keys()


@pytest.mark.parametrize("form", jobs.FORMATS)
@pytest.mark.parametrize("name", MATRIX)
def test_a_whole_one_is_bit_exact_or_refused_by_name(name: str, form: str, tmp_path: Path) -> None:
    path, tensor = str(tmp_path / "c"), make(name)
    assert not unlike(make(name), tensor) and unlike(make(name, 1), tensor)
    if name not in jobs.rows(form):
        with pytest.raises(varve.Error, match=rf'"m\.w".*{kind_of(MATRIX[name]).__name__}'):
            jobs.save(form, {"m": {"w": tensor}}, path)
        assert list(tmp_path.iterdir()) == []
        return
    jobs.save(form, {"m": {"w": tensor}}, path)
    assert varve.torch.verify(path) == []
    state = {"m": {"w": make(name, 1)}}
    jobs.load(form, state, path)
    assert unlike(state["m"]["w"], tensor) == ""
    assert unlike(varve.torch.read(path)["m"]["w"], tensor) == ""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """All rows as DTensors over 2 ranks: where they are saved, and what the ranks say of it."""
    path = str(tmp_path_factory.mktemp("sharded"))
    for name in MATRIX:
        make(name)  # Classes must be there before a read makes tensors of them.
    return path, run_ranks(2, jobs.save_all, path)


def exact(form: str) -> dict[str, str]:
    return dict.fromkeys(jobs.rows(form, sharded=True), "")


@pytest.mark.parametrize("form", jobs.FORMATS)
def test_shards_are_bit_exact_or_refused_by_name(form: str, sharded: tuple[str, Any]) -> None:
    for said in sharded[1]:
        refused = {name: said[form].pop(name) for name in MATRIX.keys() - exact(form).keys()}
        assert said[form] == exact(form)
        for name, error in refused.items():
            assert f'"m.{name}"' in error and kind_of(MATRIX[name]).__name__ in error


@pytest.mark.parametrize("size", [0, 4])
def test_shards_are_bit_exact_in_another_world(size: int, sharded: tuple[str, Any]) -> None:
    """Or an error says that only the same layout loads them. Size 0 is a process without a group."""
    if size == 0:
        all_said = [jobs.load_all(0, 0, sharded[0])]
    else:
        all_said = run_ranks(size, jobs.load_all, sharded[0])
    for said in all_said:
        for form in jobs.FORMATS:
            wanted = exact(form)
            if form != "drop-in":
                wanted |= {n: "layout" for n in wanted if MATRIX[n].elsewhere != "exact"}
            outcomes = {
                name: "layout" if "only the same layout loads it" in text else text
                for name, text in said[form].items()
            }
            assert outcomes == wanted


@pytest.mark.parametrize("form", jobs.FORMATS)
def test_a_read_makes_whole_ones_of_shards(form: str, sharded: tuple[str, Any]) -> None:
    """Or gives the inner tensors, where the class makes no whole one of its shards."""
    state = varve.torch.read(f"{sharded[0]}/{form}")
    for name in exact(form):
        if form != "drop-in" and MATRIX[name].elsewhere != "exact":
            assert set(state[name]) == set(MATRIX[name].inner)
        else:
            assert (name, unlike(state[name], make(name))) == (name, "")


@pytest.mark.parametrize("form", ["varve", "dcp"])
def test_hollow_ones_are_replaced(form: str, tmp_path: Path) -> None:
    # Of classes that are not on that device: two on the CPU alone, one that asks for a number.
    names = MATRIX.keys() - {"Int8Lut", "IntxOpaque", "Float8 when multiplied, scaled"}
    path, state = str(tmp_path / "c"), {name: make(name) for name in names}
    jobs.save(form, state, path)
    hollow = {name: make(name, device="meta") for name in names}
    varve.torch.load(hollow, path, assign=True)
    assert {n: unlike(hollow[n], state[n]) for n in names} == dict.fromkeys(names, "")


@pytest.mark.parametrize("kind", TORCH)
def test_kinds_of_torch_are_bit_exact_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    """In torch's format. Kinds that only torch's planner could store are refused by the drop-in."""
    tensor, state = TORCH[kind](), {"m": {"w": TORCH[kind]()}}
    jobs.save("dcp", {"m": {"w": tensor}}, str(tmp_path / "c"))
    jobs.load("dcp", state, str(tmp_path / "c"))
    assert same(state["m"]["w"], tensor) and same(
        varve.torch.read(tmp_path / "c")["m"]["w"], tensor
    )
    if "TwoTensor" not in kind:
        with pytest.raises(varve.Error, match=r'"m\.w".*varve\.torch\.save stores it'):
            jobs.save("drop-in", {"m": {"w": tensor}}, str(tmp_path / "d"))


def _without_parts() -> dict[str, Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
    from torch.masked import masked_tensor
    from torchao.prototype.autoround.multi_tensor import MultiTensor
    from torchao.quantization.qat.affine_fake_quantized_tensor import _AffineFakeQuantizedTensor
    from torchao.swizzle.swizzle_tensor import SwizzleTensor

    plain = torch.ones(64, 128)
    return {
        "FakeTensor": FakeTensorMode().from_tensor(plain),
        "LocalShardsWrapper": LocalShardsWrapper([plain, plain], [(0, 0), (64, 0)]),
        "MaskedTensor": masked_tensor(plain, plain > 0),
        "MultiTensor": MultiTensor([plain, plain + 1]),
        "SwizzleTensor": SwizzleTensor(plain.bfloat16()),
        "UninitializedBuffer": torch.nn.parameter.UninitializedBuffer(),
        "UninitializedParameter": torch.nn.parameter.UninitializedParameter(),
        "_AffineFakeQuantizedTensor": _AffineFakeQuantizedTensor(plain, lambda x: x),
    }


@pytest.mark.parametrize("form", jobs.FORMATS)
def test_what_cannot_be_taken_apart_is_refused_by_name(form: str, tmp_path: Path) -> None:
    for kind, tensor in _without_parts().items():
        with pytest.raises(varve.Error, match=r"m\.w"):
            jobs.save(form, {"m": {"w": tensor}}, str(tmp_path / kind))
    assert list(tmp_path.iterdir()) == []
