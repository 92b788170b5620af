"""Tensors that are made of others, in formats of other software and in checkpoints that it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as stock
from safetensors.torch import load_file
from torch.testing._internal.two_tensor import TwoTensor

import varve
import varve.torch
import varve.torch.dcp

pytestmark = pytest.mark.filterwarnings("ignore")

torchao_optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")


def two(fill: float) -> Any:
    return TwoTensor(torch.full((8, 4), fill), torch.full((8, 4), fill + 1))


def eight_bit(fill: float) -> Any:
    made = torchao_optim.subclass_8bit.OptimState8bit.zeros((64, 128))
    made.codes.fill_(int(fill))
    made.scale.fill_(fill)
    return made


KINDS: dict[str, Callable[[float], Any]] = {"TwoTensor": two, "OptimState8bit": eight_bit}


def inner(tensor: Any) -> list[torch.Tensor]:
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


def same(a: Any, b: Any) -> bool:
    pairs = zip(inner(a), inner(b), strict=True)
    return type(a) is type(b) and all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save", [stock.save, varve.torch.dcp.save], ids=["torch", "drop-in"])
def test_what_torchs_planner_has_pickled_opens(kind: str, save: Any, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save({"m": {"w": KINDS[kind](3), "p": torch.ones(4)}}, checkpoint_id=str(path))
    assert varve.torch.verify(path) == []
    assert same(varve.torch.read(path)["m"]["w"], KINDS[kind](3))
    state = {"m": {"w": KINDS[kind](0), "p": torch.zeros(4)}}
    varve.torch.load(state, path)
    assert same(state["m"]["w"], KINDS[kind](3)) and state["m"]["p"].tolist() == [1.0] * 4
    state = {"m": {"w": KINDS[kind](0), "p": torch.zeros(4)}}
    varve.torch.dcp.load(state, checkpoint_id=str(path))
    assert same(state["m"]["w"], KINDS[kind](3)) and state["m"]["p"].tolist() == [1.0] * 4


def test_a_class_that_the_program_lacks_is_an_entry_only_torch_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    stock.save({"w": two(3)}, checkpoint_id=str(path))
    monkeypatch.setattr("torch.testing._internal.two_tensor.TwoTensor", None)
    with pytest.raises(varve.UnsupportedError, match="only torch can"):
        varve.torch.read(path)
    assert varve.torch.verify(path) == []


def test_a_flipped_bit_of_a_pickled_one_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "c"
    stock.save({"w": two(3.0)}, checkpoint_id=str(path))
    (file,) = path.glob("*.distcp")
    content = bytearray(file.read_bytes())
    at = content.find(torch.full((8, 4), 3.0).numpy().tobytes())
    assert at > 0
    content[at + 3] ^= 1
    file.write_bytes(content)
    with pytest.raises(varve.CorruptCheckpointError, match='"w"'):
        varve.torch.load({"w": two(0)}, path)
    with pytest.raises(varve.CorruptCheckpointError, match='"w"'):
        varve.torch.read(path)


def test_a_pickled_one_of_another_dtype_or_shape_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "c"
    stock.save({"w": two(3.0)}, checkpoint_id=str(path))
    low = TwoTensor(
        torch.zeros(8, 4, dtype=torch.bfloat16), torch.zeros(8, 4, dtype=torch.bfloat16)
    )
    for other in (low, TwoTensor(torch.zeros(4, 4), torch.zeros(4, 4))):
        with pytest.raises(varve.InvalidArgumentError, match="w"):
            varve.torch.load({"w": other}, path)
        assert not other.a.any()


def test_a_folder_of_hugging_faces_has_torchaos_names(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.warns(UserWarning, match='inner tensors of "layer.weight".*save_pretrained'):
        varve.torch.save({"layer.weight": two(3), "bias": torch.ones(2)}, path, format="hf")
    assert set(load_file(path / "model.safetensors")) == {
        "layer._weight_a",
        "layer._weight_b",
        "bias",
    }
