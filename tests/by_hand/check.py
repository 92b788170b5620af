"""Opens with Varve what write_torch.py has written: check.py DIRECTORY. Runs with Varve's own environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import states
import torch
import torch.distributed as dist

import varve
import varve.torch

RANKS = 2


def read(path: Path, expected: dict[str, Any]) -> None:
    found = varve.torch.read(path, flat=True)
    states.compare(
        {name: states.entry(leaf) for name, leaf in found.items()}, expected, paths=False
    )


def read_nested(path: Path, expected: dict[str, Any]) -> None:
    found = states.entries(varve.torch.read(path))
    if (
        path.suffix == ".pt"
    ):  # Keys that are ints stay ints, and torch flattens them to text as well.
        states.compare(found, expected)
    else:
        has_paths = path.joinpath(".metadata").exists() or path.joinpath("__0.metadata").exists()
        states.compare(found, expected, paths=has_paths)


def load(path: Path, expected: dict[str, Any]) -> None:
    """Into the memory of tensors that hold something else."""

    def emptied(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return {key: emptied(value) for key, value in leaf.items()}
        if isinstance(leaf, list):
            return [emptied(value) for value in leaf]
        if isinstance(leaf, torch.Tensor):
            return (
                torch.zeros(leaf.numel() * leaf.itemsize).byte().view(leaf.dtype).view(leaf.shape)
            )
        return leaf

    loaded = emptied(varve.torch.read(path))
    varve.torch.load(loaded, path)
    states.compare(states.entries(loaded), expected, paths=False)


def command(*arguments: object) -> None:
    binary = Path(sys.executable).parent / "varve"
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")


def verify(path: Path) -> None:
    command("inspect", path)
    command("verify", path)


def convert(path: Path, expected: dict[str, Any], to: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "converted")
        command("convert", path, target, "--to", to)
        command("diff", path, target)
        command("verify", target)
        read(target, expected)


def load_on_ranks(paths: list[Path]) -> dict[str, str]:
    """On every rank: sharded along the other dimension than the save had."""
    place = states.on_mesh(dist.get_world_size(), other=True)
    wanted = states.sharded(place)
    wrong = {}
    for path in paths:
        loaded = states.sharded(lambda tensor, dim: place(torch.zeros_like(tensor), dim))
        loaded.update(plain=torch.zeros(10, dtype=torch.int64), step=0, name="")
        problem = ""
        try:
            varve.torch.load(loaded, path)
            states.compare(_local(loaded), _local(wanted))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        problems: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
        if any(problems):
            wrong[path.name] = next(filter(None, problems))
    return wrong


def _local(leaf: Any) -> dict[str, Any]:
    def local(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return {key: local(value) for key, value in leaf.items()}
        if isinstance(leaf, list):
            return [local(value) for value in leaf]
        return leaf.to_local() if hasattr(leaf, "to_local") else leaf

    return states.entries(local(leaf))


def _raise(problem: str) -> None:
    if problem:
        raise AssertionError(problem)


def main() -> int:
    directory = Path(sys.argv[1])
    cases = states.Cases()
    sharded = []
    for file in sorted(directory.glob("*.json")):
        path = file.with_suffix("")
        head = json.loads(file.read_text())
        expected = head["entries"]
        if head["sharded"]:
            sharded.append(path)
        cases.run(f"{path.name}: read flat", read, path, expected)
        cases.run(f"{path.name}: read nested", read_nested, path, expected)
        cases.run(f"{path.name}: load", load, path, expected)
        cases.run(f"{path.name}: inspect, verify", verify, path)
        for to in ("varve", "dcp"):
            cases.run(f"{path.name}: convert to {to}", convert, path, expected, to)
    wrong = states.ranks(RANKS, load_on_ranks, sharded)
    for path in sharded:
        cases.run(f"{path.name}: load on {RANKS} ranks", _raise, wrong.get(path.name, ""))
    return cases.total(f"check.py, varve {varve.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())
