"""The state of another optimizer's class: refused by name before anything changes, as a fresh optimizer makes none."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import varve
import varve.torch

ao = pytest.importorskip("torchao.optim", reason="torchao is not installed")


@pytest.fixture(autouse=True)
def eager() -> None:
    torch.compiler.set_stance("force_eager")  # torchao compiles each step of an optimizer.


class Own(torch.optim.AdamW):
    """An optimizer whose first step is its own."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


KINDS = {
    "AdamW": torch.optim.AdamW,
    "AdamW8bit": ao.AdamW8bit,
    "AdamW4bit": ao.AdamW4bit,
    "AdamWFp8": ao.AdamWFp8,
    "Own": Own,
}
STATES = {"AdamW": "a plain tensor", "AdamW8bit": "a torchao.*OptimState8bit"}
STATES |= {"AdamW4bit": "a torchao.*OptimState4bit", "AdamWFp8": "a torchao.*OptimStateFp8"}


def trained(kind: str, steps: int, **options: Any) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = KINDS[kind](model.parameters(), lr=1e-3, **options)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def saved(kind: str, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Saves an optimizer that has stepped; the options of its groups are those of any other."""
    _, optimizer = trained(kind, 2)
    path = tmp_path / "c"
    varve.torch.save({"optim": {**optimizer.state_dict()}}, path)
    return path, optimizer.state_dict()


def plain(value: Any) -> torch.Tensor:
    return value.dequantize() if hasattr(value, "dequantize") else value


@pytest.mark.parametrize("cast", [False, True], ids=["", "cast"])
@pytest.mark.parametrize("steps", [0, 1], ids=["fresh", "stepped"])
@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("AdamW8bit", "AdamW"),
        ("AdamWFp8", "AdamW"),
        ("AdamW4bit", "AdamW8bit"),
        ("AdamW8bit", "AdamW4bit"),
    ],
)
def test_it_is_refused_with_class_parameter_and_ways_out(
    stored: str, wanted: str, steps: int, cast: bool, tmp_path: Path
) -> None:
    path, _ = saved(stored, tmp_path)
    model, optimizer = trained(wanted, steps)
    before = {key: plain(item).clone() for key, item in model.state_dict().items()}
    with pytest.raises(varve.InvalidArgumentError) as told:
        varve.torch.load({"optim": optimizer}, path, cast=cast, keys=["optim.state"])
    text = str(told.value)
    about = rf"optim\.state\.0\.exp_avg \(stored {STATES[stored]}.*, wanted {STATES[wanted]}"
    assert re.search(about, text), text
    assert f'the optimizer "optim" ({wanted}) would go on with the state of another' in text
    assert "dequantize()" in text
    assert len(optimizer.state) == (2 if steps else 0)
    assert all(torch.equal(before[key], item) for key, item in model.state_dict().items())


@pytest.mark.parametrize("format", ["varve", "dcp"])
@pytest.mark.parametrize("steps", [0, 1], ids=["fresh", "stepped"])
def test_plain_state_stays_plain_and_is_told(steps: int, format: Any, tmp_path: Path) -> None:
    """As where the parts of the ranks that saved were too small for more."""
    _, source = trained("AdamW", 1)
    varve.torch.save({"optim": source}, tmp_path / "c", format=format)
    _, optimizer = trained("AdamW8bit", steps)
    with pytest.warns(UserWarning, match=r"tensors of its state are stored plain") as told:
        varve.torch.load({"optim": optimizer}, tmp_path / "c", keys=["optim.state"])
    assert len(told) == 1
    moment = optimizer.state_dict()["state"][0]["exp_avg"]
    assert type(moment) is torch.Tensor
    assert torch.equal(moment, source.state_dict()["state"][0]["exp_avg"])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_what_sgd_makes_of_a_sparse_gradient_loads(tmp_path: Path) -> None:
    def sgd(steps: int) -> Any:
        embedding = torch.nn.Embedding(8, 2, sparse=True)
        made = torch.optim.SGD(embedding.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            embedding(torch.tensor([1, 3])).sum().backward()
            made.step()
        return made

    source, fresh = sgd(1), sgd(0)
    varve.torch.save({"optim": source}, tmp_path / "c")
    varve.torch.load({"optim": fresh}, tmp_path / "c")
    stored, loaded = (each.state_dict()["state"][0]["momentum_buffer"] for each in (source, fresh))
    assert loaded.layout is torch.sparse_coo
    assert torch.equal(loaded.to_dense(), stored.to_dense())


@pytest.mark.parametrize("steps", [0, 1], ids=["fresh", "stepped"])
def test_a_load_of_what_fits_leaves_it_out_and_says_so(steps: int, tmp_path: Path) -> None:
    path, state = saved("AdamW8bit", tmp_path)
    _, optimizer = trained("AdamW", steps)
    with pytest.warns(UserWarning, match=r"2 entries do not fit: the optimizer \"optim\""):
        report = varve.torch.load({"optim": optimizer}, path, strict=False)
    assert [each.partition(" ")[0] for each in report.mismatched] == [
        "optim.state.0.exp_avg",
        "optim.state.0.exp_avg_sq",
    ]
    now = optimizer.state_dict()["state"]
    assert torch.equal(now[1]["exp_avg"], state["state"][1]["exp_avg"])
    assert (0 in now) == bool(steps)
    assert all(type(item) is torch.Tensor for each in now.values() for item in each.values())


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
@pytest.mark.parametrize("steps", [0, 1], ids=["fresh", "stepped"])
def test_state_of_the_same_class_loads_without_a_word(
    kind: str, steps: int, tmp_path: Path
) -> None:
    path, state = saved(kind, tmp_path)
    for options in ({}, {"rename": {"optim.": "moved."}}, {"keys": ["optim.state"]}):
        name = "moved" if "rename" in options else "optim"
        _, optimizer = trained(kind, steps)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            varve.torch.load({name: optimizer}, path, **options)
        for key, each in state["state"].items():
            for part, item in each.items():
                loaded = optimizer.state_dict()["state"][key][part]
                assert type(loaded) is type(item)
                assert torch.equal(plain(loaded), plain(item))


def test_another_size_of_blocks_is_no_other_class(tmp_path: Path) -> None:
    _, optimizer = trained("AdamW8bit", 2, block_size=512)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    _, other = trained("AdamW8bit", 0)
    varve.torch.load({"optim": other}, tmp_path / "c")
    assert other.state_dict()["state"][0]["exp_avg"].block_size == 512


def test_moments_in_another_dtype_are_no_other_class(tmp_path: Path) -> None:
    _, optimizer = trained("AdamW", 1)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to(torch.bfloat16)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    _, other = trained("AdamW", 0)
    varve.torch.load({"optim": other}, tmp_path / "c")
    assert other.state_dict()["state"][0]["exp_avg"].dtype is torch.bfloat16


def test_of_an_optimizer_that_is_not_known_the_class_is_named_once(tmp_path: Path) -> None:
    path, state = saved("AdamW8bit", tmp_path)
    _, optimizer = trained("Own", 0)
    with pytest.warns(UserWarning, match=r"is a .*Own, and which tensors.*OptimState8bit") as told:
        varve.torch.load({"optim": optimizer}, path, keys=["optim.state"])
    assert len(told) == 1
    assert torch.equal(
        plain(optimizer.state_dict()["state"][0]["exp_avg"]),
        plain(state["state"][0]["exp_avg"]),
    )


def test_moments_of_a_wrapped_parameter_are_what_zeros_like_makes(tmp_path: Path) -> None:
    def adam(value: float) -> torch.optim.Optimizer:
        parameter = torch.nn.Parameter(TwoTensor(torch.full((2,), value), torch.ones(2)))
        made = torch.optim.AdamW([parameter], foreach=False)
        parameter.grad = TwoTensor(torch.full((2,), value), torch.full((2,), 2.0))
        return made

    optimizer = adam(1.0)
    optimizer.step()
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    fresh = adam(3.0)
    varve.torch.load({"optim": fresh}, tmp_path / "c")
    for made in (optimizer, fresh):
        moment = made.state_dict()["state"][0]["exp_avg"]
        assert type(moment) is TwoTensor
        assert moment.b.tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(("wanted", "steps"), [("AdamW", 0), ("AdamW", 1), ("AdamW8bit", 0)])
def test_a_dict_of_inner_tensors_is_no_moment(wanted: str, steps: int, tmp_path: Path) -> None:
    """A file of torch.save has it so where the state that was converted was wrapped."""
    path, _ = saved("AdamW8bit", tmp_path)
    varve.convert(path, tmp_path / "c.pt", "torch")
    _, optimizer = trained(wanted, steps)
    about = rf"optim\.state\.0\.exp_avg \(stored a dict, wanted {STATES[wanted]}.*\)"
    with pytest.raises(varve.InvalidArgumentError, match=about) as told:
        varve.torch.load({"optim": optimizer}, tmp_path / "c.pt", keys=["optim.state"])
    assert ("let it take a step before the load" in str(told.value)) == (wanted == "AdamW8bit")
    assert len(optimizer.state) == (2 if steps else 0)


def test_a_moment_that_is_there_takes_its_inner_tensors_from_a_dict(tmp_path: Path) -> None:
    path, state = saved("AdamW8bit", tmp_path)
    varve.convert(path, tmp_path / "c.pt", "torch")
    _, optimizer = trained("AdamW8bit", 1)
    varve.torch.load({"optim": optimizer}, tmp_path / "c.pt")
    moment = optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(moment.codes, state["state"][0]["exp_avg"].codes)
