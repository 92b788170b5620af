"""Writes checkpoints with stock torch, 2.6 or later, for check.py: write_torch.py DIRECTORY.

Needs no Varve. Each checkpoint NAME gets a NAME.json with what is in it.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import states
import torch
import torch.distributed.checkpoint as dcp

RANKS = 3
#: Since 2.7 or later.
HAS_LOCAL = "use_collectives" in inspect.signature(dcp.save).parameters
HAS_HUGGING_FACE = hasattr(dcp, "HuggingFaceStorageWriter")


def expect(directory: Path, name: str, state: dict[str, Any], sharded: bool = False) -> None:
    """`sharded`: holds what `states.sharded` makes, so that it can be loaded into any layout of that."""
    text = json.dumps({"sharded": sharded, "entries": states.entries(state)}, indent=1)
    (directory / f"{name}.json").write_text(text)


def write_single(directory: Path) -> None:
    state = states.single()
    for threads in (1, 2):
        path = directory / f"threads-{threads}-of-1"
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(path, thread_count=threads))
        expect(directory, path.name, state)
    path = directory / "files-of-1"
    dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(path, single_file_per_rank=False))
    expect(directory, path.name, state)

    for name, new in (("zip.pt", True), ("legacy.pt", False)):
        torch.save(state, directory / name, _use_new_zipfile_serialization=new)
        expect(directory, name, state)
    tool = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils"]
    for verb, source, target in (
        ("torch_to_dcp", "zip.pt", "torch-to-dcp"),
        ("dcp_to_torch", "threads-1-of-1", "dcp-to-torch.pt"),
    ):
        command = [*tool, verb, directory / source, directory / target]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        expect(directory, target, state)


def write_new_dtypes(directory: Path) -> None:
    for name in states.NEW_DTYPES:
        if hasattr(torch, name):
            state = {name: states.bits(name, (4, 6), getattr(torch, name))}
            dcp.save(dict(state), checkpoint_id=directory / name)
            expect(directory, name, state)


def tensors(place: states.Place) -> dict[str, torch.Tensor]:
    """What safetensors has types for."""
    return {
        f"{name} {dim}": place(states.bits(name, (7, 5), getattr(torch, name)), dim)
        for name in states.SAFETENSORS_DTYPES
        for dim in (0, 1)
    }


def write_hugging_face(directory: Path) -> None:
    state = tensors(states.whole)
    indices = {name: 1 + i % 2 for i, name in enumerate(state)}
    writer = dcp.HuggingFaceStorageWriter(directory / "hf-of-1", fqn_to_index_mapping=indices)
    dcp.save(dict(state), storage_writer=writer)
    for name in ("hf-of-1", f"hf-of-{RANKS}"):
        expect(directory, name, state)


def write_sharded(directory: Path) -> None:
    """On every rank."""
    place = states.on_mesh(RANKS)
    state = states.sharded(place)
    for threads in (1, 2):
        path = directory / f"threads-{threads}-of-{RANKS}"
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(path, thread_count=threads))
    if HAS_LOCAL:
        path = directory / f"local-of-{RANKS}"
        dcp.save(dict(state), checkpoint_id=path, use_collectives=False)
    if HAS_HUGGING_FACE:
        path = directory / f"hf-of-{RANKS}"
        writer = dcp.HuggingFaceStorageWriter(path, save_distributed=True)
        dcp.save(tensors(place), storage_writer=writer)


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)
    write_single(directory)
    write_new_dtypes(directory)
    states.ranks(RANKS, write_sharded, directory)
    state = states.sharded(states.whole)
    names = [f"threads-1-of-{RANKS}", f"threads-2-of-{RANKS}"]
    if HAS_LOCAL:
        names.append(f"local-of-{RANKS}")
    for name in names:
        expect(directory, name, state, sharded=True)
    if HAS_HUGGING_FACE:
        write_hugging_face(directory)
    version = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    print(f"{version}: wrote {directory}, without collectives: {HAS_LOCAL}, HF: {HAS_HUGGING_FACE}")


if __name__ == "__main__":
    main()
