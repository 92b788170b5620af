"""Loads onto a CUDA device: each kind of destination, from each kind of source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_support as gpu
import pytest
import torch

import varve.agent
import varve.torch
from varve.torch import Stager, async_save

pytestmark = pytest.mark.gpu

needs_cuda = pytest.mark.skipif(gpu.DEVICE == "cpu", reason="needs CUDA itself")


def _saved(tmp_path: Path, state: dict[str, Any]) -> Path:
    varve.torch.save(state, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("format", ["varve", "dcp"])
def test_every_kind_of_destination_is_filled(tmp_path: Path, format: str) -> None:
    source = gpu.random(800, 600)
    cube = gpu.random(20, 30, 40)
    complexes = torch.complex(gpu.random(90, 80), gpu.random(90, 80))
    destination = {
        "plain": torch.zeros(800, 600, device=gpu.DEVICE),
        "transposed": torch.zeros(600, 800, device=gpu.DEVICE).t(),
        "rows": torch.zeros(1600, 600, device=gpu.DEVICE)[::2],
        "columns": torch.zeros(800, 1000, device=gpu.DEVICE)[:, 200:800],
        "every second": torch.zeros(800, 1200, device=gpu.DEVICE)[:, ::2],
        "permuted": torch.zeros(40, 20, 30, device=gpu.DEVICE).permute(1, 2, 0),
        "channels last": torch.zeros(2, 8, 10, 12, device=gpu.DEVICE).to(
            memory_format=torch.channels_last
        ),
        "conjugated": torch.zeros(90, 80, dtype=torch.complex64, device=gpu.DEVICE).conj(),
        "negated": torch.zeros(90, 80, dtype=torch.complex64, device=gpu.DEVICE).conj().imag,
        "parameter": torch.nn.Parameter(torch.zeros(800, 600, device=gpu.DEVICE)),
        "host": torch.zeros(800, 600),
    }
    state = dict.fromkeys(destination, source) | {
        "permuted": cube,
        "channels last": gpu.random(2, 8, 10, 12),
        "conjugated": complexes,
        "negated": complexes.imag.clone(),
    }
    varve.torch.save(state, tmp_path / "saved", format=format)
    kept = {name: tensor.data_ptr() for name, tensor in destination.items()}
    gaps = destination["every second"]._base
    varve.torch.load(destination, tmp_path / "saved")
    gpu.require_same(destination, state, "loaded")
    assert kept == {name: tensor.data_ptr() for name, tensor in destination.items()}
    assert gaps is not None and not gaps[:, 1::2].any()  # Nothing beside them was written to.


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32, torch.float64])
def test_values_are_cast(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    state = {"w": gpu.random(1000, 501, dtype=stored), "transposed": gpu.random(70, 90).to(stored)}
    path = _saved(tmp_path, state)
    destination = {
        "w": torch.zeros(1000, 501, dtype=wanted, device=gpu.DEVICE),
        "transposed": torch.zeros(90, 70, dtype=wanted, device=gpu.DEVICE).t(),
    }
    varve.torch.load(destination, path, cast=True)
    gpu.require_same(destination, {n: t.to(wanted) for n, t in state.items()}, "cast")


def test_a_module_and_its_optimizer_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    def make(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = gpu.make_model(seed=seed).to(gpu.DEVICE)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for _ in range(3):
            optimizer.zero_grad()
            model(gpu.random(32, 256)).square().mean().backward()
            optimizer.step()

    model, optimizer = make(0)
    train(model, optimizer, 1)
    saving = async_save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved"
    )
    train(model, optimizer, 2)
    saving.result()

    other, its_optimizer = make(9)
    train(other, its_optimizer, 3)
    varve.torch.load({"model": other, "optimizer": its_optimizer}, tmp_path / "saved")
    train(other, its_optimizer, 2)
    gpu.require_same(other.state_dict(), model.state_dict(), "trained on")


def test_a_meta_module_gets_its_tensors_on_the_default_device(tmp_path: Path) -> None:
    model = gpu.make_model().to(gpu.DEVICE)
    path = _saved(tmp_path, model.state_dict())
    with torch.device("meta"):
        other = gpu.make_model(seed=1)
    with torch.device(gpu.DEVICE):
        varve.torch.load(other, path, assign=True)
    assert {tensor.device.type for tensor in other.state_dict().values()} == {gpu.DEVICE}
    gpu.require_same(other.state_dict(), model.state_dict(), "assigned")


def test_read_makes_tensors_on_the_device(tmp_path: Path) -> None:
    state = gpu.every_kind()
    path = _saved(tmp_path, {**state, "step": 3})
    found = varve.torch.read(path, device=gpu.DEVICE)
    assert found.pop("step") == 3
    assert {tensor.device.type for tensor in found.values()} == {gpu.DEVICE}
    gpu.require_same(found, state, "read")


def test_slices_of_an_open_checkpoint_are_on_the_device(tmp_path: Path) -> None:
    weights = gpu.random(3000, 1201)
    halves = gpu.random(500, 40, 30, dtype=torch.bfloat16)
    path = _saved(tmp_path, {"w": weights, "halves": halves})
    opened = varve.torch.open(path, device=gpu.DEVICE)
    for index in (
        (slice(None), slice(None)),
        (slice(17, 2900), slice(None)),
        (slice(None), slice(100, 611)),  # Columns.
        (slice(5, 9), slice(1200, 1201)),
        (slice(None), 3),
        (2999,),
        (7, 8),
    ):
        found = opened["w"][index]
        assert found.device.type == gpu.DEVICE, index
        assert torch.equal(found, weights[index]), index
    assert torch.equal(opened["halves"][3:400, 7, 1:], halves[3:400, 7, 1:])
    assert opened["halves"][1:1].shape == halves[1:1].shape


@pytest.mark.parametrize("source", ["page cache", "storage"])
def test_each_source_gives_the_same_bytes(tmp_path: Path, source: str) -> None:
    state = {f"w{i}": gpu.random(4_000_001) for i in range(16)} | gpu.every_kind()
    path = _saved(tmp_path, state)
    destination = gpu.zeros_like(state)
    gpu.drop_cache(path)
    if source == "page cache":
        gpu.warm_cache(path)
    report = varve.torch.load(destination, path)
    gpu.require_same(destination, state, source)
    if gpu.DEVICE != "cpu":
        size = sum(tensor.nbytes for tensor in state.values())
        assert report.device_bytes == size
        assert report.bytes_read >= size * 0.99  # Tensors that share bytes are stored once.


def test_a_load_from_the_agents_memory_gives_the_same_bytes(agent: str, tmp_path: Path) -> None:
    state = {f"w{i}": gpu.random(4_000_001) for i in range(8)} | gpu.every_kind()
    with Stager(executor="process", memory_budget=1 << 30) as stager:
        async_save(state, tmp_path / "saved", stager=stager, staging="overlapped").result()
        destination = gpu.zeros_like(state)
        report = varve.torch.load(destination, tmp_path / "saved")
    assert report.bytes_from_agent > 100_000_000
    gpu.require_same(destination, state, "from the agent")


@needs_cuda
def test_a_kernel_queued_before_a_load_does_not_overwrite_what_it_loads(tmp_path: Path) -> None:
    state = {"w": gpu.random(4_000_000), "transposed": gpu.random(700, 900).t()}
    path = _saved(tmp_path, state)
    destination = {"w": torch.zeros_like(state["w"]), "transposed": torch.zeros(700, 900).cuda()}
    destination["transposed"] = torch.zeros(700, 900, device="cuda").t()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for others in (torch.cuda.current_stream(), stream):
        with torch.cuda.stream(others):
            gpu.pause_device(50)
            for tensor in destination.values():
                tensor.fill_(-1)
            varve.torch.load(destination, path)
            seen = gpu.copies_of(destination)
        torch.cuda.synchronize()
        gpu.require_same(seen, state, "just after the load")
        gpu.require_same(destination, state, "later")


@needs_cuda
def test_what_is_loaded_is_there_for_every_stream(tmp_path: Path) -> None:
    state = {"w": gpu.random(16 << 20)}
    path = _saved(tmp_path, state)
    destination = {"w": torch.zeros_like(state["w"])}
    stream = torch.cuda.Stream()
    varve.torch.load(destination, path)
    with torch.cuda.stream(stream):
        seen = destination["w"].clone()
    stream.synchronize()
    assert torch.equal(seen, state["w"])


def test_the_drop_in_load_fills_tensors_of_the_device(tmp_path: Path) -> None:
    import varve.torch.dcp as dcp

    state = {"w": gpu.random(3_000_001), "transposed": gpu.random(70, 90).t()}
    dcp.save(dict(state), checkpoint_id=tmp_path / "saved", no_dist=True)
    destination = gpu.zeros_like(state)
    dcp.load(destination, checkpoint_id=tmp_path / "saved", no_dist=True)
    gpu.require_same(destination, state, "drop-in")


def test_a_damaged_block_is_found_by_a_load_onto_the_device(tmp_path: Path) -> None:
    path = _saved(tmp_path, {"w": gpu.random(4_000_000)})
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    with file.open("r+b") as data:
        data.seek(file.stat().st_size // 2)
        byte = data.read(1)
        data.seek(-1, 1)
        data.write(bytes([byte[0] ^ 1]))
    with pytest.raises(varve.errors.CorruptCheckpointError, match='"w"'):
        varve.torch.load({"w": torch.zeros(4_000_000, device=gpu.DEVICE)}, path)
