"""Guards of overlapped saves: the next step of the optimizers waits for the copy, and only waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from async_jobs import LONG, MIB, Gate, state_of, wait_until
from frameworks import framework

import varve
import varve.torch
from varve.torch import Stager, async_save
from varve.torch._guard import Guard, optimizers_in, optimizers_of


class HeldBack:
    """A stager all of whose memory a save takes, so that others cannot copy before `gate` is opened."""

    def __init__(self, directory: Path) -> None:
        self.stager = Stager(memory_budget=16 * MIB, max_in_flight=8)
        self.gate = Gate()
        self.first = async_save(
            state_of(0, 15), directory / "first", stager=self.stager, progress=self.gate
        )
        assert self.gate.begun.wait(LONG)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldBack]:
    made = HeldBack(tmp_path)
    yield made
    made.gate.opened.set()
    made.stager.close()


class Training:
    """A weight of eights, of which each step of its optimizer takes one."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.full((100,), 8.0))
        self.weight.grad = torch.ones(100)
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)

    def state(self) -> dict[str, Any]:
        return {"w": self.weight}

    @property
    def value(self) -> float:
        return self.weight[0].item()

    @property
    def hooks(self) -> list[Any]:
        return list(self.optimizer._optimizer_step_pre_hooks.values())


def assert_waits(step: Callable[[], Any], held: HeldBack, *trainings: Training) -> None:
    """Asserts that a step changes nothing before the copies are made, and is done then."""
    thread = threading.Thread(target=step)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and [one.value for one in trainings] == [8] * len(trainings)
    held.gate.opened.set()
    thread.join(LONG)
    assert not thread.is_alive() and [one.value for one in trainings] == [7] * len(trainings)


def saved(path: Path, name: str = "w") -> list[float]:
    return sorted(set(varve.torch.read(path)[name].tolist()))


# ---- What waits ----


def test_weights_are_saved_as_they_were_at_the_call_though_a_step_follows(
    held: HeldBack, tmp_path: Path
) -> None:
    one = Training()
    handle = async_save(
        one.state(), tmp_path / "a", stager=held.stager, staging="overlapped", guard=one.optimizer
    )
    assert_waits(one.optimizer.step, held, one)
    handle.result(LONG)
    assert saved(tmp_path / "a") == [8.0]


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_each_of_several_optimizers_waits(kind: Any, held: HeldBack, tmp_path: Path) -> None:
    a, b = Training(), Training()
    state = {"a": a.weight, "b": b.weight}
    guard = kind([a.optimizer, b.optimizer])
    handle = async_save(
        state, tmp_path / "a", stager=held.stager, staging="overlapped", guard=guard
    )
    waiting = threading.Thread(target=a.optimizer.step)
    waiting.start()
    assert_waits(b.optimizer.step, held, b)
    waiting.join(LONG)
    handle.result(LONG)
    assert saved(tmp_path / "a", "a") == saved(tmp_path / "a", "b") == [8.0]
    assert a.value == 7


def test_a_step_waits_for_the_copies_of_all_saves_before_it(held: HeldBack, tmp_path: Path) -> None:
    one = Training()
    for name in ("a", "b"):
        async_save(
            one.state(),
            tmp_path / name,
            stager=held.stager,
            staging="overlapped",
            guard=one.optimizer,
        )
    assert_waits(one.optimizer.step, held, one)
    held.stager.drain()
    assert saved(tmp_path / "a") == saved(tmp_path / "b") == [8.0]


def test_a_blocking_save_takes_a_guard_and_registers_nothing(tmp_path: Path) -> None:
    one = Training()
    async_save(one.state(), tmp_path / "a", guard=one.optimizer).result(LONG)
    assert one.hooks == []


def test_a_deferred_save_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Training()
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("varve.torch._save.begin", lambda *_, **given: calls.append(given))
    varve.torch.defer_save(one.state(), tmp_path / "a", staging="overlapped", guard=[one.optimizer])
    assert calls[0]["guard"] == [one.optimizer] and calls[0]["staging"] == "overlapped"


# ---- What a guard does not do ----


def test_five_saves_leave_one_hook_that_holds_no_copy(tmp_path: Path) -> None:
    one = Training()
    with Stager(max_in_flight=8) as stager:
        for i in range(5):
            handle = async_save(
                one.state(),
                tmp_path / str(i),
                stager=stager,
                staging="overlapped",
                guard=one.optimizer,
            )
            handle.wait_staged_before(one.optimizer)
    (hook,) = one.hooks
    assert isinstance(hook, Guard)
    wait_until(lambda: not hook.copies)


def test_other_hooks_run_in_the_step_that_waited(tmp_path: Path) -> None:
    one, ran = Training(), []
    async_save(one.state(), tmp_path / "a", staging="overlapped", guard=one.optimizer).result(LONG)
    one.optimizer.register_step_pre_hook(lambda *_: ran.append(1))  # torch iterates on to it.
    one.optimizer.step()
    assert ran == [1] and one.value == 7


@pytest.mark.parametrize("by", ["guard", "wait_staged_before"])
def test_a_copy_that_fails_does_not_raise_in_the_step(
    by: str, held: HeldBack, tmp_path: Path
) -> None:
    one = Training()
    guard = one.optimizer if by == "guard" else None
    handle = async_save(
        one.state(), tmp_path / "a", stager=held.stager, staging="overlapped", guard=guard
    )
    if guard is None:
        handle.wait_staged_before(one.optimizer)
    handle.cancel()
    held.gate.opened.set()
    one.optimizer.step()
    assert one.value == 7
    with pytest.raises(varve.Error):
        handle.wait_staged(LONG)
    with pytest.raises(varve.Error):
        handle.result(LONG)


def test_a_forked_child_does_not_wait_for_its_parents_copy(held: HeldBack, tmp_path: Path) -> None:
    one = Training()
    async_save(
        one.state(), tmp_path / "a", stager=held.stager, staging="overlapped", guard=one.optimizer
    )
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for hook in one.hooks:
            hook()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert one.hooks[0].copies


# ---- What a guard may be ----


@pytest.mark.parametrize("staging", ["blocking", "overlapped"])
@pytest.mark.parametrize("guard", [torch.nn.Linear(1, 1), 7, [torch.nn.Linear(1, 1)]])
def test_an_object_without_hooks_is_refused_by_name_before_anything_is_saved(
    guard: Any, staging: Any, tmp_path: Path
) -> None:
    name = "int" if guard == 7 else "Linear"
    with pytest.raises(varve.InvalidArgumentError, match=f"guard: {name} has no register_step"):
        async_save({"n": 1}, tmp_path / "a", staging=staging, guard=guard)
    assert list(tmp_path.iterdir()) == []


def test_accelerates_optimizer_stands_for_the_one_that_it_wraps() -> None:
    accelerate = framework("accelerate")
    inner = Training().optimizer
    wrapped = accelerate.Accelerator(cpu=True).prepare(inner)
    assert wrapped is not inner and optimizers_of(wrapped) == [inner]


def test_lightnings_optimizer_stands_for_the_one_that_it_wraps() -> None:
    core = framework("lightning.pytorch.core.optimizer")
    inner = Training().optimizer
    assert optimizers_of(core.LightningOptimizer(inner)) == [inner]


def test_torchtitans_container_stands_for_its_optimizers() -> None:
    titan = framework("torchtitan.components.optimizer")
    group = titan.ParamGroupConfig(
        pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1.0}
    )
    config = titan.OptimizersContainer.Config(param_groups=[group], implementation="foreach")
    container = config.build(model_parts=[torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    found = optimizers_of(container)
    assert len(container.optimizers) == 2
    assert {id(one) for one in container.optimizers} <= {id(one) for one in found}


def test_the_optimizers_of_a_state_are_found_in_what_it_nests_and_wraps() -> None:
    one = Training()
    schedule = torch.optim.lr_scheduler.ConstantLR(one.optimizer)
    model = torch.nn.Linear(1, 1)
    assert optimizers_in({"all": [model, {"o": one.optimizer}], "n": 1}) == [one.optimizer]
    assert optimizers_in({"schedule": schedule, "o": one.optimizer}) == [one.optimizer]
    assert optimizers_in({"model": model, "o": one.optimizer.state_dict()}) == []


# ---- The manager ----


OVERLAPPED = {"staging": "overlapped"}


def test_a_manager_guards_by_the_optimizers_of_the_state(held: HeldBack, tmp_path: Path) -> None:
    one = Training()
    state = {"w": one.weight, "optimizers": [one.optimizer]}
    run = tmp_path / "run"
    with varve.torch.CheckpointManager(
        run, every=1, stager=held.stager, save_options=OVERLAPPED
    ) as manager:
        save = manager.save(1, state)
        assert save is not None and not save.done()
        assert_waits(one.optimizer.step, held, one)
    assert saved(run / "step-00000001") == [8.0]


def test_a_manager_guards_by_what_it_is_given(held: HeldBack, tmp_path: Path) -> None:
    one = Training()
    with varve.torch.CheckpointManager(
        tmp_path / "run",
        every=1,
        stager=held.stager,
        save_options={**OVERLAPPED, "guard": one.optimizer},
    ) as manager:
        manager.save(1, one.state())
        assert_waits(one.optimizer.step, held, one)


def test_a_manager_without_an_optimizer_to_guard_waits_for_the_copy_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Training()
    run = tmp_path / "run"
    with varve.torch.CheckpointManager(run, every=1, save_options=OVERLAPPED) as manager:
        for step in (1, 2):
            save: Any = manager.save(step, one.state())
            assert save.staging_completion.done()
            with torch.no_grad():
                one.weight.zero_()
    assert saved(run / "step-00000001") == [8.0]
    assert caplog.text.count("holds no optimizer") == 1
