"""Saves of tensors on a CUDA device: each checkpoint is what was queued before the call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_support as gpu
import pytest
import torch

import varve.agent
import varve.torch
import varve.torch.dcp
from varve.errors import PreconditionError
from varve.torch import Stager, async_save

pytestmark = pytest.mark.gpu

STEPS = 20
BUDGET = 1 << 30
needs_cuda = pytest.mark.skipif(gpu.DEVICE == "cpu", reason="needs CUDA itself")


class Training:
    """Parameters and an optimizer, whose steps are queued on the device behind other work."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.state = {
            "large": gpu.random(3000, 1001),
            "transposed": gpu.random(300, 200).t(),
            "half": gpu.random(1_000_001, dtype=torch.bfloat16),
            "scalar": gpu.random(1)[0].clone(),
            **{f"small{i:03}": gpu.random(i + 1) for i in range(200)},
        }
        for tensor in self.state.values():
            tensor.requires_grad_()
            tensor.grad = torch.full_like(tensor, 0.125)
        self.optimizer = torch.optim.SGD(list(self.state.values()), lr=1.0)

    def step(self) -> dict[str, torch.Tensor]:
        """Queues steps and returns what they will have made of the parameters."""
        self.optimizer.step()
        gpu.pause_device()
        with torch.no_grad():
            for tensor in self.state.values():
                tensor.mul_(-1)
        self.optimizer.step()
        return gpu.copies_of(self.state)


Saver = Callable[[Training, Path], Any]


def _sync(training: Training, path: Path) -> Any:
    return varve.torch.save(training.state, path)


def _drop_in(training: Training, path: Path) -> Any:
    return varve.torch.dcp.save(dict(training.state), checkpoint_id=path, no_dist=True)


def _drop_in_async(training: Training, path: Path) -> Any:
    return varve.torch.dcp.async_save(dict(training.state), checkpoint_id=path, no_dist=True)


def _async(**options: Any) -> Saver:
    def save(training: Training, path: Path) -> Any:
        guard = training.optimizer if options.get("staging") == "overlapped" else None
        return async_save(training.state, path, guard=guard, **options)

    return save


KINDS: dict[str, Saver] = {
    "save": _sync,
    "blocking": _async(),
    "overlapped": _async(staging="overlapped"),
    "agent": _async(executor="process"),
    "agent, overlapped": _async(executor="process", staging="overlapped"),
    "as DCP": _async(format="dcp"),
    "as Hugging Face": _async(format="hf", staging="overlapped"),
    "drop-in save": _drop_in,
    "drop-in async_save": _drop_in_async,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_checkpoint_is_what_the_queued_steps_make(
    agent: str, tmp_path: Path, kind: str
) -> None:
    training = Training()
    wanted, saves = [], []
    for step in range(STEPS):
        wanted.append(training.step())
        saves.append(KINDS[kind](training, tmp_path / str(step)))
    training.step()
    for save in saves:
        if hasattr(save, "result"):
            save.result()
    for step in range(STEPS):
        found = varve.torch.read(tmp_path / str(step), flat=True)
        gpu.require_same(found, wanted[step], f"step {step}")


@pytest.mark.parametrize("staging", ["blocking", "overlapped"])
def test_the_deferred_checkpoint_is_what_the_queued_steps_make(
    agent: str, tmp_path: Path, staging: str
) -> None:
    training = Training()
    guard = training.optimizer if staging == "overlapped" else None
    with Stager(executor="process", memory_budget=BUDGET) as stager:
        for step in range(STEPS):
            wanted = training.step()
            handle = varve.torch.defer_save(
                training.state, tmp_path / str(step), stager=stager, staging=staging, guard=guard
            )
        training.step()
        handle.result()
    varve.agent.drain(60.0)
    found = varve.torch.read(tmp_path / str(STEPS - 1), use_agent=False)
    gpu.require_same(found, wanted, "the last step")


def _saved_by(way: str, state: dict[str, Any], path: Path) -> Any:
    if way == "save":
        return varve.torch.save(state, path)
    if way == "as DCP":
        return varve.torch.save(state, path, format="dcp")
    if way == "pageable":
        with Stager(copy_from_devices=False, memory_budget=BUDGET) as stager:
            return async_save(state, path, stager=stager).result()
    return async_save(state, path, staging=way).result()


WAYS = ("save", "as DCP", "blocking", "overlapped", "pageable")


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_tensor_is_saved_as_it_is(tmp_path: Path, way: str) -> None:
    state = gpu.every_kind()
    _saved_by(way, state, tmp_path / "saved")
    gpu.require_same(varve.torch.read(tmp_path / "saved"), state, way)
    destination = gpu.zeros_like(state)
    varve.torch.load(destination, tmp_path / "saved")
    gpu.require_same(destination, state, f"{way}, loaded")


def test_hugging_face_folders_have_the_bytes_that_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    state = {
        name: tensor
        for name, tensor in gpu.every_kind().items()
        if not tensor.is_complex() and tensor.numel()
    }
    async_save(state, tmp_path / "saved", format="hf").result()
    found: dict[str, torch.Tensor] = {}
    for file in (tmp_path / "saved").glob("*.safetensors"):
        found |= load_file(file)
    gpu.require_same(found, state, "safetensors")


def test_torch_reads_what_is_saved_as_dcp(tmp_path: Path) -> None:
    dcp: Any = pytest.importorskip("torch.distributed.checkpoint")
    state = {"plain": gpu.random(1000, 77), "transposed": gpu.random(70, 90).t(), "step": 3}
    async_save(state, tmp_path / "saved", format="dcp").result()
    found = {"plain": torch.zeros(1000, 77), "transposed": torch.zeros(90, 70), "step": 0}
    dcp.load(found, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert found.pop("step") == state.pop("step")
    gpu.require_same(found, state, "DCP")  # type: ignore[arg-type]


@pytest.mark.parametrize("staging", ["blocking", "overlapped"])
def test_20000_small_tensors_are_saved_and_loaded(tmp_path: Path, staging: str) -> None:
    values = torch.arange(20_000 * 40, dtype=torch.float32, device=gpu.DEVICE).view(20_000, 40)
    state = {f"t{i}": values[i, : 1 + i % 40].clone() for i in range(20_000)}
    async_save(state, tmp_path / "saved", staging=staging).result()
    destination = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    varve.torch.load(destination, tmp_path / "saved")
    assert torch.equal(torch.cat(list(destination.values())), torch.cat(list(state.values())))
    found = varve.torch.read(tmp_path / "saved", "t19999")["t19999"]
    assert torch.equal(found, state["t19999"].cpu())


def test_views_of_one_storage_are_saved_each_with_its_own_values(tmp_path: Path) -> None:
    storage = gpu.random(4_000_000)
    state = {
        "front": storage[:1_000_000],
        "overlapping": storage[500_000:1_500_001],
        "odd": storage[1_500_001:1_500_078],
        "square": storage[2_000_000:3_000_000].view(1000, 1000),
        "its transpose": storage[2_000_000:3_000_000].view(1000, 1000).t(),
        "as bytes": storage[3_000_001:3_000_020].view(torch.uint8)[1:],
    }
    async_save(state, tmp_path / "saved", staging="overlapped").result()
    gpu.require_same(varve.torch.read(tmp_path / "saved"), state, "views")


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(gpu.random(500, 301))
    state = {"embedding": weight, "head": weight, "transposed": weight.t()}
    async_save(state, tmp_path / "saved").result()
    gpu.require_same(varve.torch.read(tmp_path / "saved"), state, "tied")
    wanted = gpu.copies_of(state)
    with torch.no_grad():
        weight.zero_()
    varve.torch.load({"embedding": weight, "head": weight}, tmp_path / "saved")
    gpu.require_same(state, wanted, "loaded")


@needs_cuda
@pytest.mark.parametrize("staging", ["sync", "blocking", "overlapped"])
def test_work_on_another_stream_is_waited_for(tmp_path: Path, staging: str) -> None:
    stream = torch.cuda.Stream()
    weights = torch.zeros(16 << 20, device="cuda")
    torch.cuda.synchronize()
    for step in range(5):
        with torch.cuda.stream(stream):
            gpu.pause_device(5)
            for _ in range(10):
                weights.add_(1)
            path = tmp_path / str(step)
            if staging == "sync":
                varve.torch.save({"w": weights}, path)
            else:
                handle = async_save({"w": weights}, path, staging=staging)
                handle.wait_staged()
                weights.add_(1).sub_(1)
                handle.result()
        assert (varve.torch.read(path)["w"] == 10 * (step + 1)).all()


def test_three_saves_in_a_row_on_one_stager_are_each_their_own(tmp_path: Path) -> None:
    weights = {"w": torch.zeros(24 << 20, device=gpu.DEVICE)}
    with Stager(memory_budget=BUDGET) as stager:
        stager.prepare(weights)
        stager.wait_prepared()
        saves = []
        for step in range(3):
            weights["w"].add_(1)
            saves.append(async_save(weights, tmp_path / str(step), stager=stager))
        weights["w"].add_(1)
        reports = [save.result() for save in saves]
    for step, report in enumerate(reports):
        assert (varve.torch.read(tmp_path / str(step))["w"] == step + 1).all()
        if gpu.DEVICE != "cpu":
            assert report.device_bytes == weights["w"].nbytes
            assert report.pageable_bytes == 0
            assert report.staging_memory.registered_bytes >= weights["w"].nbytes
            assert report.staging_memory.refused == ""


def test_a_state_larger_than_the_staging_memory_is_saved_in_waves(tmp_path: Path) -> None:
    state = {f"w{i}": gpu.random(6 << 20) for i in range(8)}
    with Stager(memory_budget=64 << 20) as stager:
        handle = async_save(state, tmp_path / "saved", stager=stager)
        wanted = gpu.copies_of(state)
        for tensor in state.values():
            tensor.zero_()
        assert handle.result().in_waves
    gpu.require_same(varve.torch.read(tmp_path / "saved"), wanted, "in waves")


def test_tensors_freed_during_an_overlapped_copy_are_saved_with_their_values(
    tmp_path: Path,
) -> None:
    state = {f"w{i}": gpu.random(8 << 20) for i in range(8)}
    wanted = {name: tensor.cpu() for name, tensor in state.items()}
    gpu.pause_device(5)
    handle = async_save(state, tmp_path / "saved", staging="overlapped")
    state.clear()
    others = [torch.full((8 << 20,), -1.0, device=gpu.DEVICE) for _ in range(8)]
    handle.result()
    gpu.require_same(varve.torch.read(tmp_path / "saved"), wanted, "freed")
    assert all(bool((other == -1).all()) for other in others)


@needs_cuda
def test_weights_changed_before_their_copy_are_an_error_that_names_them(tmp_path: Path) -> None:
    state = {f"w{i}": torch.zeros(32 << 20, device="cuda") for i in range(4)}
    with Stager(memory_budget=BUDGET) as stager:
        stager.prepare(state)
        stager.wait_prepared()
        # The copy waits behind this, so the weights change while it is under way.
        gpu.pause_device(20)
        handle = async_save(state, tmp_path / "torn", stager=stager, staging="overlapped")
        while not handle.staging_completion.done():
            state["w3"].add_(1)
        with pytest.raises(PreconditionError, match='"w3" was written to'):
            handle.result()
    assert not (tmp_path / "torn").exists()


@needs_cuda
def test_cuda_graphs_captured_during_saves_stay_intact(tmp_path: Path) -> None:
    """The first save of a stager registers memory and makes streams while the capture is open."""
    state = {f"w{i}": torch.randn(8 << 20, device="cuda") for i in range(8)}
    values = torch.randn(256, 256, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        values @ values.sin()
    torch.cuda.synchronize()
    for turn in range(3):
        with Stager(memory_budget=BUDGET) as stager:
            saves = []
            for each in range(2):
                path = tmp_path / f"{turn}-{each}"
                saves.append(async_save(state, path, stager=stager, staging="overlapped"))
                captured = 0
                while captured < 3 or (captured < 200 and not saves[-1].done()):
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        for _ in range(20):
                            made = values @ values.sin()
                    captured += 1
                    graph.replay()
                assert torch.allclose(made, values @ values.sin(), atol=1e-2)
            for save in saves:
                save.result()
        gpu.require_same(varve.torch.read(tmp_path / f"{turn}-1"), state, f"turn {turn}")
