"""Opens with stock torch, 2.6 or later, what write.py has written: read.py DIRECTORY. Needs no Varve."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import states
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

RANKS = 2
#: From this version on torch saves, and opens, without collectives.
HAS_LOCAL = "kwargs" in dcp.FileSystemReader.read_metadata.__code__.co_varnames


def destination(path: Path) -> dict[str, Any]:
    """By flat name, as the metadata says; nothing of it is what was saved."""
    metadata = dcp.FileSystemReader(path).read_metadata()
    out: dict[str, Any] = {}
    for name, what in metadata.state_dict_metadata.items():
        if isinstance(what, TensorStorageMetadata):
            raw = torch.full((what.size.numel() * what.properties.dtype.itemsize,), 0x5A).byte()
            out[name] = raw.view(what.properties.dtype).reshape(what.size)
            if what.properties.dtype is torch.bool:
                out[name] = torch.zeros(what.size, dtype=torch.bool)
        else:
            out[name] = "not loaded"
    return out


def load(path: Path, expected: dict[str, Any]) -> None:
    """In this process alone, or whole on every rank."""
    loaded = destination(path)
    dcp.load(loaded, checkpoint_id=path)
    states.compare(
        {name: states.entry(leaf) for name, leaf in loaded.items()}, expected, paths=False
    )


def to_torch_save(path: Path, expected: dict[str, Any]) -> None:
    """By torch's own converter, which also needs the paths of the names."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "state.pt")
        tool = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils"]
        done = subprocess.run(
            [*tool, "dcp_to_torch", path, file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode != 0:
            raise AssertionError(done.stdout.decode()[-1000:])
        states.compare(states.entries(torch.load(file, weights_only=False)), expected)


def load_resharded(path: Path, expected: dict[str, Any]) -> None:
    """On every rank: tensors sharded along another dimension than they were saved."""
    load(path, expected)
    rank, size = dist.get_rank(), dist.get_world_size()
    reference, loaded = destination(path), destination(path)
    dcp.load(reference, checkpoint_id=path)
    place = states.on_mesh(size)
    dims = {}
    for name, leaf in loaded.items():
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            # Those that were saved in one piece too.
            dims[name] = leaf.dim() - 1 if name.endswith(" 0") else 0
            loaded[name] = place(leaf, dims[name])
    dcp.load(loaded, checkpoint_id=path)
    for name, dim in dims.items():
        mine = states.part(reference[name], dim, size, rank)
        if states.content(mine) != states.content(loaded[name].to_local()):
            raise AssertionError(f"rank {rank} has something else in {name!r} along {dim}")


def load_local(path: Path, expected: dict[str, Any]) -> None:
    """On every rank, with the layout of the save: what was saved without collectives."""
    logging.disable(logging.WARNING)  # Torch first looks for an index of all ranks, and says so.
    size = dist.get_world_size()
    place = states.on_mesh(size)
    wanted = states.sharded(place)
    loaded = states.sharded(lambda tensor, dim: place(torch.zeros_like(tensor), dim))
    loaded.update(plain=torch.zeros(10, dtype=torch.int64), step=0, name="")
    loaded["optim"]["param_groups"] = [{"lr": 0, "betas": 0, "params": 0, "foreach": 0}]
    for moments in loaded["optim"]["state"].values():
        moments["step"] = torch.tensor(0.0)
    dcp.load(loaded, checkpoint_id=path)
    mine = [_local(state) for state in (loaded, wanted)]
    states.compare(mine[0], mine[1])


def _local(state: dict[str, Any]) -> dict[str, Any]:
    def local(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return {key: local(value) for key, value in leaf.items()}
        if isinstance(leaf, list):
            return [local(value) for value in leaf]
        return leaf.to_local() if hasattr(leaf, "to_local") else leaf

    return states.entries(local(state))


def on_ranks(directory: Path, names: list[str], function: Any) -> dict[str, str]:
    """On every rank: what went wrong, by checkpoint."""
    wrong: dict[str, str] = {}
    for name in names:
        problem = ""
        try:
            function(directory / name, _expected(directory, name)["entries"])
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        problems: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
        if any(problems):
            wrong[name] = next(filter(None, problems))
    return wrong


def _expected(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / f"{name}.json").read_text())


def _raise(problem: str) -> None:
    if problem:
        raise AssertionError(problem)


def main() -> int:
    directory = Path(sys.argv[1])
    cases = states.Cases()
    names = {"all": [], "local": []}
    for name in sorted(path.stem for path in directory.glob("*.json")):
        expected = _expected(directory, name)
        lacking = [dtype for dtype in expected["needs"] if not hasattr(torch, dtype)]
        if lacking:
            cases.skip(name, f"no {lacking[0]} here")
        elif expected["local"] and not HAS_LOCAL:
            cases.skip(name, "no use_collectives=False here")
        elif expected["local"]:
            names["local"].append(name)
        else:
            names["all"].append(name)
            cases.run(f"{name}: load", load, directory / name, expected["entries"])
            cases.run(
                f"{name}: to torch.save", to_torch_save, directory / name, expected["entries"]
            )
    wrong = states.ranks(RANKS, on_ranks, directory, names["all"], load_resharded)
    for name in names["all"]:
        cases.run(f"{name}: load on {RANKS} ranks", _raise, wrong.get(name, ""))
    for name in names["local"]:
        size = _expected(directory, name)["ranks"]
        wrong = states.ranks(size, on_ranks, directory, [name], load_local)
        cases.run(f"{name}: load on its {size} ranks", _raise, wrong.get(name, ""))
    return cases.total(f"read.py, torch {torch.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    sys.exit(main())
