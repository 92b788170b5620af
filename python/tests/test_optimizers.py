"""Optimizers as destinations: whose state is whose, in the dtypes that were stored, and what is refused."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import optimizer_jobs as jobs
import pytest
import torch
from ranks import errors_of_ranks, run_ranks

import varve
import varve.torch

Make = Callable[[Iterable[Any]], torch.optim.Optimizer]


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3, dtype=dtype), torch.nn.Tanh(), torch.nn.Linear(3, 2, dtype=dtype)
    )


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    dtype = next(model.parameters()).dtype
    for seed in range(times):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=dtype)).square().sum().backward()
        optimizer.step()


class Codes(torch.optim.Optimizer):
    """An optimizer whose moments are codes of 8 bits with a scale, as those of 8-bit optimizers are."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["codes"] = torch.zeros(parameter.shape, dtype=torch.uint8)
                    state["scale"] = torch.ones((), dtype=torch.float64)
                    state["history"] = [torch.zeros(2, dtype=torch.int16), {"name": "x"}]
                moment = state["codes"].float() * state["scale"] + parameter.grad
                state["scale"] = moment.abs().max().double() / 255
                state["codes"] = (moment.abs() / state["scale"]).to(torch.uint8)
                state["history"][0] += 1
                parameter -= group["lr"] * moment


class LowMoments(torch.optim.SGD):
    """Momentum in bfloat16, of parameters in float32."""

    stored = torch.bfloat16

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                old, gradient = state.get("momentum_buffer"), parameter.grad.float()
                moment = gradient if old is None else 0.9 * old.float() + gradient
                state["momentum_buffer"] = moment.to(self.stored)
                parameter -= (group["lr"] * moment).to(parameter.dtype)


class HighMoments(LowMoments):
    """Momentum in float32, of parameters in bfloat16."""

    stored = torch.float32


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return value.dtype, tuple(value.shape), raw.tolist()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("steps_before", [0, 1], ids=["fresh", "stepped"])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (Codes, torch.float32),
        (LowMoments, torch.float32),
        (HighMoments, torch.bfloat16),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), torch.float32),
        (lambda p: torch.optim.AdamW(p, fused=True), torch.bfloat16),
        (lambda p: torch.optim.Adafactor(p), torch.float32),
        (lambda p: torch.optim.NAdam(p), torch.float32),
        (lambda p: torch.optim.SGD(p, momentum=0.9), torch.float32),
    ],
    ids=["codes", "low", "high", "adamw", "fused", "adafactor", "nadam", "sgd"],
)
def test_the_state_comes_back_bit_for_bit_and_training_goes_on_alike(
    make: Make, dtype: torch.dtype, steps_before: int, tmp_path: Path
) -> None:
    model = network(dtype)
    optimizer = make(model.parameters())
    step(model, optimizer, 3)
    varve.torch.save({"model": model, "optim": optimizer}, tmp_path / "c")
    other = network(dtype)
    resumed = make(other.parameters())
    step(other, resumed, steps_before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load({"model": other, "optim": resumed}, tmp_path / "c", strict="exact")
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
    for network_, made in ((model, optimizer), (other, resumed)):
        step(network_, made, 2)
    assert bits(dict(other.state_dict())) == bits(dict(model.state_dict()))


def test_an_object_that_loads_its_optimizers_itself_keeps_their_dtypes(tmp_path: Path) -> None:
    class Training:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizers = [optimizer]

        def state_dict(self) -> dict[str, Any]:
            return {"optim": self.optimizers[0].state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.optimizers[0].load_state_dict(state["optim"])

    model = network()
    optimizer = LowMoments(model.parameters())
    step(model, optimizer)
    varve.torch.save({"training": Training(optimizer)}, tmp_path / "c")
    resumed = LowMoments(network().parameters())
    varve.torch.load({"training": Training(resumed)}, tmp_path / "c")
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def test_a_load_that_casts_leaves_floating_point_state_to_torch(tmp_path: Path) -> None:
    model = network()
    optimizer = LowMoments(model.parameters())
    step(model, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    resumed = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
    varve.torch.load({"optim": resumed}, tmp_path / "c", cast=True)
    moments = [state["momentum_buffer"] for state in resumed.state.values()]
    assert [moment.dtype for moment in moments] == [torch.float32] * 4


def test_hooks_and_load_state_dict_of_the_program_see_stored_dtypes(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []

    class Mine(LowMoments):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            seen.extend(each["momentum_buffer"].dtype for each in self.state.values())

    model = network()
    optimizer = Mine(model.parameters())
    step(model, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    resumed = Mine(network().parameters())
    resumed.register_load_state_dict_post_hook(
        lambda made: seen.extend(each["momentum_buffer"].dtype for each in made.state.values())
    )
    varve.torch.load({"optim": resumed}, tmp_path / "c")
    assert seen == [torch.bfloat16] * 8
    assert not resumed._optimizer_load_state_dict_pre_hooks
    assert len(resumed._optimizer_load_state_dict_post_hooks) == 1


@pytest.mark.parametrize("steps_before", [0, 1], ids=["fresh", "stepped"])
def test_a_parameter_without_stored_state_has_none_afterwards(
    steps_before: int, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model[2](torch.ones(1, 3)).sum().backward()  # The first layer has no gradients.
    optimizer.step()
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    other = network()
    resumed = torch.optim.AdamW(other.parameters())
    step(other, resumed, steps_before)
    varve.torch.load({"optim": resumed}, tmp_path / "c", strict="exact")
    assert list(resumed.state_dict()["state"]) == [2, 3]
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def test_state_of_some_parameters_is_joined_by_that_of_the_others(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    other = network()
    resumed = torch.optim.AdamW(other.parameters())
    other[2](torch.ones(1, 3)).sum().backward()
    resumed.step()
    varve.torch.load({"optim": resumed}, tmp_path / "c", strict="exact")
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


@pytest.mark.parametrize("steps_before", [0, 1], ids=["fresh", "stepped"])
def test_half_a_state_is_named_and_nothing_is_loaded(steps_before: int, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    del state["state"][1]["exp_avg_sq"]
    varve.torch.save({"model": model, "optim": state}, tmp_path / "c")
    other = network()
    resumed = torch.optim.AdamW(other.parameters())
    step(other, resumed, steps_before)
    before = bits(dict(other.state_dict()))
    with pytest.raises(varve.InvalidArgumentError, match=r"missing.*: optim\.state\.1\.exp_avg_sq"):
        varve.torch.load({"model": other, "optim": resumed}, tmp_path / "c")
    assert bits(dict(other.state_dict())) == before
    report = varve.torch.load({"optim": resumed}, tmp_path / "c", strict=False)
    assert report.missing == ["optim.state.1.exp_avg_sq"]


def test_state_under_keys_of_no_parameter_is_refused_before_anything_changes(
    tmp_path: Path,
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    state = optimizer.state_dict()
    state["state"] = {str(key): item for key, item in state["state"].items()}
    varve.torch.save({"model": model, "optim": state}, tmp_path / "c")
    other = network()
    before = bits(dict(other.state_dict()))
    resumed = torch.optim.AdamW(other.parameters())
    with pytest.raises(varve.InvalidArgumentError, match=r"\"optim\".*fits no parameter.*'0', '1'"):
        varve.torch.load({"model": other, "optim": resumed}, tmp_path / "c")
    assert bits(dict(other.state_dict())) == before
    assert not resumed.state
    # Where the state is there, names find it.
    step(other, resumed)
    varve.torch.load({"model": other, "optim": resumed}, tmp_path / "c")
    assert bits(resumed.state_dict()["state"]) == bits(optimizer.state_dict()["state"])


def test_state_of_the_optimizer_itself_is_kept_beside_that_of_parameters(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    optimizer.state["all"] = {"sum": torch.ones(2), "count": 3}  # type: ignore[index]
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    resumed = torch.optim.AdamW(network().parameters())
    varve.torch.load({"optim": resumed}, tmp_path / "c", strict="exact")
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def test_the_state_of_sgd_is_no_state_of_an_optimizer_that_counts_its_steps(tmp_path: Path) -> None:
    saved, model = network(), network()
    optimizer = torch.optim.SGD(saved.parameters(), lr=0.1, momentum=0.9)
    step(saved, optimizer)
    varve.torch.save({"model": saved, "optim": optimizer}, tmp_path / "c")
    fresh = torch.optim.AdamW(model.parameters())
    report = varve.torch.load({"model": model, "optim": fresh}, tmp_path / "c", strict=False)
    assert "optim.state.0 (stored without a step, wanted the state of AdamW)" in report.mismatched
    assert not fresh.state
    assert bits(model.state_dict()) == bits(saved.state_dict())
    step(model, fresh)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adafactor])
def test_moments_in_other_shapes_than_the_parameters_are_refused_before_the_first_step(
    make: Make, tmp_path: Path
) -> None:
    saved, model = network(), network()
    optimizer = make(saved.parameters())
    step(saved, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    model[0] = torch.nn.Linear(4, 7)
    model[2] = torch.nn.Linear(7, 2)
    fresh = make(model.parameters())
    with pytest.raises(
        varve.InvalidArgumentError, match=r"optim\.state\.0\.\w+ \(stored float32\[3, "
    ):
        varve.torch.load({"optim": fresh}, tmp_path / "c")
    assert not fresh.state
    report = varve.torch.load({"optim": fresh}, tmp_path / "c", strict=False)
    left = {name.split(" ")[0].rpartition(".")[0] for name in report.mismatched}
    assert left == {"optim.state.0", "optim.state.1", "optim.state.2"}
    assert list(fresh.state) == [model[2].bias]  # Its shape is what it was.
    step(model, fresh)


def test_an_optimizer_of_parameters_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    source = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(source.parameters())
    source(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    varve.torch.save({"model": source, "optim": optimizer}, tmp_path / "c")
    target = torch.nn.Linear(3, 2, device="meta")
    before = torch.optim.AdamW(target.parameters())
    with pytest.raises(varve.InvalidArgumentError, match=r'"optim".* of group 0 is on the meta'):
        varve.torch.load({"model": target, "optim": before}, tmp_path / "c", assign=True)
    assert target.weight.is_meta
    varve.torch.load({"model": target}, tmp_path / "c", assign=True)
    after = torch.optim.AdamW(target.parameters())
    varve.torch.load({"optim": after}, tmp_path / "c")
    for name in ("weight", "bias"):
        wanted = optimizer.state[getattr(source, name)]["exp_avg"]
        assert torch.equal(after.state[getattr(target, name)]["exp_avg"], wanted)


def test_keys_choose_parts_of_an_optimizer_and_leave_the_rest(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    step(model, optimizer, 2)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    other = network()
    resumed = torch.optim.AdamW(other.parameters(), lr=0.25)
    step(other, resumed)
    varve.torch.load({"optim": resumed}, tmp_path / "c", keys=["optim.state.1"])
    assert resumed.param_groups[0]["lr"] == 0.25
    steps = [int(state["step"]) for state in resumed.state_dict()["state"].values()]
    assert steps == [1, 2, 1, 1]
    fresh = torch.optim.AdamW(network().parameters(), lr=0.25)
    varve.torch.load({"optim": fresh}, tmp_path / "c", keys=["optim.state.1", "optim.param_groups"])
    assert list(fresh.state_dict()["state"]) == [1]
    assert fresh.param_groups[0]["lr"] == 0.5


def test_an_optimizer_that_was_stored_under_another_name_is_filled(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    varve.torch.save({"optimizer": optimizer}, tmp_path / "c")
    resumed = torch.optim.AdamW(network().parameters())
    varve.torch.load({"optim": resumed}, tmp_path / "c", rename={"optimizer.": "optim."})
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


# ---- groups that changed ----


def named(model: torch.nn.Module, *decay: float, reverse: bool = False) -> torch.optim.Optimizer:
    """An optimizer with a group of all parameters, or of weights and biases, which know their names."""
    parameters = list(model.named_parameters())
    if reverse:
        parameters.reverse()
    groups: list[Any] = [parameters]
    if len(decay) == 2:
        groups = [
            [each for each in parameters if each[0].endswith(kind)] for kind in ("weight", "bias")
        ]
    return torch.optim.AdamW(
        [{"params": each, "weight_decay": wd} for each, wd in zip(groups, decay, strict=True)],
        lr=0.3,
    )


def by_parameter(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: bits(optimizer.state[each]) for name, each in model.named_parameters()}


@pytest.mark.parametrize("steps_before", [0, 1], ids=["fresh", "stepped"])
@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        ({"decay": (0.1,)}, {"decay": (0.2, 0.0)}),
        ({"decay": (0.1, 0.1)}, {"decay": (0.2,)}),
        ({"decay": (0.1,)}, {"decay": (0.2,), "reverse": True}),
        ({"decay": (0.1, 0.1)}, {"decay": (0.2, 0.2), "reverse": True}),
    ],
    ids=["split", "merged", "reversed", "both reversed"],
)
def test_parameters_with_names_are_found_in_other_groups(
    saved: Any, wanted: Any, steps_before: int, tmp_path: Path
) -> None:
    model = network()
    optimizer = named(model, *saved["decay"])
    step(model, optimizer, 2)
    varve.torch.save({"model": model, "optim": optimizer}, tmp_path / "c")
    other = network()
    resumed = named(other, *wanted["decay"], reverse=wanted.get("reverse", False))
    step(other, resumed, steps_before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        varve.torch.load({"model": other, "optim": resumed}, tmp_path / "c", strict="exact")
    assert by_parameter(other, resumed) == by_parameter(model, optimizer)
    assert all(math.isclose(group["weight_decay"], 0.1) for group in resumed.param_groups)
    assert len(resumed.param_groups) == len(wanted["decay"])


def test_an_option_in_which_merged_groups_differ_stays_and_is_told(tmp_path: Path) -> None:
    model = network()
    optimizer = named(model, 0.1, 0.0)
    step(model, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    resumed = named(network(), 0.2)
    with pytest.warns(UserWarning, match=r"optim\.param_groups\.0\.weight_decay stays as it is"):
        varve.torch.load({"optim": resumed}, tmp_path / "c")
    assert resumed.param_groups[0]["weight_decay"] == 0.2


def test_a_new_parameter_has_no_state_and_one_that_is_gone_is_told(tmp_path: Path) -> None:
    model = network()
    optimizer = named(model, 0.1)
    step(model, optimizer)
    varve.torch.save({"optim": optimizer}, tmp_path / "c")
    smaller = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with pytest.warns(UserWarning, match='6 below "optim"'):
        resumed = named(smaller, 0.1)
        varve.torch.load({"optim": resumed}, tmp_path / "c")
    assert len(resumed.state) == 2
    larger = network()
    larger.append(torch.nn.Linear(2, 1))
    resumed = named(larger, 0.1)
    varve.torch.load({"optim": resumed}, tmp_path / "c", strict="exact")
    assert len(resumed.state) == 4
    assert by_parameter(network(), optimizer).keys() < by_parameter(larger, resumed).keys()


@pytest.mark.parametrize(("stored", "wanted"), [(1, 2), (2, 1)])
def test_a_model_of_other_layers_is_told_to_load_without_the_optimizer(
    stored: int, wanted: int, tmp_path: Path
) -> None:
    def job(layers: int) -> dict[str, Any]:
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(layers)))
        optimizer = torch.optim.AdamW(model.parameters())
        return {"model": model, "optim": optimizer}

    saved, state = job(stored), job(wanted)
    varve.torch.save(saved, tmp_path / "c")
    with pytest.raises(varve.InvalidArgumentError, match="without the optimizer, by `keys`"):
        varve.torch.load(state, tmp_path / "c", strict=False)
    varve.torch.load(state, tmp_path / "c", strict=False, keys="model.*")
    assert torch.equal(state["model"][0].weight, saved["model"][0].weight)


@pytest.mark.parametrize("stored", [1, 2])
def test_other_groups_without_names_are_refused_before_anything_changes(
    stored: int, tmp_path: Path
) -> None:
    def groups(model: Any, count: int) -> torch.optim.Optimizer:
        parts = (
            [model.parameters()]
            if count == 1
            else [each.parameters() for each in (model[0], model[2])]
        )
        return torch.optim.AdamW([{"params": each} for each in parts])

    model = network()
    optimizer = groups(model, stored)
    step(model, optimizer)
    varve.torch.save({"model": model, "optim": optimizer}, tmp_path / "c")
    other = network()
    before = bits(dict(other.state_dict()))
    with pytest.raises(
        varve.InvalidArgumentError, match='the optimizer "optim": the groups'
    ) as told:
        varve.torch.load({"model": other, "optim": groups(other, 3 - stored)}, tmp_path / "c")
    assert "1 of 4 parameters" in str(told.value)
    assert "2 of 2, 2 parameters" in str(told.value)
    assert bits(dict(other.state_dict())) == before


# ---- ranks ----


def test_the_state_of_sharded_parameters_is_sharded_alike_in_its_own_dtype(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    saved = run_ranks(2, jobs.save_sharded, path)[0]
    for size, steps in ((2, 0), (2, 1), (3, 0)):
        for found in run_ranks(size, jobs.load_sharded, path, steps):
            assert found == saved, (size, steps)


def test_a_sharded_run_goes_on_with_a_fresh_optimizer(tmp_path: Path) -> None:
    run_ranks(2, jobs.go_on_sharded, str(tmp_path / "c"))


def test_state_whose_shards_are_not_known_is_refused(tmp_path: Path) -> None:
    errors = errors_of_ranks(2, jobs.load_state_of_another_shape, str(tmp_path / "c"))
    assert all('"optim.state.0.rows"' in text for text in errors.values()), errors


def test_a_tensor_beside_shards_is_left_over_not_made_whole_on_every_rank(tmp_path: Path) -> None:
    assert run_ranks(2, jobs.load_beside_shards, str(tmp_path / "c")) == [["held.1.weight"]] * 2
