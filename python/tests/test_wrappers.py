"""Names of parameters with and without the parts that torch's wrappers of modules add."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from wrapper_jobs import ddp_round, net, same

import varve
import varve.torch
from varve._wrappers import unwrapped


def compiled(module: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(module)  # type: ignore[return-value]


def compiled_within(module: torch.nn.Module) -> torch.nn.Module:
    module[0] = torch.compile(module[0])  # type: ignore[operator]
    return module


def checkpointed(module: torch.nn.Module) -> torch.nn.Module:
    module[1] = checkpoint_wrapper(torch.compile(module[1]))  # type: ignore[operator]
    return module


class Keeper(torch.nn.Module):
    """Keeps a module as FSDP1 does."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module


class Parallel(torch.nn.Module):
    """Keeps a module as DataParallel and DistributedDataParallel do."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


WRAPPERS: list[Callable[[torch.nn.Module], torch.nn.Module]] = [
    compiled,
    compiled_within,
    checkpointed,
    Keeper,
    Parallel,
    lambda module: compiled(Parallel(checkpointed(module))),
]


def differ(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return list(a.state_dict()) != list(b.state_dict())


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.filterwarnings("ignore:all names begin with")
@pytest.mark.parametrize("stored", ["varve", "dcp", "torch", "safetensors"])
def test_a_wrapped_module_loads_what_a_bare_one_saved_and_the_other_way_round(
    stored: str, wrap: Any, tmp_path: Path
) -> None:
    for number, (saved, wanted) in enumerate([(net(1), wrap(net(2))), (wrap(net(3)), net(4))]):
        path = tmp_path / str(number)
        assert differ(saved, wanted)
        state = {"model": saved, "step": 7}
        if stored == "torch":
            torch.save({"model": saved.state_dict(), "step": 7}, path)
        elif stored == "safetensors":
            varve.torch.save(state["model"], path, format="hf")  # No containers: names alone.
        else:
            varve.torch.save(state, path, format=stored)  # type: ignore[arg-type]
        filled = {"model": wanted, "step": 0}
        report = varve.torch.load(wanted if stored == "safetensors" else filled, path)
        assert same(saved, wanted)
        assert report.missing == [] and report.unexpected == []


def test_the_optimizer_of_wrapped_names_is_loaded_too(tmp_path: Path) -> None:
    def moments(names: list[str], value: float) -> dict[str, Any]:
        return {name: {"exp_avg": torch.full((3,), value), "step": value} for name in names}

    saved = {"optim": {"state": moments(["_orig_mod.0.weight", "_orig_mod.0.bias"], 1.0)}}
    varve.torch.save(saved, tmp_path / "a")
    wanted = {"optim": {"state": moments(["module.0.weight", "module.0.bias"], 0.0)}}
    varve.torch.load(wanted, tmp_path / "a")
    for entry in wanted["optim"]["state"].values():
        assert entry["exp_avg"].tolist() == [1.0] * 3 and entry["step"] == 1.0


def test_containers_count_as_parts_of_names(tmp_path: Path) -> None:
    varve.save({"module": {"layer": {"w": np.ones(3)}, "step": 4}}, tmp_path / "a")
    state: dict[str, Any] = {"layer": {"w": np.zeros(3)}, "step": 0}
    varve.load(state, tmp_path / "a")
    assert state["layer"]["w"].sum() == 3 and state["step"] == 4
    nested: dict[str, Any] = {"_orig_mod": {"module": {"layer": {"w": np.zeros(3)}}}}
    varve.load(nested, tmp_path / "a")
    assert nested["_orig_mod"]["module"]["layer"]["w"].sum() == 3


def test_what_is_empty_takes_nothing_of_another_name(tmp_path: Path) -> None:
    varve.save({"layer": {"w": np.ones(3)}}, tmp_path / "a")
    state: dict[str, Any] = {"module": {}, "layer": {}}
    report = varve.load(state, tmp_path / "a", strict=False)
    assert state["module"] == {} and state["layer"]["w"].sum() == 3
    assert report.unexpected == []


def test_one_note_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    varve.torch.save({"model": net(1)}, tmp_path / "a")
    caplog.set_level(logging.INFO, "varve")

    def notes() -> list[str]:
        return [text for text in caplog.messages if "wrappers" in text]

    varve.torch.load({"model": net(2)}, tmp_path / "a")
    assert notes() == []
    varve.torch.load({"model": compiled(net(2))}, tmp_path / "a")
    [note] = notes()
    assert (
        '4 names differ from the stored ones by the parts of wrappers alone, as "model._orig_mod.'
        in note
    )


def test_an_entry_is_nobodys_twice(tmp_path: Path) -> None:
    varve.save({"a": {"w": np.ones(3)}}, tmp_path / "one")
    both = {"a": {"w": np.zeros(3), "module.w": np.zeros(3)}}
    with pytest.raises(
        varve.InvalidArgumentError, match=r"missing from the checkpoint: a\.module\.w"
    ):
        varve.load(both, tmp_path / "one")
    varve.load(both, tmp_path / "one", strict=False)
    assert both["a"]["w"].sum() == 3 and both["a"]["module.w"].sum() == 0
    varve.save({"a": {"_orig_mod.w": np.ones(3), "module.w": np.ones(3)}}, tmp_path / "two")
    with pytest.raises(varve.InvalidArgumentError, match=r"missing from the checkpoint: a\.w"):
        varve.load({"a": {"w": np.zeros(3)}}, tmp_path / "two")


def test_keys_rename_and_assign_go_with_it(tmp_path: Path) -> None:
    varve.torch.save({"model": compiled(net(1)), "step": 3}, tmp_path / "a")
    wanted, other = net(2), net(2)
    varve.torch.load({"model": wanted, "step": 0}, tmp_path / "a", keys="model.0.weight")
    assert torch.equal(wanted[0].weight, net(1)[0].weight)
    assert torch.equal(wanted[1].weight, net(2)[1].weight)
    varve.torch.load({"net": other}, tmp_path / "a", rename={"model": "net"})
    assert same(other, net(1))
    with torch.device("meta"):
        hollow = net(5)
    varve.torch.load({"model": hollow}, tmp_path / "a", assign=True)
    assert same(hollow, net(1))


# ---- strip_wrappers


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_save_leaves_the_parts_of_wrappers_out(wrap: Any, tmp_path: Path) -> None:
    state = {"model": wrap(net(1)), "list": [1, 2], "module": {"n": 3}}
    varve.torch.save(state, tmp_path / "save", strip_wrappers=True)
    varve.torch.async_save(state, tmp_path / "async", strip_wrappers=True).result()
    with varve.torch.CheckpointManager(
        tmp_path / "run", save_options={"strip_wrappers": True}
    ) as manager:
        manager.save(1, state, force=True)
    for path in ("save", "async", "run/step-00000001"):
        read = varve.torch.read(tmp_path / path)
        assert list(read["model"]) == list(net(1).state_dict())
        assert read["list"] == [1, 2] and read["n"] == 3
    again = wrap(net(2))
    varve.torch.load({"model": again}, tmp_path / "save")
    assert same(again, net(1))


def test_names_that_become_one_are_refused(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "module.w": torch.zeros(2)}}
    with pytest.raises(varve.InvalidArgumentError, match=r'strip_wrappers: .* the name "w"'):
        varve.torch.save(state, tmp_path / "a", strip_wrappers=True)
    with pytest.raises(varve.InvalidArgumentError, match="strip_wrappers"):
        varve.torch.save(state, tmp_path / "a", strip_wrappers="yes")  # type: ignore[arg-type]


def test_ranks_under_ddp_save_names_without_module(tmp_path: Path) -> None:
    assert run_ranks(2, ddp_round, str(tmp_path)) == [True, True]
    read = varve.torch.read(tmp_path / "stripped")
    assert list(read["model"]) == list(net(1).state_dict())


# ---- Names


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("module.a.w", "a.w"),
        ("a.module._orig_mod.w", "a.w"),
        ("a._fsdp_wrapped_module._checkpoint_wrapped_module", "a"),
        ("module", ""),
        ("modules.a", "modules.a"),
        ("a.submodule.w", "a.submodule.w"),
        ("my_orig_mod.w", "my_orig_mod.w"),
        ("a.w", "a.w"),
    ],
)
def test_whole_parts_are_left_out(name: str, short: str) -> None:
    assert unwrapped(name) == short


@pytest.mark.slow
def test_a_hundred_thousand_names_take_time_in_proportion(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        saved = {f"module.layers.{i}.w": np.ones(1, np.float32) for i in range(count)}
        varve.save({"model": saved}, tmp_path / str(count))
        state = {"model": {f"layers.{i}.w": np.zeros(1, np.float32) for i in range(count)}}
        begin = time.process_time()
        varve.load(state, tmp_path / str(count))
        assert state["model"]["layers.7.w"][0] == 1
        return time.process_time() - begin

    assert seconds(100_000) < 10 * (seconds(20_000) + 0.1)


# ---- Names that differ otherwise


def refusal(wanted: dict[str, Any], path: Path) -> str:
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.load(wanted, path)
    return str(caught.value)


def entries(names: str, value: float = 0.0) -> dict[str, Any]:
    return {name: np.full(2, value) for name in names.split()}


LAYERS = "enc.0.attn.w enc.0.mlp.w enc.1.attn.w enc.1.mlp.w"


@pytest.mark.parametrize(
    ("wanted", "rename", "found"),
    [
        (LAYERS.replace("enc", "net"), {"enc.": "net."}, 4),
        (LAYERS.replace("enc.", ""), {"enc.": ""}, 4),
        ("backbone." + LAYERS.replace(" ", " backbone."), {"enc.": "backbone.enc."}, 4),
        (LAYERS.replace("enc.", "enc.layer."), {"enc.": "enc.layer."}, 4),
        (LAYERS.replace(".attn.", ".self_attn."), "name.replace('.attn.', '.self_attn.')", 2),
        (LAYERS.replace(".attn.", "."), "name.replace('.attn.', '.')", 2),
        ("e0.attn.w e0.mlp.w e1.attn.w e1.mlp.w", {"enc.0.": "e0.", "enc.1.": "e1."}, 4),
        (
            LAYERS.replace(".attn.", ".at.").replace(".mlp.", ".ff."),
            "name.replace('.attn.', '.at.').replace('.mlp.', '.ff.')",
            4,
        ),
    ],
)
def test_the_error_shows_the_nearest_names_and_a_rename_that_finds_them(
    wanted: str, rename: Any, found: int, tmp_path: Path
) -> None:
    varve.save({**entries(LAYERS, 1.0), "step": 3}, tmp_path / "a")
    state = {**entries(wanted), "step": 0}
    text = refusal(state, tmp_path / "a")
    shown = f"rename={rename!r}" if isinstance(rename, dict) else f"rename=lambda name: {rename}"
    assert f"{shown} finds all {found} missing names" in text
    assert '(wanted -> stored): "' in text
    given = rename if isinstance(rename, dict) else eval(f"lambda name: {rename}")
    report = varve.load(state, tmp_path / "a", rename=given)
    assert report.missing == [] and state["step"] == 3
    assert all(array.sum() == 2 for name, array in state.items() if name != "step")


def test_a_suggestion_leaves_alone_what_fits(tmp_path: Path) -> None:
    varve.save({**entries(LAYERS + " dec.w", 1.0)}, tmp_path / "a")
    state = entries("net.enc.0.attn.w net.enc.0.mlp.w dec.w")
    text = refusal(state, tmp_path / "a")
    assert "rename={'enc.': 'net.enc.'} finds all 2 missing names" in text
    varve.load(state, tmp_path / "a", rename={"enc.": "net.enc."})


def test_a_misspelt_name_is_shown_beside_the_nearest(tmp_path: Path) -> None:
    varve.save(entries("encoder.weight decoder.weight"), tmp_path / "a")
    text = refusal(entries("encodr.weight"), tmp_path / "a")
    assert '"encodr.weight" -> "encoder.weight"; rename={' in text
    text = refusal(entries("decoder.weigth"), tmp_path / "a")
    assert '"decoder.weigth" -> "decoder.weight"' in text


def test_nothing_is_suggested_where_nothing_is_near(tmp_path: Path) -> None:
    varve.save(entries("a b"), tmp_path / "a")
    assert "nearest" not in refusal(entries("something.else"), tmp_path / "a")


def test_a_rename_is_shown_only_if_it_finds_most_of_the_names(tmp_path: Path) -> None:
    """One that finds one name of many leaves the user with another error, one name shorter."""
    varve.save(entries("h.0.attn.w h.0.mlp.w h.1.attn.w wte"), tmp_path / "a")
    text = refusal(entries("a.0.q.w a.0.k.w a.0.v.w a.0.mlp.w a.0.up.w a.0.down.w"), tmp_path / "a")
    assert '"a.0.mlp.w" -> "h.0.mlp.w"' in text and "rename=" not in text
    text = refusal(entries("net.0.attn.w net.0.mlp.w net.1.attn.w other"), tmp_path / "a")
    assert "rename={'h.': 'net.'} finds 3 of the 4 missing names" in text


def test_tensors_of_other_shapes_are_no_pair(tmp_path: Path) -> None:
    shapes = {"q_proj": (4, 4), "k_proj": (2, 4)}
    stored = {f"l.{i}.{n}.w": np.ones(shape) for i in range(2) for n, shape in shapes.items()}
    varve.save({**stored, "n": 1}, tmp_path / "a")
    renamed = {"q_proj": "query", "k_proj": "key"}
    wanted = {f"l.{i}.{renamed[n]}.w": np.zeros(s) for i in range(2) for n, s in shapes.items()}
    text = refusal({**wanted, "n": 1}, tmp_path / "a")
    assert '"l.0.key.w" -> "l.0.k_proj.w"' in text and '"l.0.query.w" -> "l.0.q_proj.w"' in text
    assert "finds all 4 missing names" in text
    other = {name: np.zeros(9) for name in wanted}
    assert "nearest" not in refusal({**other, "n": 1}, tmp_path / "a")
    grown = {f"net.{name}": np.zeros((9, 9)) for name in stored}
    with pytest.raises(varve.InvalidArgumentError, match=r"rename=\{'': 'net\.'\} finds all 4"):
        varve.load(grown, tmp_path / "a", fit="overlap")


def test_what_lightning_wraps_a_model_in_is_found(tmp_path: Path) -> None:
    model = entries("embed.w layers.0.w layers.1.w norm.w")
    nested = {"state_dict": {f"model.{name}": array for name, array in model.items()}, "epoch": 1}
    varve.save(nested, tmp_path / "a")
    assert "rename={'state_dict.model.': ''} finds all 4" in refusal(model, tmp_path / "a")
    assert "rename={'state_dict.': ''} finds all 4" in refusal({"model": model}, tmp_path / "a")


def test_names_of_a_file_without_containers_are_compared_too(tmp_path: Path) -> None:
    varve.torch.save({"model.w": torch.ones(2)}, tmp_path / "a", format="hf")
    with pytest.raises(varve.InvalidArgumentError, match=r"rename=\{'model\.': ''\} finds it"):
        varve.torch.load({"w": torch.zeros(2)}, tmp_path / "a")


@pytest.mark.slow
def test_a_refusal_of_many_names_takes_time_in_proportion(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        varve.save(entries(" ".join(f"a.{i}.w" for i in range(count))), tmp_path / str(count))
        state = entries(" ".join(f"b.{i}.w" for i in range(count)))
        begin = time.process_time()
        assert "rename={'a.': 'b.'} finds all" in refusal(state, tmp_path / str(count))
        return time.process_time() - begin

    assert seconds(100_000) < 10 * (seconds(20_000) + 0.1)
