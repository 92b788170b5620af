"""Functions that ranks run in test_kept_values.py."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import varve.torch
import varve.torch.dcp

ELEMENTS = 300_000  # 1.2 MB: replicas of this size are cut between ranks where they agree.


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collects the texts of warnings that replicas differ."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(w.message) for w in caught if w.category is varve.ReplicasDifferWarning]


def state_of(rank: int) -> dict[str, Any]:
    """Returns a state of which rank 0 and rank 2 hold the same, and rank 1 something else."""
    odd = rank % 2
    return {
        "w": torch.full((ELEMENTS,), float(odd)),
        "same": torch.arange(ELEMENTS),
        "position": 100 + odd,
        "params": list(range(odd * 3, odd * 3 + 3)),
        "rng": random.Random(odd).getstate(),
        "step": 7,
    }


def blank() -> dict[str, Any]:
    return {
        "w": torch.full((ELEMENTS,), -1.0),
        "same": torch.zeros(ELEMENTS, dtype=torch.int64),
        "position": None,
        "params": None,
        "rng": None,
        "step": None,
    }


def summary(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a state with its tensors as their first and last elements."""
    return {
        name: (value[0].item(), value[-1].item()) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def save(rank: int, size: int, path: str, how: str, options: dict[str, Any]) -> Any:
    """Returns names that differ, of tensors and values, and what was warned of."""
    with warned() as texts:
        if how == "save":
            report: Any = varve.torch.save(state_of(rank), path, **options)
        else:
            report = varve.torch.async_save(state_of(rank), path, executor=how, **options).result()
    return report.differing_tensors, report.differing_objects, texts


def save_in_waves(rank: int, size: int, path: str) -> tuple[bool, list[float]]:
    """Saves 64 MB through a copy of 16 MiB; returns whether in waves, and the values that come back."""
    stager = varve.torch.Stager(memory_budget=16 << 20)
    state = {"w": torch.full((16 << 20,), float(rank))}
    report = varve.torch.async_save(state, path, stager=stager).result()
    stager.close()
    into = {"w": torch.full((16 << 20,), -1.0)}
    varve.torch.load(into, path)
    return report.in_waves, into["w"].unique().tolist()


def load(rank: int, size: int, path: str, options: dict[str, Any]) -> Any:
    """Returns what a blank state became, and the report's `kept` and `merged`."""
    state = blank()
    report = varve.torch.load(state, path, **options)
    return summary(state), report.kept, report.merged


def load_by_dcp(rank: int, size: int, path: str) -> Any:
    """Loads by torch's protocol; returns the values and what was warned of."""
    state = {"w": torch.full((ELEMENTS,), -1.0), "position": 0}
    with warned() as texts:
        varve.torch.dcp.load(state, checkpoint_id=path)
    return summary(state), texts


def save_often(rank: int, size: int, folder: str) -> list[str]:
    """Saves three steps of a run and exports two; returns what was warned of."""
    with warned() as texts:
        for step in range(3):
            varve.torch.save(state_of(rank), f"{folder}/step-{step}")
        for step in range(2):
            varve.torch.save(state_of(rank), f"{folder}/export-{step}", format="dcp")
    return texts


def save_experts(rank: int, size: int, path: str) -> float:
    """Saves and loads an expert of each second rank under one name, tied to another name."""
    expert = torch.full((ELEMENTS,), float(rank % 2))
    varve.torch.save({"expert": expert, "tied": expert}, path)
    state = {"expert": torch.empty(ELEMENTS), "tied": torch.empty(ELEMENTS)}
    varve.torch.load(state, path)
    assert torch.equal(state["tied"], state["expert"])
    assert len(set(state["expert"].tolist())) == 1, "a mix of two experts"
    return state["expert"][0].item()


def _batch_norm(rank: int) -> DistributedDataParallel:
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.BatchNorm1d(32))
    model(torch.randn(8, 32, generator=torch.Generator().manual_seed(rank)))
    return model


def save_batch_norm(rank: int, size: int, path: str) -> Any:
    """Saves buffers that differ under DDP; returns this rank's mean."""
    model = _batch_norm(rank)
    varve.torch.save({"model": model}, path)
    return model.module.running_mean.tolist()


def load_batch_norm(rank: int, size: int, path: str) -> Any:
    """Returns the mean that a new module got, the report's lists and what was warned of."""
    model = DistributedDataParallel(torch.nn.BatchNorm1d(32))
    with warned() as texts:
        report = varve.torch.load({"model": model}, path)
    return model.module.running_mean.tolist(), report.kept, report.merged, texts


def manage(rank: int, size: int, run: str) -> list[str]:
    """Saves two steps by a manager; returns what it has logged of values that differ."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("varve").addHandler(handler)
    with varve.torch.CheckpointManager(run, every=1) as manager:
        for step in (1, 2):
            manager.save(step, state_of(rank))
    return [text for text in logged if "different values" in text]


def resume(rank: int, size: int, run: str) -> Any:
    state = blank()
    with varve.torch.CheckpointManager(run) as manager:
        manager.resume(state)
    return summary(state)


def save_apart(rank: int, size: int, path: str) -> None:
    varve.torch.save(state_of(rank), path, coordinate=False)


def pipeline(rank: int, size: int, path: str) -> Any:
    """Saves other containers on each rank, with param groups under one name; returns what came back."""
    layer = f"layer{rank}"
    state = {
        "model": {layer: torch.full((4,), float(rank))},
        "optim": {"param_groups": [{"lr": 0.1, "params": [f"{layer}.w"]}]},
    }
    report = varve.torch.save(state, path)
    assert report.differing_tensors == []
    into: dict[str, Any] = {
        "model": {layer: torch.empty(4)},
        "optim": {"param_groups": [{"lr": None, "params": None}]},
    }
    varve.torch.load(into, path)
    return into["model"][layer][0].item(), into["optim"]["param_groups"][0]["params"]


def measure(rank: int, size: int, run: str) -> list[str]:
    """Saves a step with a time and a name of each rank; returns what the manager has logged of it."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("varve").addHandler(handler)
    state = {"w": torch.full((4,), 7.0), "elapsed": 1.5 + rank, "host": f"node-{rank}", "step": 1}
    with varve.torch.CheckpointManager(run, every=1) as manager:
        manager.save(1, state)
    return [text for text in logged if "different values" in text]
