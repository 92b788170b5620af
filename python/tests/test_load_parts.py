"""Loads of a part: what strict asks for, keys, rename, cast, modules and meta tensors."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import varve
import varve.torch

LINEAR = {"weight", "bias"}


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(4, 4, dtype=dtype) for _ in range(3)]
    return torch.nn.Sequential(*layers)


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A checkpoint of a model, its optimizer after a step, and a step count."""
    trained = model(1)
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "step-1"
    varve.torch.save({"model": trained, "optim": optimizer, "step": 1}, path)
    return path


def stored(path: Path) -> dict[str, Any]:
    return dict(varve.torch.read(path, "model", flat=True))


def assert_is_stored(loaded: torch.nn.Module, path: Path) -> None:
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, stored(path)[f"model.{name}"]), name


def test_the_model_alone_is_loaded_from_a_training_checkpoint(training: Path) -> None:
    target = model()
    report = varve.torch.load({"model": target}, training)
    assert_is_stored(target, training)
    assert report.loaded == 6
    assert report.missing == report.mismatched == []
    assert "step" in report.unexpected
    assert all(not name.startswith("model.") for name in report.unexpected)


def test_a_report_shows_ten_names_and_how_many_more() -> None:
    names = [f"n{i}" for i in range(23)]
    shown = repr(varve.LoadReport(loaded=1, unexpected=names, mismatched=["a"]))
    assert "missing=[]" in shown and "'n9' and 13 more]" in shown and "mismatched=['a']" in shown


def test_exact_refuses_what_is_left_over_and_changes_nothing(training: Path) -> None:
    target = model()
    before = model()
    with pytest.raises(
        varve.InvalidArgumentError, match=r"unexpected in the checkpoint, 31 entries: optim\."
    ):
        varve.torch.load({"model": target}, training, strict="exact")
    assert same(target, before)
    everything = varve.torch.read(training)
    assert varve.torch.load(everything, training, strict="exact").unexpected == []


@pytest.mark.parametrize("strict", ["exactly", 1, None, "True"])
def test_a_strict_that_is_none_is_refused(training: Path, strict: Any) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="strict="):
        varve.torch.load({"model": model()}, training, strict=strict)


def test_differences_are_listed_ten_of_each_and_counted(tmp_path: Path) -> None:
    varve.save({f"s{i:02}": i for i in range(14)}, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError) as caught:
        varve.load({f"w{i:02}": i for i in range(25)}, tmp_path / "c")
    lines = str(caught.value).splitlines()
    assert "missing from the checkpoint, 25 entries: w00, w01" in lines[1]
    assert lines[1].endswith("w09 and 15 more")
    assert lines[2].endswith("s09 and 4 more")


def test_loading_nothing_is_a_warning_with_counts(training: Path) -> None:
    with pytest.warns(UserWarning, match=r"nothing was loaded: of 6 wanted entries 6 are missing"):
        varve.torch.load(model(), training, strict=False)
    with pytest.warns(UserWarning, match=r"nothing was loaded: the destination wants none"):
        varve.torch.load({}, training)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load({"model": model(), "other": 3}, training, strict=False)


def test_names_decide_where_containers_differ(tmp_path: Path) -> None:
    varve.torch.save({"model": model(1), "a": {"b": {"c": 3}}}, tmp_path / "c")
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    state = {"model": {str(i): layer for i, layer in enumerate(layers)}, "a.b": {"c": 0}}
    report = varve.torch.load(state, tmp_path / "c", strict="exact")
    assert report.loaded == 7
    assert state["a.b"] == {"c": 3}
    for i, layer in enumerate(layers):
        assert torch.equal(layer.weight, model(1)[i].weight)  # type: ignore[index]
    with pytest.raises(
        varve.InvalidArgumentError, match=r"from the checkpoint: a\.b\.d\n|a\.b\.d$"
    ):
        varve.torch.load({"a.b": {"c": 0, "d": 0}}, tmp_path / "c")


# ---- keys ----


def test_keys_fill_only_what_they_name(training: Path) -> None:
    target, before = model(), model()
    report = varve.torch.load(
        {"model": target, "new": 5}, training, keys=["model.0", "model.*.bias"]
    )
    assert report.loaded == 4
    assert report.missing == report.unexpected == []
    for name, tensor in target.state_dict().items():
        filled = name.startswith("0.") or name.endswith("bias")
        source = stored(training)[f"model.{name}"] if filled else before.state_dict()[name]
        assert torch.equal(tensor, source), name


def test_a_key_that_the_destination_has_and_the_checkpoint_lacks_is_missing(training: Path) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="missing from the checkpoint: new"):
        varve.torch.load({"model": model(), "new": 5}, training, keys=["model", "new"])


def test_keys_of_containers_that_are_made(tmp_path: Path) -> None:
    varve.save({"a": {"x": [np.ones(1), np.ones(2)], "y": 3}, "b": 4}, tmp_path / "c")
    state: dict[str, Any] = {"a": None, "b": None}
    varve.load(state, tmp_path / "c", keys=["a.x.1", "a.y"])
    assert state["b"] is None
    assert state["a"]["y"] == 3
    assert list(state["a"]["x"]) == ["1"]
    full: dict[str, Any] = {"a": {"x": [np.zeros(1)], "y": 0}, "b": 0}
    varve.load(full, tmp_path / "c", keys="a.x.0")
    assert (full["a"]["x"][0][0], len(full["a"]["x"]), full["a"]["y"], full["b"]) == (1, 1, 0, 0)
    varve.load(full, tmp_path / "c", keys="a.x")
    assert len(full["a"]["x"]) == 2


def test_an_object_of_which_nothing_is_chosen_is_left_alone(tmp_path: Path) -> None:
    class Counter:
        loads = 0

        def state_dict(self) -> dict[str, Any]:
            return {"n": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loads += 1

    varve.save({"c": Counter(), "x": 1}, tmp_path / "c")
    counter = Counter()
    varve.load({"c": counter, "x": 0}, tmp_path / "c", keys="x")
    assert counter.loads == 0
    varve.load({"c": counter, "x": 0}, tmp_path / "c", keys="c")
    assert counter.loads == 1


@pytest.mark.parametrize("keys", [3, [3], [None], {"a": 1, 2: 3}])
def test_keys_that_are_none_are_refused(training: Path, keys: Any) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="keys="):
        varve.torch.load({"step": 0}, training, keys=keys)
    with pytest.raises(varve.InvalidArgumentError, match="keys="):
        varve.torch.read(training, keys)


def test_many_keys_cost_what_the_names_cost(tmp_path: Path) -> None:
    count = 20_000
    varve.save({f"layer.{i}.w": i for i in range(count)}, tmp_path / "c")
    keys = [f"layer.{i}.w" for i in range(0, count, 10)]
    keys += [f"layer.{i}.?" for i in range(1, count, 10)]
    start = time.monotonic()
    assert len(varve.read(tmp_path / "c", keys, flat=True)) == len(keys)
    assert len(varve.read(tmp_path / "c", keys)) == len(keys)
    assert time.monotonic() - start < 30  # 4,000 keys x 20,000 names took minutes.


# ---- rename ----


def test_a_module_is_a_destination_and_prefixes_are_renamed(training: Path) -> None:
    target = model()
    report = varve.torch.load(target, training, rename={"model.": ""})
    assert_is_stored(target, training)
    assert "optim.param_groups.0.lr" in report.unexpected or report.unexpected
    saved_bare = training.parent / "bare"
    varve.torch.save(target, saved_bare)
    again = model()
    varve.torch.load(again, saved_bare, strict="exact")
    assert same(target, again)


def test_rename_by_a_function_of_stored_names(training: Path) -> None:
    target = {f"layers.{i}.w": torch.zeros(4, 4) for i in range(3)}

    def wanted(name: str) -> str | None:
        if not name.startswith("model."):
            return None
        return name.replace("model.", "layers.").replace("weight", "w")

    varve.torch.load(target, training, rename=wanted)
    for i in range(3):
        assert torch.equal(target[f"layers.{i}.w"], stored(training)[f"model.{i}.weight"])


def test_containers_whose_names_stay_are_filled_as_without_rename(training: Path) -> None:
    target = torch.nn.ModuleDict({"module": model()})
    optimizer = torch.optim.AdamW(target.parameters())  # Its state is still empty.
    report = varve.torch.load(
        {"model": target, "optim": optimizer, "step": 0},
        training,
        rename={"model.": "model.module."},
        strict="exact",
    )
    assert report.loaded > 6
    assert_is_stored(target["module"], training)
    assert len(optimizer.state) == 6


def test_renamed_lists_keep_their_length(tmp_path: Path) -> None:
    varve.save({"old": [np.ones(2), np.full(2, 2.0), 3]}, tmp_path / "c")
    state: dict[str, Any] = {"new": [np.zeros(2), np.zeros(2)]}
    report = varve.load(state, tmp_path / "c", rename={"old": "new"})
    assert [array[0] for array in state["new"]] == [1, 2]
    assert report.unexpected == ["old.2"]
    with pytest.raises(varve.InvalidArgumentError, match=r"missing from the checkpoint: new\.3"):
        varve.load({"new": [1, 2, 3, 4]}, tmp_path / "c", rename={"old": "new"})


def test_names_that_become_one_are_refused(training: Path) -> None:
    with pytest.raises(
        varve.InvalidArgumentError, match=r'"model\.0\.weight" and "model\.0\.bias"'
    ):
        varve.torch.load({}, training, rename=lambda name: name.rsplit(".", 1)[0])


@pytest.mark.parametrize("rename", [3, "x", {1: "a"}, {"a": None}, lambda name: 7])
def test_a_rename_that_is_none_is_refused(training: Path, rename: Any) -> None:
    with pytest.raises(varve.InvalidArgumentError, match="rename"):
        varve.torch.load({"step": 0}, training, rename=rename)


def test_a_missing_prefix_is_named_with_the_rename_that_finds_it(training: Path) -> None:
    with pytest.raises(
        varve.InvalidArgumentError, match=r"rename=\{'model\.': ''\} finds all 6 missing names"
    ):
        varve.torch.load(model(), training)
    varve.torch.save(model(), training.parent / "bare")
    with pytest.raises(
        varve.InvalidArgumentError, match=r"rename=\{'': 'model\.'\} finds all 6 missing names"
    ):
        varve.torch.load({"model": model()}, training.parent / "bare")


# ---- cast ----

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("wanted", FLOATS)
@pytest.mark.parametrize("kept", FLOATS)
def test_cast_gives_what_torch_gives(
    kept: torch.dtype, wanted: torch.dtype, tmp_path: Path
) -> None:
    source = (torch.randn(40, 50) * 3).to(kept)
    varve.torch.save({"w": source, "v": source[:, 7].clone()}, tmp_path / "c")
    backing = torch.zeros(50, 80, dtype=wanted)
    state = {"w": backing.T[::2], "v": torch.zeros(40, dtype=wanted)}  # Strided and plain.
    if kept is not wanted:
        with pytest.raises(varve.InvalidArgumentError, match="cast=True"):
            varve.torch.load(state, tmp_path / "c")
    report = varve.torch.load(state, tmp_path / "c", cast=True)
    assert report.mismatched == []
    assert torch.equal(state["w"], source.to(wanted))
    assert torch.equal(state["v"], source[:, 7].to(wanted))
    assert not backing.T[1::2].any()


@pytest.mark.slow
def test_cast_of_more_than_a_batch(tmp_path: Path) -> None:
    sources = {f"t{i}": torch.randn(1 << 20, 20).to(torch.bfloat16) for i in range(8)}
    varve.torch.save(sources, tmp_path / "c")
    state = {name: torch.zeros(1 << 20, 20) for name in sources}
    varve.torch.load(state, tmp_path / "c", cast=True)
    for name, source in sources.items():
        assert torch.equal(state[name], source.float())


def test_cast_leaves_shapes_and_other_kinds_to_be_mismatched(tmp_path: Path) -> None:
    varve.torch.save({"w": torch.ones(3), "i": torch.ones(3, dtype=torch.int64)}, tmp_path / "c")
    for state in ({"w": torch.ones(4, dtype=torch.float64)}, {"i": torch.ones(3)}):
        with pytest.raises(varve.InvalidArgumentError, match="mismatched"):
            varve.torch.load(state, tmp_path / "c", cast=True)


# ---- meta tensors ----


def test_a_model_on_the_meta_device_is_loaded_by_assignment(training: Path) -> None:
    with torch.device("meta"):
        target = model()
    with pytest.raises(varve.InvalidArgumentError, match="assign=True"):
        varve.torch.load({"model": target}, training)
    varve.torch.load({"model": target}, training, assign=True)
    assert_is_stored(target, training)
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in target.parameters())


def test_assignment_takes_the_stored_dtype_unless_it_casts(training: Path) -> None:
    for cast, expected in ((False, torch.float32), (True, torch.bfloat16)):
        with torch.device("meta"):
            target = model(dtype=torch.bfloat16)
        varve.torch.load(target, training, rename={"model.": ""}, assign=True, cast=cast)
        assert {p.dtype for p in target.parameters()} == {expected}
        wanted = stored(training)["model.0.weight"].to(expected)
        assert torch.equal(target.state_dict()["0.weight"], wanted)


class TiedModel(torch.nn.Module):
    """An embedding and a head of one weight, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def test_tied_tensors_on_the_meta_device_are_one_tensor_after_assignment(tmp_path: Path) -> None:
    source = TiedModel()
    varve.torch.save(source, tmp_path / "both")
    varve.torch.save({"embed": {"weight": source.embed.weight}}, tmp_path / "one")
    for stored_names in ("both", "one"):
        with torch.device("meta"):
            target = TiedModel()
        varve.torch.load(target, tmp_path / stored_names, assign=True)
        assert target.head.weight is target.embed.weight
        assert torch.equal(target.head.weight, source.embed.weight)
        assert target.head.weight.requires_grad


def test_tied_meta_tensors_in_a_dict_become_one_tensor(tmp_path: Path) -> None:
    varve.torch.save({"a": torch.ones(3), "c": torch.zeros(3)}, tmp_path / "c")
    tied = torch.empty(3, device="meta")
    state = {"b": tied, "a": tied, "c": torch.empty(3, device="meta")}
    report = varve.torch.load(state, tmp_path / "c", assign=True)
    assert not report.missing
    assert state["a"] is state["b"]
    assert torch.equal(state["b"], torch.ones(3))
    assert torch.equal(state["c"], torch.zeros(3))


def test_tied_meta_tensors_with_different_stored_values_are_refused(tmp_path: Path) -> None:
    varve.torch.save({"a": torch.ones(3), "b": torch.zeros(3)}, tmp_path / "c")
    tied = torch.empty(3, device="meta")
    state = {"a": tied, "b": tied}
    with pytest.raises(varve.InvalidArgumentError, match=r'"a".*"b"'):
        varve.torch.load(state, tmp_path / "c", assign=True)
    assert state["a"].is_meta


def test_tensors_with_memory_stay_the_same_objects(training: Path) -> None:
    target = model()
    kept = target[0].weight  # type: ignore[index]
    target[1].to("meta")  # type: ignore[index]
    state: dict[str, Any] = {"model": target, "step": torch.nn.Parameter(torch.zeros(1))}
    state["step"] = 0
    varve.torch.load(state, training, assign=True)
    assert target[0].weight is kept  # type: ignore[index]
    assert_is_stored(target, training)


def test_meta_tensors_of_another_shape_are_mismatched_and_not_assigned(tmp_path: Path) -> None:
    varve.torch.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "c")
    state = {name: torch.empty(3 + i, device="meta") for i, name in enumerate("ab")}
    with pytest.raises(varve.InvalidArgumentError, match=r"b \(stored float32\[3\], wanted"):
        varve.torch.load(state, tmp_path / "c", assign=True)
    assert state["a"].is_meta
    report = varve.torch.load(state, tmp_path / "c", assign=True, strict=False)
    assert torch.equal(state["a"], torch.ones(3))
    assert state["b"].is_meta
    assert len(report.mismatched) == 1
    parameter = {"a": torch.nn.Parameter(torch.empty(3, device="meta"), requires_grad=False)}
    varve.torch.load(parameter, tmp_path / "c", assign=True)
    assert isinstance(parameter["a"], torch.nn.Parameter)
    assert not parameter["a"].requires_grad


# ---- what autograd sees ----


def test_a_load_between_forward_and_backward_is_seen_by_autograd(training: Path) -> None:
    target = model()
    loss = target(torch.ones(2, 4)).square().sum()
    varve.torch.load({"model": target}, training)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_refused_load_is_not_a_change(training: Path) -> None:
    target = model()
    loss = target(torch.ones(2, 4)).square().sum()
    with pytest.raises(varve.InvalidArgumentError):
        varve.torch.load({"model": target, "gone": 1}, training)
    loss.backward()


@pytest.mark.parametrize("cast", [False, True])
def test_progress_counts_the_bytes_that_a_load_reads(tmp_path: Path, cast: bool) -> None:
    path = tmp_path / "step-1"
    stored = {"a": torch.rand(1 << 18), "b": torch.rand(1 << 22), "step": 3}
    varve.torch.save(stored, path)
    half = torch.zeros(1 << 22, dtype=torch.bfloat16 if cast else torch.float32)
    seen: list[tuple[int, int]] = []
    target = {"a": torch.zeros(1 << 18), "b": half, "step": 0}
    varve.torch.load(target, path, cast=cast, progress=lambda *now: seen.append(now))
    total = 4 * ((1 << 18) + (1 << 22))
    assert seen[-1] == (total, total)
    assert {whole for _, whole in seen} == {total}
    assert max(done for done, _ in seen) == total
    assert torch.equal(target["b"], stored["b"].to(half.dtype))


def test_progress_of_a_numpy_load_is_reported(tmp_path: Path) -> None:
    varve.save({"a": np.ones(1000)}, tmp_path / "c")
    seen: list[tuple[int, int]] = []
    varve.load({"a": np.zeros(1000)}, tmp_path / "c", progress=lambda *now: seen.append(now))
    assert seen[-1] == (8000, 8000)


@pytest.mark.parametrize(
    "stored", [torch.arange(6.0).reshape(2, 3), torch.nn.Parameter(torch.ones(2)), 7, [1, "a"]]
)
def test_a_file_of_one_bare_tensor_or_value_is_read_as_that(tmp_path: Path, stored: Any) -> None:
    torch.save(stored, tmp_path / "bare.pt")
    got = varve.torch.read(tmp_path / "bare.pt")
    flat = varve.torch.read(tmp_path / "bare.pt", flat=True)
    assert list(flat) == [""]
    for found in (got, flat[""]):
        if isinstance(stored, torch.Tensor):
            assert torch.equal(found, stored)
        else:
            assert found == stored


def test_a_dict_of_one_tensor_without_a_name_stays_a_dict(tmp_path: Path) -> None:
    torch.save({"": torch.ones(2)}, tmp_path / "dict.pt")
    varve.torch.save({"": torch.ones(2)}, tmp_path / "native")
    for name in ("dict.pt", "native"):
        assert list(varve.torch.read(tmp_path / name)) == [""]
